"""Leaving: how fibers go out of sight, and who waits for whom before they close.

What an owner disposes of, what crashed and what lost its provider is withdrawn: invisible to every view in one
synchronous section, together with all it contains and all who cannot do without it. (What a commit retires leaves by
the commit.) Then each fiber closes by itself: consumers before providers, children when their parent unwinds.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import structlog

from .epochs import NEVER, Farewell
from .fiber import Fiber, current_fiber
from .states import FiberState
from .watchdog import place_of

if TYPE_CHECKING:
    from .activation import Activation
    from .runtime import Kernel
    from .services import ServiceSlot

_log = structlog.get_logger("dshd.kernel")


class Closing:
    """The sections by which fibers leave, and the questions a closing fiber asks before it unwinds."""

    __slots__ = ("_kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def withdraw(self, *fibers: Fiber, as_of: int | None = None) -> None:
        """Make fibers invisible to every view at once, with all they contain and all who cannot do without them.

        One synchronous section. What only lost a provider may open again; what is contained in something that leaves
        closes when that unwinds. What they have seen last is the present epoch, or that before a commit (`as_of`).
        """
        last = self._kernel.epoch
        epoch = last + 1
        seen = last if as_of is None else as_of
        farewell = Farewell(seen)
        gone: dict[Fiber, None] = {}
        queue = list(fibers)
        while queue:
            lost: dict[ServiceSlot, None] = {}
            top = queue.pop()
            for fiber in top.family():
                if fiber in gone or fiber.closed or fiber.state is FiberState.UNLOADING:
                    fiber.ended = fiber.ended or fiber is not top
                    continue
                gone[fiber] = None
                fiber.hidden = True
                if fiber is not top:
                    fiber.ended = fiber.awaits_parent = True
                elif fiber.awaits_parent and fiber.parent is not None and not fiber.parent.hidden:
                    fiber.released = True  # its parent may have to wait for leases; this has not
                if fiber.born <= last < fiber.retired:
                    self._kernel.epoch = epoch
                    fiber.retired = epoch
                    fiber.view = farewell
                    for table in fiber.tables:
                        table.touch(epoch)
                elif fiber.retired == NEVER and not fiber.lost:
                    fiber.lost = True
                    fiber.view = Farewell(seen, fiber.stage)
                for table in fiber.tables:  # a lease that saw it, or its stage, looks again
                    table.version += 1
                lost.update(dict.fromkeys(fiber.provided))
            if lost:
                self._kernel.services.version += 1
            for slot in lost:
                slot.announce()
                queue += [consumer for consumer in self._losers(slot) if consumer not in gone]
                queue += [consumer for consumer in self._draining_on(slot) if consumer not in gone]
        for fiber in gone:
            fiber.retire_now()
        self._kernel.tell_changes()

    def lose(self, slot: ServiceSlot, as_of: int | None = None) -> None:
        """A provider of `slot` has left: withdraw those who have none now."""
        losers = [*self._losers(slot), *self._draining_on(slot)]
        if losers:
            self.withdraw(*losers, as_of=as_of)

    def unpin(self, slot: ServiceSlot, incoming: Container[Fiber], as_of: int) -> None:
        """The provider of `slot` was replaced: what is being opened elsewhere upon the old object must open anew."""
        for consumer in list(slot.pinned):
            opening = consumer.activation is not None and not consumer.visible and not consumer.is_closing
            if opening and consumer not in incoming:
                self.withdraw(consumer, as_of=as_of)

    def _losers(self, slot: ServiceSlot) -> list[Fiber]:
        return [
            consumer
            for consumer in slot.consumers
            if consumer.activation is not None and not consumer.is_closing and slot.find(consumer.view) is None
        ]

    def _draining_on(self, slot: ServiceSlot) -> list[Fiber]:
        """Consumers that leases keep open, on a provider that is withdrawn: they must not make it wait for leases."""
        gone = [entry.owner for entry in slot.entries() if entry.owner.hidden or entry.withdrawn]
        return [c for c in slot.consumers if c.draining and not c.hidden and any(map(c.view.sees, gone))]

    def is_leased(self, fiber: Fiber) -> bool:
        """Whether a lease sees a fiber that a commit has retired."""
        born, retired = fiber.born, fiber.retired
        return not fiber.hidden and any(born <= epoch < retired for epoch in self._kernel.held)

    def is_held(self, fiber: Fiber) -> bool:
        """Whether a fiber that is to close must wait: for its parent, for leases, for consumers that close on it."""
        if fiber.abandoned:
            return False
        if fiber.awaits_parent and not fiber.released:
            return True
        if self._kernel.held and fiber.retired != NEVER and self.is_leased(fiber):
            return True
        # Those who use each other do not wait for each other: there is no order that would suit both.
        return any(not self._waits_for(consumer, fiber) for consumer in self._closing_upon(fiber))

    def _closing_upon(self, fiber: Fiber) -> list[Fiber]:
        return [consumer for slot in fiber.provided for consumer in self.closing_upon(fiber, slot)]

    def closing_upon(self, fiber: Fiber, slot: ServiceSlot, *, within: bool = False) -> list[Fiber]:
        """Consumers of a service of `fiber` that are closing and saw it last.

        Not those that contain it or, unless `within`, are contained in it: they wait, or are waited for, by structure.
        """
        return [
            consumer
            for consumer in slot.consumers
            if consumer is not fiber
            and consumer.is_closing
            and not consumer.abandoned
            and consumer.view.sees(fiber)
            and (within or fiber not in consumer.lineage())
            and consumer not in fiber.lineage()
        ]

    def release(self, child: Fiber) -> None:
        """The parent unwinds and it is the turn of `child`: let it close.

        Siblings that use its services are let go with it. They would have had their turn later, but a provider closes
        after its consumers, whatever order they were mounted in.
        """
        child.end()
        child.release()
        for fiber in self._kernel.draining:  # it may be the one who keeps this child's turn from coming to an end
            if fiber.provided:
                fiber.wake()
        for member in child.family():
            for consumer in self._closing_upon(member) if member.provided else ():
                for node in consumer.lineage():
                    if node.parent is child.parent and not node.released:
                        self.release(node)

    def untangle(self, fiber: Fiber) -> None:
        """Let go children that a parent would keep until `fiber` has closed, while `fiber` waits for them to close."""
        for consumer in self._closing_upon(fiber):
            if self._waits_for(consumer, fiber, parents=True) and not self._waits_for(consumer, fiber):
                kept = [node for node in consumer.lineage() if node.awaits_parent and not node.released]
                if kept:
                    self.release(kept[-1])

    def _waits_for(self, consumer: Fiber, fiber: Fiber, *, parents: bool = False) -> bool:
        """Whether `consumer` waits for `fiber`, through consumers of its own and, if so asked, through its parents."""
        seen: dict[Fiber, None] = {}
        queue = [consumer]
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen[node] = None
            if node is fiber:
                return True
            if node.provided:
                queue += self._closing_upon(node)
            if parents and node.awaits_parent and not node.released and node.parent is not None:
                queue.append(node.parent)
            if parents and node.state is FiberState.UNLOADING:
                queue += [kid for kid in node.kids if kid.released and not kid.closed]
        return False

    async def wait_closed(self, fiber: Fiber, life: Activation | None = None) -> None:
        """Wait until a fiber that was ended is closed, unless its end would wait for whoever asks."""
        asker = current_fiber.get()
        if asker is not None and asker.kernel is self._kernel and self._would_wait_for(fiber, asker):
            _log.warning("asked for its own end from inside; not waiting", plugin=asker.name, row=fiber.path)
            return
        await fiber.closing(life)

    def _would_wait_for(self, fiber: Fiber, asker: Fiber) -> bool:
        lineage = dict.fromkeys(asker.lineage())
        lineage.pop(self._kernel.root, None)
        if not lineage:
            return False
        seen: dict[Fiber, None] = {}
        queue = list(fiber.family())
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen[node] = None
            if node in lineage:
                return True
            for slot in node.provided:
                for consumer in slot.consumers:
                    if consumer.activation is not None and consumer.view.sees(node):
                        queue += consumer.family()
        return False

    def abandon(self, fiber: Fiber) -> None:
        """Leave the task of a fiber behind: invisible, named, with whatever can be undone without it undone."""
        activation = fiber.activation
        if activation is None or fiber.abandoned:
            return
        was_ended = fiber.ended
        place = place_of(activation.waiting_in)
        fiber.ended = True
        self.withdraw(fiber)
        fiber.abandoned = True
        activation.abandon()
        left = [effect.label for effect in reversed(list(fiber.effects)) if not effect.sever()]
        for child in list(fiber.kids):
            child.end()
            child.release()
        fiber.report(f"abandoned: ignored its cancellation while {activation.phase}", at=place, left_undone=left)
        fiber.error = activation.abandoned_error()
        self._kernel.leave_behind(fiber, f"plugin {fiber.path!r}")
        for slot in fiber.slots:
            self._kernel.wake_providers(slot)
        fiber.stirring = False
        old, fiber.state = fiber.state, FiberState.DISPOSED if was_ended else FiberState.FAILED
        fiber.tell_state(old)
