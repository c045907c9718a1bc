"""`--confirm`: a generation that goes back by itself unless somebody says in time that it is good."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from .history import History, Unconfirmed
from .request import Request
from .result import Result
from .threads import in_thread


class Confirmation:
    """The generation that waits to be confirmed, if there is one, and its deadline."""

    def __init__(self, history: History, ask: Callable[[Request], Awaitable[Result]]) -> None:
        self._history = history
        self._ask = ask
        self._deadline = float("inf")
        self._before: tuple[Unconfirmed | None, float] = (None, self._deadline)
        self._changed = anyio.Event()
        self.rolled_back = False
        """Whether the last generation that waited went back: then a confirmation is late."""

    @property
    def overdue(self) -> bool:
        """Whether it is too late: it goes back now."""
        return anyio.current_time() >= self._deadline

    async def announce(self, generation: int, previous: int, seconds: float) -> None:
        """Write, so that it outlives everything, that a generation about to be committed must be confirmed.

        Raises `OSError`.
        """
        waiting = self._history.unconfirmed
        self._before = (waiting, self._deadline)
        first = previous if waiting is None else waiting.previous
        self._history.unconfirmed = Unconfirmed(generation=generation, previous=first, by=time.time() + seconds)
        await in_thread(self._write)
        self._deadline = anyio.current_time() + seconds
        self._changed.set()

    def _write(self) -> None:
        self._history.save()
        self._history.flush()

    def withdraw(self) -> None:
        """What was announced last was not committed."""
        self._history.unconfirmed, self._deadline = self._before
        self._changed.set()

    def end(self, *, rolled_back: bool) -> None:
        """Nothing waits any more."""
        self._history.unconfirmed = None
        self._deadline = float("inf")
        self.rolled_back = rolled_back

    async def confirm(self, generation: int) -> bool:
        """Keep what waits; answers whether that was in time."""
        if self._history.unconfirmed is None or self.overdue:
            return False
        self.end(rolled_back=False)
        await in_thread(lambda: self._history.confirm(generation))
        return True

    async def watch(self) -> None:
        """Roll back what is not confirmed in time. Run it for ever."""
        while True:
            with anyio.CancelScope(deadline=self._deadline):
                await self._changed.wait()
            self._changed = anyio.Event()
            waiting = self._history.unconfirmed
            if waiting is None or not self.overdue:
                continue
            await self._ask(Request(trigger="confirm", rollback_to=waiting.previous))
            if self._history.unconfirmed is waiting:  # it could not be rolled back: it was said, and is not tried again
                self._deadline = float("inf")
