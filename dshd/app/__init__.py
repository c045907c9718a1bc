"""The process around the loader: command line, daemon, control socket, logging, and the service manager's protocol.

Importing this package, or the command line, imports nothing heavy: client verbs start in a few hundredths of a second.
"""
