"""How long the event loop stood still while something ran."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

TICK = 0.002


class Stall:
    """A task that wakes every two milliseconds; how late it wakes at worst is how long the loop stood still."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._due = 0.0

    @property
    def worst_ms(self) -> float:
        """Including a delay that has just ended, of which the task does not know yet."""
        return round(max(self._worst, anyio.current_time() - self._due, 0.0) * 1e3, 3)

    async def during(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work, and measure meanwhile."""
        failure: Exception | None = None
        result: list[T] = []
        self._due = anyio.current_time() + TICK
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick, name="stall")
            try:
                result.append(await work())
            except Exception as exc:  # raised again below, where no task group wraps it
                failure = exc
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result[0]

    async def _tick(self) -> None:
        while True:
            self._due = anyio.current_time() + TICK
            await anyio.sleep_until(self._due)
            self._worst = max(self._worst, anyio.current_time() - self._due)
