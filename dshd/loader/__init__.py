"""Desired state: a YAML tree read, composed, validated, planned and applied, and the live tree kept equal to it.

Everything up to the plan is pure and works on a snapshot of files; only `attempt` and what it calls touch fibers. The
loader knows the kernel and no capability.
"""
