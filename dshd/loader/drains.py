"""Retired instances that are still open: named when that takes long, and reported when they never end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import structlog

from dshd.kernel.fiber import Fiber

_log = structlog.get_logger("dshd.loader")


class Drains:
    """What commits have retired and is not closed."""

    def __init__(self, warn_after: Callable[[], float]) -> None:
        self._warn_after = warn_after
        self._since: dict[Fiber, float] = {}
        self._left: dict[Fiber, None] = {}
        self._changed = anyio.Event()

    @property
    def fibers(self) -> list[Fiber]:
        """Retired instances that are still open."""
        return [fiber for fiber in self._since if not fiber.closed]

    @property
    def leaks(self) -> list[str]:
        """The rows whose old instance ignored its cancellation and is still there."""
        left = (fiber for fiber in (*self._left, *self._since) if fiber in fiber.kernel.abandoned)
        return list(dict.fromkeys(fiber.path for fiber in left))

    def add(self, fibers: Iterable[Fiber]) -> None:
        self._since.update(dict.fromkeys(fibers, anyio.current_time()))
        self._changed.set()

    async def watch(self) -> None:
        """Watch for ever."""
        warned: dict[Fiber, None] = {}
        while True:
            for fiber in [fiber for fiber in self._left if fiber not in fiber.kernel.abandoned]:
                del self._left[fiber]
            for fiber, since in list(self._since.items()):
                if fiber.closed:
                    del self._since[fiber]
                    warned.pop(fiber, None)
                    if fiber.abandoned:
                        self._left[fiber] = None
                elif anyio.current_time() - since > self._warn_after() and fiber not in warned:
                    warned[fiber] = None
                    _log.warning("still draining", row=fiber.path, seconds=round(anyio.current_time() - since))
            with anyio.move_on_after(1.0 if self._since or self._left else None):
                await self._changed.wait()
                self._changed = anyio.Event()
