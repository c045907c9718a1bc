"""An update of one fiber outside the loader: a stage of its own, opened beside, committed or discarded whole.

One attempt runs, the latest config wins: an update asked for while another is prepared supersedes it, and everybody who
asked gets the fiber of the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from pydantic import BaseModel

from .errors import UpdateRefusedError
from .internal import UPDATE, ConfigUpdate
from .stage import Stage

if TYPE_CHECKING:
    from .fiber import Fiber


class Update:
    """The attempt under way for one fiber."""

    __slots__ = ("_done", "_preparing", "error", "fiber", "given_up", "result", "wanted")

    def __init__(self, fiber: Fiber, config: BaseModel) -> None:
        self.fiber = fiber
        self.wanted = config
        self.result: Fiber | None = None
        self.error: BaseException | None = None
        self.given_up = False
        self._done = anyio.Event()
        self._preparing: anyio.CancelScope | None = None

    def supersede(self, config: BaseModel) -> None:
        self.wanted = config
        self._interrupt()

    def give_up(self) -> None:
        """The fiber is being disposed of."""
        self.given_up = True
        self._interrupt()

    def _interrupt(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()

    async def outcome(self) -> Fiber:
        await self._done.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    async def run(self) -> None:
        try:
            while self.result is None and self.error is None:
                await self._attempt()
        finally:
            self.fiber.updating = None
            self._done.set()

    async def _attempt(self) -> None:
        fiber, config = self.fiber, self.wanted
        async with Stage(fiber.kernel) as stage:
            with anyio.CancelScope() as self._preparing:
                successor = stage.replace(fiber, config=config)
                await stage.settled()
            self._preparing = None
            if self.given_up or fiber.ended:
                self.error = UpdateRefusedError(f"{fiber.path!r} was disposed of while its update was prepared")
            elif self.wanted is not config:
                return
            elif successor.error is not None:
                self.error = successor.error
            else:
                try:
                    stage.commit()
                    self.result = successor
                except Exception as exc:
                    self.error = exc


async def update(fiber: Fiber, config: BaseModel | dict[str, Any]) -> Fiber:
    """See `Fiber.update`."""
    if fiber.ended:
        raise UpdateRefusedError(f"{fiber.path!r} has ended, so it cannot be updated")
    if fiber.stage is not None and not fiber.stage.alone:
        raise UpdateRefusedError(f"{fiber.path!r} is staged; commit or discard its stage before updating it")
    parsed = fiber.plugin.parse(config)

    async def apply(change: ConfigUpdate) -> BaseModel:
        return change.config

    asker = fiber.parent if fiber.parent is not None else fiber
    applied: BaseModel = await asker.ctx.waterfall(UPDATE, ConfigUpdate(fiber, parsed), apply)
    parsed = fiber.plugin.parse(applied)
    fiber = fiber.latest
    if fiber.ended:
        raise UpdateRefusedError(f"{fiber.path!r} has ended, so it cannot be updated")
    running = fiber.updating
    if running is None:
        running = fiber.updating = Update(fiber, parsed)
        fiber.kernel.start(running.run, f"update {fiber.path}", fiber.kernel.vars.copy())
    else:
        running.supersede(parsed)
    return await running.outcome()
