"""A stage: fibers opened beside the running ones, and the commit that publishes all of them at once.

Fibers of a stage see each other and everything that stays; nobody else sees them. A child lives in its parent's world,
so it is staged, committed, discarded and retired with it. A fiber mounted without a stage gets one of its own, which
commits by itself as soon as the body has opened: there is one way to become visible.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import BaseModel

from .epochs import Farewell, Lease
from .errors import CommitRefusedError
from .plugin import Plugin
from .tables import RegistryTable, Table

if TYPE_CHECKING:
    from .fiber import Fiber
    from .runtime import Kernel
    from .services import ServiceSlot


class Stage:
    """A candidate for the next epoch. Use it as `async with kernel.stage() as stage`: leaving it uncommitted discards.

    `incoming` are its fibers, children included; `outgoing` those its commit retires.
    """

    __slots__ = ("_event", "alone", "incoming", "kernel", "leases", "outgoing", "over", "unsettled", "vars")

    def __init__(self, kernel: Kernel, *, alone: bool = False, variables: contextvars.Context | None = None) -> None:
        self.kernel = kernel
        self.alone = alone
        self.vars = kernel.vars if variables is None else variables
        self.incoming: dict[Fiber, None] = {}
        self.outgoing: dict[Fiber, None] = {}
        self.unsettled: dict[Fiber, None] = {}
        self.leases: dict[Lease, None] = {}
        self.over = False
        self._event: anyio.Event | None = None

    # -- as a view

    def sees(self, fiber: Fiber) -> bool:
        if fiber.stage is self:
            return fiber.opened and not fiber.hidden and not self.retires(fiber)
        return fiber.born <= self.kernel.epoch < fiber.retired and not self.retires(fiber)

    def anchor(self) -> tuple[int, Stage | None]:
        return self.kernel.epoch, self

    def retires(self, fiber: Fiber) -> bool:
        """Whether the commit would retire `fiber`, by itself or with a parent."""
        if not self.outgoing:
            return False
        node: Fiber | None = fiber
        while node is not None:
            if node in self.outgoing:
                return True
            node = node.parent
        return False

    # -- filling it

    def retire(self, fiber: Fiber) -> None:
        """Let the commit retire `fiber` and what it contains. Say so before mounting what takes its place."""
        self.outgoing[fiber] = None
        self.kernel.services.version += 1  # what the stage sees is not what it saw
        for slot in fiber.provided:
            for consumer in list(slot.pinned):
                if consumer.stage is self and consumer.activation is not None and not consumer.is_closing:
                    self.kernel.closing.withdraw(consumer)  # it was opened here upon what is retired: open it anew

    def replace(
        self, fiber: Fiber, plugin: Plugin[Any] | None = None, config: BaseModel | dict[str, Any] | None = None
    ) -> Fiber:
        """Open another instance of `fiber` beside it, by default the same plugin and config; return the new one.

        Fibers pinned to a service that `fiber` provides are replaced too, and those pinned to theirs.
        """
        from .fiber import Fiber

        self._forget_replacement(fiber)
        self.retire(fiber)
        chosen = fiber.plugin if plugin is None else plugin
        parsed = chosen.parse(fiber.config if plugin is None and config is None else config)
        successor = Fiber(
            self.kernel, fiber.parent, chosen, parsed, fiber.origin, identity=fiber.identity, stage=self,
            optional=fiber.optional or not fiber.visible,
        )  # fmt: skip
        successor.replaces = fiber
        self.replace_pinned(fiber)
        return successor

    def _forget_replacement(self, fiber: Fiber) -> None:
        """What was prepared in the place of `fiber` is not wanted any more: something else is."""
        for other in [other for other in self.incoming if other.replaces is fiber]:
            for member in other.family():
                self.incoming.pop(member, None)
                self.unsettled.pop(member, None)
            other.end()

    def replace_pinned(self, fiber: Fiber) -> None:
        """Replace the fibers that keep an object of `fiber`, which is retired here."""
        for slot in list(fiber.provided):
            for consumer in list(slot.pinned):
                if consumer.visible and not self.retires(consumer):
                    self.replace(consumer)

    def progress(self, fiber: Fiber, settled: bool) -> None:
        """A fiber of the stage came to rest, or was woken."""
        if settled:
            self.unsettled.pop(fiber, None)
            if not self.unsettled and self._event is not None:
                self._event.set()
                self._event = None
        else:
            self.unsettled[fiber] = None

    async def settled(self) -> None:
        """Wait until nothing in the stage opens any more: each fiber is open, failed, or waits for what is not here.

        Bounded by the deadline that each opening has of its own.
        """
        while self.unsettled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()

    # -- ending it

    def obstacles(self) -> list[str]:
        """Why a commit would be refused just now, one sentence each."""
        return self._obstacles(self._leaving())

    def _obstacles(self, leaving: dict[Fiber, None]) -> list[str]:
        if self.over:
            return ["the stage was committed or discarded before"]
        found: list[str] = []
        for fiber in self.incoming:
            if fiber.is_loading or fiber in self.unsettled:
                found.append(f"{fiber.path!r} is still loading")
            elif fiber.parent not in self.incoming and not (fiber.is_open or _may_wait(fiber)):
                found.append(why_not_open(fiber))
            elif fiber.replaces is not None and fiber.replaces.ended:
                found.append(f"{fiber.path!r} was replaced or disposed of meanwhile")
            elif fiber.is_open and fiber.slots and (missing := fiber.missing()):
                found.append(f"{fiber.path!r} needs {missing[0].name!r}, which is removed")
        return [*found, *self._lost(leaving), *self._doubled(leaving)]

    def _leaving(self) -> dict[Fiber, None]:
        found: dict[Fiber, None] = {}
        for fiber in self.outgoing:
            for member in fiber.family() if fiber.kids else (fiber,):
                if not member.ended:
                    found[member] = None
        return found

    def _lost(self, leaving: dict[Fiber, None]) -> Iterable[str]:
        """Kept fibers that would lose a provider, or keep an object of one that is replaced."""
        for fiber in leaving:
            for slot in fiber.provided:
                if not slot.consumers:
                    continue
                if slot.find(self) is None:
                    for consumer in slot.consumers:
                        if consumer.visible and consumer not in leaving:
                            yield f"{consumer.path!r} needs {slot.name!r} of {fiber.path!r}, which is removed"
                else:
                    for consumer in slot.pinned:
                        if consumer.visible and consumer not in leaving:
                            yield f"{consumer.path!r} is pinned to {slot.name!r} of {fiber.path!r}, which is replaced"

    def _doubled(self, leaving: dict[Fiber, None]) -> Iterable[str]:
        """Slots and names that two fibers would hold at once."""
        for fiber in self.incoming:
            if not fiber.opened:
                continue
            for slot in fiber.provided:
                for rival in slot.entries():
                    if self._remains(rival.owner, fiber, leaving) and not rival.withdrawn:
                        yield f"{slot.name!r} would be provided by both {rival.owner.path!r} and {fiber.path!r}"
            for table in fiber.tables:
                if isinstance(table, RegistryTable):
                    for rival in table.rivals_of(fiber):
                        if self._remains(rival.owner, fiber, leaving):
                            yield f"{rival.label!r} would be of both {rival.owner.path!r} and {fiber.path!r}"

    def _remains(self, rival: Fiber, fiber: Fiber, leaving: dict[Fiber, None]) -> bool:
        if rival is fiber or rival in leaving or rival.ended:
            return False
        if rival.stage is self:
            return rival.opened and rival.order > fiber.order  # say it once
        return rival.visible or (rival.stage is not None and rival.stage.alone)

    def commit(self) -> int:
        """Publish every incoming fiber and retire every outgoing one; return the epoch of the new world.

        One synchronous section: it awaits nothing and runs no code of plugins. Raises `CommitRefusedError`, publishing
        nothing, when an incoming fiber is not open, a kept one would lose a provider, or a slot would have two.
        """
        leaving = self._leaving()
        reasons = self._obstacles(leaving)
        if reasons:
            raise CommitRefusedError(reasons)
        return self._publish(leaving)

    def commit_alone(self) -> None:
        """Publish the one fiber this stage was made for, with those of its children that are open by now."""
        reasons = list(self._doubled({}))
        if reasons:
            raise CommitRefusedError(reasons)
        self._publish({})

    def _publish(self, leaving: dict[Fiber, None]) -> int:
        kernel = self.kernel
        last = kernel.epoch
        epoch = last + 1
        self.over = True
        tables: set[Table] = set()
        found: dict[ServiceSlot, Fiber] = {}
        lost: dict[ServiceSlot, Fiber] = {}
        taken: dict[ServiceSlot, None] = {}
        farewell = Farewell(last)
        for fiber in leaving:
            if fiber.visible:
                fiber.retired = epoch
                fiber.view = farewell
                tables.update(fiber.tables)
                for slot, binding in fiber.provided.items():
                    if not binding.withdrawn:
                        lost[slot] = fiber
            elif fiber.activation is not None and not fiber.is_closing:  # of another stage, or opening by itself
                fiber.hidden = True
                fiber.view = Farewell(last, fiber.stage)
                taken.update(dict.fromkeys(fiber.provided))
            fiber.ended = True
            fiber.free_name()
            fiber.awaits_parent = fiber.parent in leaving
        for fiber in self.incoming:
            if fiber in leaving:  # opened in something that this very commit retires
                continue
            fiber.stage = None
            if fiber.replaces is not None:
                self._succeed(fiber.replaces, fiber)
            if fiber.opened and not fiber.hidden:
                fiber.born = epoch
                fiber.view = kernel.now
                tables.update(fiber.tables)
                for slot in fiber.provided:
                    found[slot] = fiber
            elif not fiber.is_closing:
                fiber.view = kernel.now
        for lease in self.leases:
            lease.settle(epoch)
        kernel.epoch = epoch
        for table in tables:
            table.touch(epoch)
        for fiber in leaving:
            fiber.retire_now()
        now = anyio.current_time()
        for fiber in self.incoming:
            if fiber not in leaving:
                fiber.publish_now(now)
        for slot, fiber in found.items():
            slot.taken_by(fiber)
            if slot.consumers:
                kernel.wake_consumers(slot, replaced=slot in lost)
        for slot in lost:
            if slot in found:
                kernel.closing.unpin(slot, self.incoming, last)
            else:
                slot.announce()
                kernel.closing.lose(slot, last)
        for slot in taken:
            kernel.services.version += 1
            kernel.closing.lose(slot, last)
        self.leases.clear()
        kernel.tell_changes()
        return epoch

    def _succeed(self, old: Fiber, new: Fiber) -> None:
        new.replaces = None
        new.optional = old.optional
        old.successor = new
        if old.mounted is not None:
            old.mounted.pass_to(new)

    async def discard(self) -> None:
        """Close everything in the stage, as if it had never been. What still loads is cancelled now."""
        if self.over:
            return
        self.over = True
        with anyio.CancelScope(shield=True):
            for fiber in list(self.incoming):
                fiber.end()
                if fiber.parent not in self.incoming:  # its parent is no part of this, and may have to wait for leases
                    fiber.release()
            for fiber in list(self.incoming):
                await self.kernel.closing.wait_closed(fiber)

    async def drop(self, fiber: Fiber) -> None:
        """Take one incoming fiber, with its children, out of the stage and close it."""
        members = list(fiber.family())
        fiber.end()
        fiber.release()
        await self.kernel.closing.wait_closed(fiber)
        for member in members:
            self.incoming.pop(member, None)
            self.unsettled.pop(member, None)

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.discard()


def _may_wait(fiber: Fiber) -> bool:
    """Whether a commit may do without it for now: it is optional, and nobody has disposed of it."""
    return fiber.optional and (fiber.abandoned or not fiber.ended)


def why_not_open(fiber: Fiber) -> str:
    """Why a fiber is not open, in a sentence that names it."""
    if fiber.error is not None:
        return f"{fiber.path!r} failed: {fiber.error}"
    if fiber.ended:
        return f"{fiber.path!r} was disposed of"
    missing = ", ".join(repr(slot.name) for slot in fiber.missing())
    return f"{fiber.path!r} waits for {missing}" if missing else f"{fiber.path!r} is {fiber.state.value}"
