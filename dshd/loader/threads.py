"""Blocking work of the loader, done in a worker thread that gets its turn also beside a busy event loop.

CPython hands the interpreter's lock to a waiting thread at once only when its holder blocks. An event loop that always
has something ready never does: it lets go for the microsecond of a poll and has the lock back before the other wakes,
which restarts that thread's wait. A thread that touches files, and so needs the lock anew after each system call, then
gets on by five of them a second: a reload that takes milliseconds takes seconds on a loop that is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

_EVERY = 0.001
_REST = 0.000_02  # seconds: what counts is that the loop's thread blocks at all


async def in_thread(work: Callable[[], T], *, abandon: bool = False) -> T:
    """What `work` returns or raises. While it goes on, the loop's thread rests for a moment every millisecond.

    `abandon`: a cancellation leaves the thread to itself, instead of waiting for it.
    """
    done: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_rest)
        try:
            done.append(await anyio.to_thread.run_sync(work, abandon_on_cancel=abandon))
        except Exception as exc:
            failure = exc
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return done[0]


async def _rest() -> None:
    while True:
        await anyio.sleep(_EVERY)
        time.sleep(_REST)  # noqa: ASYNC251
