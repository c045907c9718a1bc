"""Cancellation as a value: who may stop an operation, and what the operation learns of it.

An `Aborter` is the end that stops; its `Signal` is the end that payloads and tool calls carry. The first cause wins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from .errors import Aborted

T = TypeVar("T")

CANCEL_GRACE = 10.0
"""Seconds a body that takes the signal may go on after it was aborted."""


class Signal:
    """Whether an operation has been told to stop, and why.

    `aborted` is a plain question, `check()` raises `Aborted`, `await wait()` returns the cause once there is one.
    """

    __slots__ = ("_callbacks", "_cause", "_event")

    def __init__(self) -> None:
        self._cause: object | None = None
        self._event: anyio.Event | None = None
        self._callbacks: dict[object, Callable[[object], None]] = {}

    @property
    def aborted(self) -> bool:
        return self._cause is not None

    @property
    def cause(self) -> object | None:
        """The first cause given, `None` while nothing was."""
        return self._cause

    def check(self) -> None:
        """Raise `Aborted` with the cause if the operation has been told to stop."""
        if self._cause is not None:
            raise Aborted(self._cause)

    async def wait(self) -> object:
        """Wait until the operation is told to stop; return the cause."""
        if self._cause is None:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        return self._cause

    def follow(self, told: Callable[[object], None]) -> Callable[[], None]:
        """Call `told` with the cause, once, when the operation is told to stop; at once if it was already.

        Gives what takes it back; call that when the work is over. `told` runs inside `abort`, in order of following;
        what it raises is raised there, after everybody was told.
        """
        follower = object()  # one callable may follow twice, and each is taken back by itself
        if self._cause is not None:
            told(self._cause)
        else:
            self._callbacks[follower] = told

        def forget() -> None:
            self._callbacks.pop(follower, None)

        return forget

    def _fire(self, cause: object) -> None:
        self._cause = cause
        if self._event is not None:
            self._event.set()
        raised: list[Exception] = []
        while self._callbacks:  # one may take back another meanwhile
            told = self._callbacks.pop(next(iter(self._callbacks)))
            try:
                told(cause)
            except Exception as exc:
                raised.append(exc)
        if raised:
            raise ExceptionGroup("some of those who followed a signal failed", raised)


class Aborter:
    """The stopping end of a signal. With a `parent` it also stops, for the same cause, when the parent does."""

    __slots__ = ("_forget", "signal")

    def __init__(self, parent: Signal | None = None) -> None:
        self.signal = Signal()
        self._forget: Callable[[], None] | None = None
        if parent is not None:
            self._forget = parent.follow(self._follow)

    def _follow(self, cause: object) -> None:
        self.abort(cause)

    def abort(self, cause: object) -> bool:
        """Tell the operation to stop; answers whether this was the first cause. `None` is no cause."""
        if cause is None:
            raise ValueError("a cause may not be None")
        if self.signal.aborted:
            return False
        self.detach()
        self.signal._fire(cause)
        return True

    def detach(self) -> None:
        """Stop following the parent. Call it when the operation is over, so that a long-lived parent forgets it."""
        if self._forget is not None:
            self._forget()
            self._forget = None


async def obey(
    signal: Signal, body: Callable[[], Awaitable[T]], *, cooperative: bool, grace: float = CANCEL_GRACE
) -> T:
    """Run `body` under a signal and return what it returns.

    A cooperative body looks at the signal itself: it ends on its own and its value is returned, and is cancelled only
    if it outlasts `grace` seconds. Any other body is cancelled at once. What was cancelled raises `Aborted`, and so
    does a body that was told to stop before it began.
    """
    signal.check()
    return await leashed(signal, body, grace if cooperative else 0)


async def leashed(signal: Signal, body: Callable[[], Awaitable[T]], grace: float = 0) -> T:
    """The same for work that may begin although the signal has said stop: it then has `grace` seconds from now.

    What a cancelled body returns in spite of that is kept. Raises `Aborted` for what was cancelled, or without a grace
    not even begun.
    """
    if not grace:
        signal.check()
    with anyio.CancelScope() as scope:

        def pull(_cause: object) -> None:
            if grace:
                scope.deadline = anyio.current_time() + grace
            else:
                scope.cancel()

        forget = signal.follow(pull)  # a task that waited for it would cost more than most bodies
        try:
            return await body()
        finally:
            forget()
    raise Aborted(signal.cause)
