"""Deadlines: every wait for plugin code has one, and one task watches all of them.

A phase that goes on for long is named with the place where it waits; when its time is over it is cancelled; what
ignores that is abandoned by name.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from .activation import Activation
    from .runtime import Kernel


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long the kernel waits, in seconds."""

    load: float = 30.0
    """For a body to open."""
    unload: float = 10.0
    """For cleanups and the code after the `yield`, together."""
    grace: float = 2.0
    """After a cancellation, before the task is abandoned."""
    slow: float = 5.0
    """Before something that opens or closes is named in the log."""


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """When to re-open what failed after having been active. Delays in seconds."""

    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 60.0
    jitter: float = 0.5
    """The share of a delay that is random."""
    reset: float = 60.0
    """Having been active for so long makes the next failure a first one."""

    def delay(self, crashes: int, random: float) -> float:
        """Seconds to wait after the given number of crashes, with `random` in [0, 1)."""
        whole = min(self.maximum, self.initial * self.factor ** min(crashes - 1, 64))
        return whole * (1 - self.jitter * random)


class Alarm:
    """The deadline of one phase of one activation, and what to do when it is reached."""

    __slots__ = ("activation", "begun", "seconds", "step")

    def __init__(self, activation: Activation, begun: float, seconds: float) -> None:
        self.activation = activation
        self.begun = begun
        self.seconds = seconds
        self.step = 0


class Watchdog:
    """One task over a heap of alarms. A disarmed alarm stays in the heap until its time or the next sweep."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._heap: list[tuple[float, int, Alarm]] = []
        self._numbers = count()
        self._wake: anyio.Event | None = None
        self._armed = 0

    def arm(self, activation: Activation, seconds: float) -> None:
        """Watch the phase that begins now."""
        now = anyio.current_time()
        activation.alarm = alarm = Alarm(activation, now, seconds)
        self._armed += 1
        self._push(now + min(self._kernel.timing.slow, seconds), alarm)

    def disarm(self, activation: Activation) -> None:
        """The phase is over."""
        if activation.alarm is not None:
            activation.alarm = None
            self._armed -= 1
            if len(self._heap) > 4 * self._armed + 64:
                self._heap = [item for item in self._heap if item[2].activation.alarm is item[2]]
                heapq.heapify(self._heap)

    def _push(self, when: float, alarm: Alarm) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), alarm))
        if self._wake is not None and self._heap[0][2] is alarm:
            self._wake.set()

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            now = anyio.current_time()
            while self._heap and self._heap[0][0] <= now:
                _, _, alarm = heapq.heappop(self._heap)
                if alarm.activation.alarm is alarm:
                    self._ring(alarm, now)
            self._wake = anyio.Event()
            with anyio.CancelScope(deadline=self._heap[0][0] if self._heap else float("inf")):
                await self._wake.wait()

    def _ring(self, alarm: Alarm, now: float) -> None:
        activation, timing = alarm.activation, self._kernel.timing
        fiber = activation.fiber
        if alarm.step == 0 and timing.slow < alarm.seconds:
            alarm.step = 1
            fiber.report(
                f"still {activation.phase}", seconds=round(now - alarm.begun, 3), at=place_of(activation.waiting_in)
            )
            self._push(alarm.begun + alarm.seconds, alarm)
        elif alarm.step <= 1:
            alarm.step = 2
            activation.expire()
            self._push(now + timing.grace, alarm)
        else:
            self.disarm(activation)
            self._kernel.closing.abandon(fiber)


_ENGINES = ("anyio", "asyncio", "contextlib", "sniffio", "trio")


def place_of(awaitable: Any) -> str | None:
    """`file:line` where a suspended body waits: the innermost frame that is not the event loop's own."""
    found: str | None = None
    node: Any = awaitable
    while node is not None:
        frame = getattr(node, "cr_frame", None) or getattr(node, "ag_frame", None) or getattr(node, "gi_frame", None)
        if frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _ENGINES:
            found = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        following = getattr(node, "cr_await", None) or getattr(node, "ag_await", None)
        node = following if following is not None else getattr(node, "gi_yieldfrom", None)
    return found
