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
    if it outlasts `grace` seconds. Any other body is cancelled at once. What was cancelled raises `Aborted`.
    """
    signal.check()
    over = False
    value: T
    error: BaseException | None = None
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as watching:

            async def stop_when_told() -> None:
                await signal.wait()
                if cooperative:
                    await anyio.sleep(grace)
                scope.cancel()

            watching.start_soon(stop_when_told, name="signal")
            try:
                value = await body()
                over = True
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as exc:  # raised outside the task group, where nothing wraps it
                error = exc
            watching.cancel_scope.cancel()
    if error is not None:
        raise error
    if over:
        return value
    assert signal.cause is not None
    raise Aborted(signal.cause)
