"""Optional rows that failed to start are tried again, with back-off, until they start or are edited away."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio
import structlog

from dshd.kernel.context import Context
from dshd.kernel.internal import STATUS, StatusChange
from dshd.kernel.states import FiberState
from dshd.kernel.watchdog import Backoff

from .mount import LiveTree

_log = structlog.get_logger("dshd.loader")


class Supervisor:
    """Watches for optional rows that fail, and calls `retry` on each in its time."""

    def __init__(self, root: Context, live: LiveTree, backoff: Backoff) -> None:
        self._root = root
        self._live = live
        self._backoff = backoff
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._event = anyio.Event()

    async def run(self) -> None:
        """Supervise for ever."""
        listening = self._root.on(STATUS, self._heard)
        try:
            while True:
                self._look()
                due = min(self._due.values(), default=None)
                with anyio.CancelScope() as scope:
                    scope.deadline = float("inf") if due is None else due
                    await self._event.wait()
                self._event = anyio.Event()
        finally:
            listening.release()

    def poke(self) -> None:
        """Other rows run: some may have failed while they were prepared."""
        self._event.set()

    def _heard(self, change: StatusChange) -> None:
        if change.fiber.optional and change.new in (FiberState.FAILED, FiberState.ACTIVE, FiberState.DISPOSED):
            self._event.set()

    def _look(self) -> None:
        """Retry what is due, and plan for what has failed since."""
        now = anyio.current_time()
        failing = dict(self._live.failing())
        for path in [path for path in self._due if path not in failing]:
            del self._due[path]
        for path in [path for path in self._failures if path not in failing]:
            fiber = self._live.fiber(path)
            if fiber is None or fiber.visible:
                del self._failures[path]
        for path, fiber in failing.items():
            if fiber.state is not FiberState.FAILED or fiber.stirring:
                self._due.pop(path, None)
                continue
            due = self._due.get(path)
            if due is None:
                self._failures[path] = self._failures.get(path, 0) + 1
                self._due[path] = now + self._backoff.delay(self._failures[path], random.random())
            elif due <= now:
                del self._due[path]
                fiber.retry()


async def keep_going(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run what goes on beside the attempts: an error in it is logged, and it begins again."""
    while True:
        try:
            await work()
            return
        except Exception:
            _log.exception("failed in the loader itself, and begins again", task=name)
            await anyio.sleep(1)
