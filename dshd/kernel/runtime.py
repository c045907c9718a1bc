"""The kernel: the tables, the clock of epochs, and the synchronous sections that move fibers in and out of sight.

Nothing here knows a plugin. `open_kernel` runs one for the length of a block and hands out the root context.
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from anyio.abc import TaskGroup

from . import internal
from .closing import Closing
from .dispatch import EventTable, deliver
from .epochs import Lease, Now
from .events import Event
from .fiber import Fiber
from .keepers import Keeper
from .keys import Realm, RegistryKey, SharedKey
from .plugin import Config, Plugin
from .registry import change_of
from .services import ServiceChange, ServiceSlot, ServiceTable
from .stage import Stage
from .states import FiberState
from .tables import RegistryTable, Table
from .tasks import SpawnedTask
from .watchdog import Backoff, Timing, Watchdog, place_of

if TYPE_CHECKING:
    from .context import Context

_log = structlog.get_logger("dshd.kernel")


class Kernel:
    """Everything one tree of fibers shares. Owners use the root context; the loader also `stage()` and the picture."""

    def __init__(
        self,
        timing: Timing,
        backoff: Backoff,
        *,
        development: bool = False,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.timing = timing
        self.backoff = backoff
        self.development = development
        self.random = random
        self.epoch = 0
        self.vars = contextvars.copy_context()
        self.now = Now(self)
        self.services = ServiceTable(self)
        self.events: dict[str, EventTable] = {}
        self.registries: dict[tuple[str, Realm], RegistryTable] = {}
        self.keepers: dict[SharedKey[Any], Keeper] = {}
        self.fibers: dict[Fiber, None] = {}
        self.rows: dict[str, dict[Fiber, None]] = {}
        self.leases: dict[Lease, None] = {}
        self.held: dict[int, int] = {}
        self.draining: dict[Fiber, None] = {}
        self.abandoned: dict[Fiber | SpawnedTask, str] = {}
        self.watchdog = Watchdog(self)
        self.closing = Closing(self)
        self.tasks: TaskGroup
        self.root: Fiber
        self._changes: dict[Table, None] = {}
        self._telling = False
        self.spying = False  # listeners of internal/dispatch are being told
        self.reading = False  # listeners of internal/get are being asked
        self._free: anyio.Event | None = None
        self.spies = self.listeners(internal.DISPATCH)
        self.readers = self.listeners(internal.GET)
        self._status = self.listeners(internal.STATUS)
        self.service_listeners = self.listeners(internal.SERVICE)

    # -- tables

    def listeners(self, event: Event) -> EventTable:
        """The table of an event, made if it is not there."""
        table = self.events.get(event.name)
        if table is None:
            table = self.events[event.name] = EventTable(self, event)
        return table

    def registry(self, key: RegistryKey[Any], realm: Realm) -> RegistryTable:
        """The table of a registry in one realm, made if it is not there."""
        table = self.registries.get((key.name, realm))
        if table is None:
            table = self.registries[key.name, realm] = RegistryTable(self, key, realm)
        return table

    def stage(self, variables: contextvars.Context | None = None) -> Stage:
        """A new stage, to be filled, committed or discarded. What it opens begins with a copy of these variables."""
        return Stage(self, variables=variables)

    def start(self, func: Callable[[], Coroutine[Any, Any, None]], name: str, variables: contextvars.Context) -> None:
        """Run a task of the kernel in context variables of its own."""
        variables.run(partial(self.tasks.start_soon, func, name=name))

    # -- who is there

    def adopt(self, fiber: Fiber) -> None:
        """A fiber was created."""
        self.fibers[fiber] = None
        if fiber.parent is not None and fiber.parent.parent is None:
            self.rows.setdefault(fiber.path, {})[fiber] = None
        created = self.events.get(internal.PLUGIN.name)
        if created is not None and created.size:
            deliver(self, created.present(), fiber)

    def forget(self, fiber: Fiber) -> None:
        """A fiber has ended."""
        self.fibers.pop(fiber, None)
        self.draining.pop(fiber, None)
        self.found_again(fiber)
        row = self.rows.get(fiber.path)
        if row is not None and row.pop(fiber, self) is None and not row:
            del self.rows[fiber.path]
        if fiber.keeper is not None:
            fiber.keeper.over()

    def has_successor(self, fiber: Fiber) -> bool:
        """Whether the row that `fiber` belongs to is visible now."""
        return any(other.visible for other in self.rows.get(fiber.row, ()))

    # -- waking

    def wake_consumers(self, slot: ServiceSlot, *, replaced: bool = False) -> None:
        """A provider of `slot` appeared: wake those who wait, and those who failed with what they had.

        Of one that was replaced only a stage that retires the old one can have been without.
        """
        for consumer in slot.consumers:
            waits = consumer.state is FiberState.PENDING and (not replaced or consumer.stage is not None)
            if waits or consumer.state is FiberState.FAILED:
                consumer.wake()

    def wake_staged(self, stage: Stage, fiber: Fiber) -> None:
        """`fiber` has opened in `stage`: wake those of the stage that wait for what it provides."""
        if fiber.provided:
            self.services.version += 1
        for slot in fiber.provided:
            for consumer in slot.consumers:
                if consumer.stage is stage and consumer.state is FiberState.PENDING:
                    consumer.wake()

    def wake_providers(self, slot: ServiceSlot) -> None:
        """A consumer has closed: wake providers that wait for that."""
        if self.draining:
            for entry in slot.entries():
                if entry.owner in self.draining:
                    entry.owner.wake()

    # -- telling

    def note_change(self, table: Table) -> None:
        self._changes[table] = None

    @contextmanager
    def one_change(self) -> Iterator[None]:
        """What changes in the block is announced together, after it."""
        telling, self._telling = self._telling, True
        try:
            yield
        finally:
            self._telling = telling
            self.tell_changes()

    def tell_changes(self) -> None:
        """Announce what has changed since the last time, once each. Listeners may change more; that is told after."""
        if self._telling or not self._changes:
            return
        self._telling = True
        try:
            while self._changes:
                table = next(iter(self._changes))
                del self._changes[table]
                if isinstance(table, ServiceSlot):
                    self._tell_service(table)
                elif isinstance(table, RegistryTable):
                    change = change_of(table)
                    if change is not None:
                        self._tell(*change)
        finally:
            self._telling = False

    def _tell_service(self, slot: ServiceSlot) -> None:
        found = slot.present()
        provider = found[0].owner if found else None
        previous, slot.known = slot.known, provider
        if provider is not previous:
            self._tell(internal.SERVICE, ServiceChange(slot.name, slot.realm, provider, previous))
        if provider is None:
            slot.retire()

    def _tell(self, event: Event, payload: object) -> None:
        table = self.events.get(event.name)
        if table is not None and table.size:
            deliver(self, table.present(), payload)

    def tell_status(self, fiber: Fiber, old: FiberState) -> None:
        if self._status.size:
            deliver(self, self._status.present(), internal.StatusChange(fiber, old, fiber.state))

    # -- what cannot be stopped

    def leave_behind(self, what: Fiber | SpawnedTask, name: str) -> None:
        if what not in self.abandoned:
            self.abandoned[what] = name
            if isinstance(what, SpawnedTask):
                what.owner.report("abandoned: ignored its cancellation", task=what.name, at=place_of(what.coroutine))

    def found_again(self, what: Fiber | SpawnedTask) -> None:
        """What had been abandoned has ended after all."""
        name = self.abandoned.pop(what, None)
        if name is not None:
            if not self.abandoned and self._free is not None:
                self._free.set()
            _log.warning("what was abandoned has ended after all", what=name)

    async def none_abandoned(self) -> None:
        """Wait until every task that was abandoned has ended after all."""
        while self.abandoned:
            self._free = anyio.Event()
            await self._free.wait()

    # -- the end

    async def stop(self, deadline: float | None = None) -> None:
        """Retire everything, wait for leases until `deadline` (`anyio.current_time()`), close; keepers last."""
        with anyio.CancelScope(deadline=float("inf") if deadline is None else deadline, shield=True):
            stage = self.stage()
            rows = [fiber for fiber in self.root.kids if fiber.keeper is None]
            for fiber in rows:
                if fiber.updating is not None:
                    fiber.updating.give_up()
                if fiber.stage is None and fiber.visible:
                    stage.retire(fiber)
                else:
                    fiber.end()
            stage.commit()
            for fiber in rows:
                await fiber.closing()
        with anyio.CancelScope(shield=True):
            await self.root.dispose()


async def _nothing(ctx: Context, config: Config) -> None:
    pass


@asynccontextmanager
async def open_kernel(
    *,
    timing: Timing | None = None,
    backoff: Backoff | None = None,
    development: bool = False,
    random: Callable[[], float] = random.random,
    stop_within: float = 60.0,
) -> AsyncIterator[Context]:
    """Run a kernel for the length of the block; gives the context of its root.

    Leaving the block, also by cancellation, retires the whole tree, waits up to `stop_within` seconds for leases and
    closes everything, keepers last. It then waits for tasks that were abandoned, naming them in the log: the process
    that wants to end in spite of them flushes and calls `os._exit`.
    """
    kernel = Kernel(timing or Timing(), backoff or Backoff(), development=development, random=random)
    ready, over = anyio.Event(), anyio.Event()

    async def hold() -> None:
        # Not the block's own task group: cancelling the block must not cancel plugins, only begin the end.
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as kernel.tasks:
                kernel.tasks.start_soon(kernel.watchdog.run, name="watchdog")
                ready.set()
                await over.wait()
                while kernel.abandoned:
                    names = list(kernel.abandoned.values())
                    _log.critical("waiting for what was abandoned; only the end of the process ends it", names=names)
                    with anyio.move_on_after(5):
                        await kernel.none_abandoned()
                kernel.tasks.cancel_scope.cancel()

    failure: Exception | None = None
    async with anyio.create_task_group() as outer:
        outer.start_soon(hold, name="kernel")
        await ready.wait()
        kernel.root = root = Fiber(kernel, None, Plugin("root", _nothing, Config), Config(), None)
        await root.settled()
        try:
            yield root.ctx
        except Exception as exc:  # raised again below, where no task group wraps it
            failure = exc
        finally:
            with anyio.CancelScope(shield=True):
                await kernel.stop(anyio.current_time() + stop_within)
                over.set()
    if failure is not None:
        raise failure
