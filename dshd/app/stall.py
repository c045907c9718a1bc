"""Notices that the event loop is blocked, and by whom, while it is: a thread watches for signs of life."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import anyio
import structlog

from dshd.kernel.driver import drive
from dshd.kernel.tasks import SpawnedTask

_log = structlog.get_logger("dshd.stall")

AFTER = 1.0
"""Seconds without a sign of life that are worth a warning."""


class Heartbeat:
    """Beats in the loop, listens in a thread.

    `alive` is called with each beat, by the loop itself: whoever is told of signs of life hears none while it is
    blocked. A beat is due every `every` seconds.
    """

    def __init__(self, every: float, alive: Callable[[], None], after: float = AFTER) -> None:
        self._every = every
        self._after = after
        self._alive = alive
        self._beat = time.monotonic()
        self._over = threading.Event()
        self._loop_thread = threading.get_ident()

    async def run(self) -> None:
        """Beat for ever."""
        listener = threading.Thread(target=self._listen, name="stall", daemon=True)
        listener.start()
        try:
            while True:
                self._beat = time.monotonic()
                self._alive()
                await anyio.sleep(self._every)
        finally:
            self._over.set()

    def _listen(self) -> None:
        warned = 0.0
        while not self._over.wait(self._after / 2):
            beat = self._beat
            late = time.monotonic() - beat - self._every
            if late >= self._after and beat != warned:
                warned = beat
                row, place = culprit(self._loop_thread)
                _log.warning("the event loop is blocked", seconds=round(late, 1), row=row, at=place)


def culprit(thread: int) -> tuple[str | None, str | None]:
    """The row whose code a thread runs now, and the innermost place outside the standard library."""
    frame: FrameType | None = sys._current_frames().get(thread)
    place: str | None = None
    row: str | None = None
    while frame is not None:
        code = frame.f_code
        if place is None and not code.co_filename.startswith((sys.base_prefix, "<")):
            place = f"{code.co_filename}:{frame.f_lineno}"
        if row is None and code is drive.__code__:
            row = frame.f_locals["fiber"].path
        elif row is None and code is SpawnedTask._run.__code__:
            row = frame.f_locals["self"].owner.path
        frame = frame.f_back
    return row, place
