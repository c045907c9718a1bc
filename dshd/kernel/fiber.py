"""A fiber: one mounted plugin, and one task that opens and closes everything it owns.

The task waits until every injected key has a provider it can see (PENDING), opens the body (LOADING), becomes visible
(ACTIVE), sleeps until it is stale, becomes invisible, waits for those who still use it, unwinds its effects last first
and runs the code after the `yield` (UNLOADING). Because the same task does all of that, cancel scopes and task groups
may span the `yield`. Unloading wakes a plugin, it does not cancel it; cancellation is for deadlines only.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
from pydantic import BaseModel

from .driver import drive
from .effects import Effect, Mounted, Scope
from .epochs import NEVER, View
from .errors import InactiveFiberError
from .paths import Identity, Names, Order, text_of
from .plugin import Plugin
from .stage import Stage
from .states import FiberState

if TYPE_CHECKING:
    from .activation import Activation
    from .context import Context
    from .keepers import Keeper
    from .runtime import Kernel
    from .services import Binding, ServiceSlot
    from .tables import Table
    from .tasks import SpawnedTask
    from .update import Update

_log = structlog.get_logger("dshd.kernel")

current_fiber: contextvars.ContextVar[Fiber | None] = contextvars.ContextVar("dshd_fiber", default=None)
"""The fiber in whose task, or in a task started from whose task, this code runs."""


_OPEN: Final = (FiberState.LOADING, FiberState.ACTIVE)
_RESTING: Final = (FiberState.ACTIVE, FiberState.FAILED, FiberState.DISPOSED)
_WAITING: Final = (FiberState.PENDING, FiberState.FAILED)
_RESTED: Final = (*_RESTING, FiberState.PENDING)


class Fiber:
    """One mounted plugin. What owners use is here: its state, `settled`, `update`, `retry` and `dispose`."""

    __slots__ = (
        "__weakref__", "_event", "_pulse", "abandoned", "activation", "awaits_parent", "born", "config",
        "contributions", "crashes", "ctx", "effects", "ended", "error", "hidden", "identity", "keeper", "kernel",
        "kids", "lost", "mounted", "named",
        "names", "on_publish", "on_retire", "opened", "optional", "order", "origin", "parent",
        "path", "plugin", "provided", "released", "replaces", "retired", "retry_asked", "slots", "stage", "state",
        "stirring", "successor", "tables", "updating", "vars", "view", "visible_tasks",
    )  # fmt: skip

    def __init__(
        self,
        kernel: Kernel,
        parent: Fiber | None,
        plugin: Plugin[Any],
        config: BaseModel,
        origin: Context | None,
        *,
        identity: Identity | None = None,
        stage: Stage | None = None,
        optional: bool = False,
        keeper: Keeper | None = None,
    ) -> None:
        from .context import Context

        self.kernel, self.parent, self.plugin, self.config, self.origin = kernel, parent, plugin, config, origin
        self.identity: Identity = identity or (plugin.name, 1)
        self.order: Order = (*(parent.order if parent and parent.parent else ()), self.identity)
        self.path = text_of(self.order)
        self.optional = optional
        self.keeper = keeper
        self.state = FiberState.PENDING
        self.error: BaseException | None = None
        self.crashes = 0
        # what the kernel's sections read and write
        self.born = NEVER
        self.retired = NEVER
        self.opened = False
        self.hidden = False  # disposed of rather than retired: gone for leases as well
        self.ended = False  # never to open again
        self.lost = False  # a provider went away while it was opening
        self.abandoned = False
        self.awaits_parent = False
        self.released = False
        self.retry_asked = False
        self.stirring = True
        self.stage: Stage | None = None
        self.view: View = kernel.now
        self.mounted: Mounted | None = None
        self.replaces: Fiber | None = None
        self.successor: Fiber | None = None
        self.updating: Update | None = None
        self.activation: Activation | None = None
        # what it contributes and uses
        self.effects: dict[Effect, None] = {}
        self.tables: dict[Table, int] = {}
        self.provided: dict[ServiceSlot, Binding] = {}
        self.contributions = 0
        self.kids: dict[Fiber, None] = {}
        self.names: Names | None = None  # of the kids
        self.visible_tasks: dict[SpawnedTask, None] = {}
        self.on_publish: anyio.Event | None = None
        self.on_retire: anyio.Event | None = None
        self._pulse: anyio.Event | None = None
        self._event: anyio.Event | None = None
        self.ctx = Context(self) if origin is None else origin.adopted(self)
        self.slots: tuple[ServiceSlot, ...] = tuple(
            kernel.services.slot(key.name, self.ctx.realm(key)) for key in plugin.inject
        )
        self.vars: contextvars.Context = (kernel if stage is None else stage).vars.copy()
        self.vars.run(current_fiber.set, self)
        if parent is not None:
            parent.kids[self] = None
            parent.child_names().take(self.identity)
        self.named = parent is not None
        kernel.adopt(self)
        world = stage if stage is not None else parent.stage if parent is not None else None
        if world is not None:
            self.enter(world)
        for slot in self.slots:
            slot.consumers[self] = None
        for key in plugin.pinned:
            slot = kernel.services.slot(key.name, self.ctx.realm(key))
            slot.pinned[self] = None
        kernel.start(partial(drive, self), f"fiber {self.path}", self.vars)

    # -- what it is

    @property
    def name(self) -> str:
        return self.plugin.name

    @property
    def row(self) -> str:
        """The path of the row this fiber belongs to: its own, or that of the topmost parent under the root."""
        return text_of(self.order[:1])

    @property
    def visible(self) -> bool:
        """Whether the present sees it."""
        return self.born <= self.kernel.epoch < self.retired

    @property
    def draining(self) -> bool:
        """Retired by a commit, and still open for the leases that see it."""
        return self.state is FiberState.ACTIVE and self.retired != NEVER

    @property
    def is_open(self) -> bool:
        if self.ended or self.hidden or self.retired != NEVER or not self.opened:
            return False
        return self.activation is not None and self.activation.failure is None

    @property
    def is_loading(self) -> bool:
        return self.state is FiberState.LOADING

    @property
    def is_closing(self) -> bool:
        """Invisible for good, or about to be, and not closed yet."""
        return self.activation is not None and (self.ended or self.lost or self.retired != NEVER)

    @property
    def closed(self) -> bool:
        """Whether nothing of it is open: it never opened, or it has unwound, or it was abandoned."""
        return self.activation is None or self.abandoned

    @property
    def latest(self) -> Fiber:
        """This fiber, or what updates have put in its place."""
        fiber = self
        while fiber.successor is not None:
            fiber = fiber.successor
        return fiber

    def free_name(self) -> None:
        """It is leaving: what is mounted under its name from now on is its successor."""
        if self.named and self.parent is not None:
            self.named = False
            self.parent.child_names().release(self.identity)

    def child_names(self) -> Names:
        if self.names is None:
            self.names = Names()
        return self.names

    def lineage(self) -> Iterator[Fiber]:
        """This fiber and its parents, up to the root."""
        node: Fiber | None = self
        while node is not None:
            yield node
            node = node.parent

    def family(self) -> Iterator[Fiber]:
        """This fiber and everything under it, parents first."""
        yield self
        for child in list(self.kids):
            yield from child.family()

    def missing(self) -> list[ServiceSlot]:
        """The slots it needs and finds no provider for in its view."""
        return [slot for slot in self.slots if slot.find(self.view) is None]

    def is_ready(self) -> bool:
        return all(slot.find(self.view) is not None for slot in self.slots)

    def coexists(self, challenger: Fiber) -> bool:
        """Whether this fiber, which holds something, keeps `challenger` from holding the same.

        It does if somebody would see both: the present, one stage, or what is about to publish itself. What a stage has
        prepared does not hinder the present; the commit of that stage will find the slot taken.
        """
        if self is challenger:
            return True
        if any(f.ended or f.hidden or f.retired != NEVER for f in (self, challenger)):
            return False
        mine, theirs = self.stage, challenger.stage
        if mine is theirs:
            return True
        if theirs is not None and not theirs.alone:
            return self.visible and not theirs.retires(self)
        return mine is None or mine.alone

    def check(self, what: str, scope: Scope | None = None) -> None:
        """Raise `InactiveFiberError` (or `ClosedScopeError`) if nothing may be registered here now."""
        if self.state not in _OPEN or self.abandoned:
            raise InactiveFiberError(self.path, "abandoned" if self.abandoned else self.state.value, what)
        if scope is not None:
            scope.check(what)

    def report(self, event: str, **fields: Any) -> None:
        """Log a contained fault with this plugin's name; an `error` is logged with its traceback."""
        error = fields.pop("error", None)
        _log.error(event, plugin=self.plugin.name, row=self.path, **fields, exc_info=error)

    # -- what an owner may ask

    async def settled(self) -> None:
        """Wait until nothing is under way: it is open, waits for a service, has failed or has ended.

        Raises the failure if there is one.
        """
        while self.state not in _RESTED or (self.state in _WAITING and self.stirring):
            await self._changed()
        if self.state is FiberState.FAILED and self.error is not None:
            raise self.error

    async def dispose(self) -> None:
        """End it, and whatever updates have put in its place: invisible to everybody at once, then closed.

        Waits until it is closed, but never for leases. Asked for from inside work that this would wait for (the
        fiber itself, its children, those who use its services), it starts the end and returns.
        """
        target = self.latest
        target.end()
        target.release()
        await self.kernel.closing.wait_closed(target)

    async def update(self, config: BaseModel | dict[str, Any]) -> Fiber:
        """Open it anew beside itself with another config and swap the two; return the new fiber.

        Nothing changes if the config is invalid (pydantic's `ValidationError`), a listener of `internal/update` raises,
        or the new instance fails (its error is raised). Of several updates at once the last wins, and all of them
        return its fiber.
        """
        from .update import update

        return await update(self.latest, config)

    def retry(self) -> None:
        """Let a failed fiber try again now."""
        self.retry_asked = True
        self.wake()

    # -- sections: synchronous, called by the kernel

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        self.view = stage
        stage.incoming[self] = None
        stage.progress(self, settled=False)

    def end(self) -> None:
        """Make it invisible to everybody and let it close; it never opens again."""
        if self.state is FiberState.DISPOSED:
            return
        if self.updating is not None:
            self.updating.give_up()
        self.ended = True
        self.free_name()
        if self.abandoned:
            self.enter_state(FiberState.DISPOSED)
            return
        self.kernel.closing.withdraw(self)
        if self.activation is not None and self.state is FiberState.LOADING:
            self.activation.cut()
        self.wake()

    def crash(self, error: BaseException) -> None:
        """Something of this plugin failed outside its body: close it in order, then treat it as failed."""
        if self.activation is not None:
            self.activation.crash(error)

    def wake(self) -> None:
        """Let the task look again at what it waits for."""
        self.stirring = not self.abandoned
        if self.stage is not None and self.state in _WAITING and not self.abandoned:
            self.stage.progress(self, settled=False)
        if self._pulse is not None:
            self._pulse.set()
            self._pulse = None

    def publish_now(self, now: float) -> None:
        """The commit has made it visible."""
        if self.opened and not self.hidden:
            if self.activation is not None:
                self.activation.was_active = now
            for task in self.visible_tasks:
                task.start()
            if self.on_publish is not None:
                self.on_publish.set()

    def retire_now(self) -> None:
        """It has become invisible: what acts only while visible stops."""
        for task in list(self.visible_tasks):
            task.cancel()
        if self.on_retire is not None:
            self.on_retire.set()
        if self.lost and not self.ended and self.stage is not None:
            self.stage.progress(self, settled=False)
        if self.state is FiberState.LOADING and self.activation is not None and self.ended:
            self.activation.cut()
        self.wake()

    def release(self) -> None:
        """The parent unwinds: nothing of its world needs this child any more."""
        self.released = True
        self.wake()

    def rest(self) -> None:
        """The task goes to sleep until it is woken: for now nothing is under way."""
        self.stirring = False
        if self.stage is not None:
            self.stage.progress(self, settled=True)
        self.notify()

    def enter_state(self, state: FiberState) -> None:
        if self.abandoned and state is not FiberState.DISPOSED:
            return
        old, self.state = self.state, state
        self.tell_state(old)

    def tell_state(self, old: FiberState) -> None:
        """The state has changed from `old`: tell who waits for it and who listens."""
        if self.stage is not None and self.state in _RESTING:
            self.stage.progress(self, settled=True)
        self.notify()
        if old is not self.state:
            self.kernel.tell_status(self, old)

    # -- the task

    async def pulse(self) -> None:
        """Sleep until somebody calls `wake`."""
        self._pulse = pulse = anyio.Event()
        await pulse.wait()

    async def _changed(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def notify(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def closing(self, life: Activation | None = None) -> None:
        """Wait until nothing is open of its present life, or of `life`; once it has ended, until it is over."""
        life = life or self.activation
        while not (self.state is FiberState.DISPOSED or self.abandoned):
            if not self.ended and (life is None or self.activation is not life):
                return
            await self._changed()

    def __repr__(self) -> str:
        return f"<fiber {self.path} {self.state.value}>"
