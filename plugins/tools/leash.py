"""What a signal does to the code that runs under it: it is stopped at once, or after a grace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from dshd import Aborted, Signal

T = TypeVar("T")


async def leashed(signal: Signal, work: Callable[[], Awaitable[T]], grace: float = 0) -> T:
    """What `work` returns. It is cancelled `grace` seconds after the signal says stop, or from now if it has already.

    Unlike `obey` it waits in no task, which would cost more than most tools. Raises `Aborted` if `work` was cancelled,
    or without a grace not even begun; what it returns in spite of that is kept.
    """
    if not grace:
        signal.check()
    with anyio.CancelScope() as scope:

        def pull(cause: object) -> None:
            if grace:
                scope.deadline = anyio.current_time() + grace
            else:
                scope.cancel()

        loosen = signal.follow(pull)
        try:
            return await work()
        finally:
            loosen()
    raise Aborted(signal.cause)
