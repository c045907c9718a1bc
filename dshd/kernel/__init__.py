"""Time and ownership: fibers, effects, services, registries, events, epochs and keepers.

Imports nothing else of dshd, opens no file, reads no environment and knows no plugin. The public names are those of
the package `dshd`; `docs/kernel.md` is the way in.
"""
