"""Cancellations that nobody asked of the running task, such as that of a task or future it awaited.

They look like our own and must not be taken for it: swallowed they would hide a fault, passed on they would end a task
group in which everything runs.
"""

from __future__ import annotations

import asyncio
import math

import anyio


def is_stray() -> bool:
    """Whether a cancellation just caught reached the running task although nothing asked this task to stop.

    False when a scope around us, or the task itself, was cancelled.
    """
    if anyio.current_effective_deadline() == -math.inf or anyio.get_current_task().has_pending_cancellation():
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not on asyncio, where every cancellation has a scope
        return False
    # A native `Task.cancel()` has no scope: the count on the task asked is its only trace, and anyio does not show it.
    return task is None or not task.cancelling()


def is_fault(error: BaseException) -> bool:
    """Whether what was caught around somebody's code is a fault of that code, and not this task being stopped.

    For the places that contain what plugins do: catch `BaseException`, raise it again unless this says so.
    """
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return is_stray()
    return not isinstance(error, GeneratorExit)
