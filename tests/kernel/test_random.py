"""One random test over everything the kernel does at once.

Hypothesis draws a script: mounts, stages, commits, discards, disposals, failures, updates, lost providers, leases,
dispatches, scopes and keepers. It is run against a real kernel under concurrent readers, and what every view answers is
compared with what the test itself knows. Time does not pass: whatever is slow waits at a gate that the script opens.

A failure shrinks to a short script, printed as `script=[…]`. `DSHD_RANDOM_EXAMPLES=20000` makes a soak of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import hypothesis
import pytest
import trio
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dshd import (
    Backoff,
    Bail,
    CommitRefusedError,
    Config,
    Context,
    DshdError,
    Emit,
    Fiber,
    FiberState,
    Next,
    Parallel,
    Plugin,
    RegistryKey,
    Scope,
    Serial,
    ServiceKey,
    SharedKey,
    Stage,
    Timing,
    Waterfall,
    plugin,
)
from dshd.kernel import internal
from dshd.kernel.effects import Effect
from dshd.kernel.epochs import NEVER
from dshd.testing.kernel import running

T = TypeVar("T")

EXAMPLES = int(os.environ.get("DSHD_RANDOM_EXAMPLES", "0"))
PATIENT = Timing(load=600, unload=600, grace=600, slow=600)


class PlannedError(Exception):
    """A failure that the script asked for."""


class Setting(Config):
    number: int = 0


@dataclass(frozen=True)
class Probe:
    """A payload that collects who hears it."""

    heard: list[Instance]
    scope: Scope | None = None
    sender: Instance | None = None


def _about(probe: Probe) -> Scope | None:
    return probe.scope


KEYS = [ServiceKey["Thing"](f"key{n}") for n in range(4)]
ENTRIES = RegistryKey["Thing"]("entries", Emit[Any]("entries/change"))
FACT = Emit[Probe]("fact", subject=_about)
QUESTION = Bail[Probe, bool]("question", subject=_about)
POLICY = Bail[Probe, bool]("policy", policy=True, subject=_about)
SERIAL = Serial[Probe, None]("serial", answers=False, subject=_about)
CHAIN = Waterfall[Probe, list[int]]("chain", subject=_about)
PARALLEL = Parallel[Probe]("parallel", subject=_about)


def brief(self: Any) -> str:
    """The repr of a dataclass without the fields that have their default."""
    shown = [
        f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if getattr(self, f.name) != f.default
    ]
    return f"{type(self).__name__}({', '.join(shown)})"


# -- what the script mounts


@dataclass(frozen=True, repr=False)
class Shape:
    """What a generated plugin does. Keys are numbered; what it provides comes after all it injects: no circles."""

    injects: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    provides: tuple[int, ...] = ()
    entry: str = ""
    """`own`: an entry named after its row. `common`: one whose name others use too."""
    scoped: bool = False
    listens: bool = False
    ticks: bool = False
    """Spawns a task that acts while visible."""
    serves: bool = False
    """Spawns a task that works while open, and tells facts."""
    keeper: int | None = None
    slow: bool = False
    """Waits at a gate while it opens, and in its listeners."""
    lingers: bool = False
    """Waits at a gate while it closes."""
    fails: str = ""
    """`load`: at its first opening. `late`: in the code after the yield. `close`: in a cleanup."""
    body: str = "returns"
    children: tuple[Shape, ...] = ()

    __repr__ = brief


class Thing:
    """What an instance provides or registers: open exactly as long as the instance is."""

    def __init__(self, instance: Instance, what: str) -> None:
        self.instance = instance
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what} of {self.instance}>"


class Kept:
    """What a keeper keeps."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.open = True
        self.doomed = False


@dataclass(eq=False)
class Contribution:
    """One thing an instance put into a table, as the test remembers it."""

    kind: str
    name: str
    thing: Thing
    scope: Scope | None
    priority: int
    number: int
    effects: list[Any]
    live: bool = True


class Instance:
    """One opening of one fiber, from the first line of its body to its last cleanup."""

    def __init__(self, world: World, number: int, shape: Shape, ctx: Context) -> None:
        self.world = world
        self.number = number
        self.shape = shape
        self.ctx = ctx
        self.fiber: Fiber = ctx.fiber
        parent = self.fiber.parent
        self.parent = None if parent is None else world.current.get(parent)
        self.open = True
        self.ready = False
        self.doomed = False
        self.late_steps = 0
        self.given: list[Contribution] = []
        self.pinned: dict[int, Thing] = {}
        self.kept: Kept | None = None
        self.lost_keys: set[int] = set()
        self.excused = False

    def __repr__(self) -> str:
        return f"{self.fiber.path}.{self.number}"

    @property
    def needs(self) -> tuple[int, ...]:
        return (*self.shape.injects, *self.shape.pins)

    @property
    def in_sight(self) -> bool:
        """Whether the present sees this opening."""
        return self.fiber.visible and self.world.current.get(self.fiber) is self

    def retired_by_its_stage(self, key: int) -> bool:
        stage = self.fiber.stage
        provider = next((i for i in self.world.visible() if key in i.provides), None)
        return stage is not None and provider is not None and stage.retires(provider.fiber)

    def within_provider(self, key: int) -> bool:
        return self.parent is not None and (key in self.parent.shape.provides or self.parent.within_provider(key))

    def may_vanish(self) -> bool:
        """Whether the script did something that takes this instance out of views that see it."""
        if self.excused or (self.kept is not None and self.kept.doomed):
            return True
        if self.parent is not None and self.parent.may_vanish():
            return True
        return any(
            key in other.provides and (key in other.lost_keys or other.may_vanish())
            for key in self.needs
            for other in self.world.instances
            if other is not self
        )

    @property
    def provides(self) -> set[int]:
        return {int(c.name) for c in self.given if c.kind == "service"}

    # -- contributions

    def remember(self, kind: str, name: str, thing: Thing, scope: Scope | None, effects: list[Any]) -> None:
        number = len(self.given)
        self.given.append(Contribution(kind, name, thing, scope, 0, number, effects))

    def provide(self, key: int) -> None:
        thing = Thing(self, f"service {key}")
        if key % 2:
            effect = self.ctx.provide(KEYS[key], thing)
        else:
            effect = self.ctx.provide_each(KEYS[key], lambda consumer: thing)
        self.remember("service", str(key), thing, None, [effect])

    def add(self, name: str, scope: Scope | None) -> None:
        thing = Thing(self, f"entry {name}")
        ctx = self.ctx if scope is None else self.ctx.scoped(scope)
        self.remember("entry", name, thing, scope, [ctx.registry(ENTRIES).add(name, thing)])

    def listen(self, scope: Scope | None) -> None:
        ctx = self.ctx if scope is None else self.ctx.scoped(scope)
        effects: list[Effect] = [
            ctx.on(QUESTION, self.on_question),
            ctx.on(POLICY, self.on_question),
            ctx.on(FACT, self.on_fact),
            ctx.on(SERIAL, self.on_work),
            ctx.on(PARALLEL, self.on_work),
            ctx.on(CHAIN, self.on_chain),
        ]
        self.remember("listener", "", Thing(self, "listener"), scope, effects)

    def on_question(self, probe: Probe) -> None:
        probe.heard.append(self)

    def on_fact(self, probe: Probe) -> None:
        probe.heard.append(self)
        sender = probe.sender
        if sender is not None and sender.fiber.stage is not None:
            if sender.fiber.stage is not self.fiber.stage:
                self.world.wrong(f"{self} heard a fact of {sender}, which is staged elsewhere")
        elif not self.in_sight:
            self.world.wrong(f"{self} heard a fact although it is invisible")

    async def on_work(self, probe: Probe) -> None:
        probe.heard.append(self)
        self.serve("begins to work")
        if self.shape.slow:
            await self.world.gate(f"{self} working")
            self.serve("worked")

    async def on_chain(self, probe: Probe, next: Next[list[int]]) -> list[int]:
        await self.on_work(probe)
        rest = await next()
        self.serve("answers")
        return [self.number, *rest]

    def serve(self, what: str) -> None:
        if not self.open and not self.may_vanish():
            self.world.wrong(f"{self} {what} for a dispatch although it is closed")
        if self.open:
            self.look()

    # -- its life

    def look(self) -> None:
        """Whatever it was built on is there and open, at any time from its opening to its last cleanup."""
        for key in self.needs:
            thing = self.ctx.get(KEYS[key])
            if thing is None:
                if self.fiber.state is FiberState.UNLOADING and self.within_provider(key):
                    continue  # what its parent has provided again after mounting it is undone before it
                if self.retired_by_its_stage(key):
                    continue  # `Stage.retire` came after the mounting; until something replaces it there is none
                self.world.wrong(f"{self} sees no provider of key {key} while {self.fiber.state.value}")
            elif not thing.instance.open:
                self.world.wrong(f"{self} sees the closed {thing} while {self.fiber.state.value}")
        if self.kept is not None and not self.kept.open and not self.kept.doomed:
            self.world.wrong(f"{self} holds a keeper that is closed")

    async def set_up(self) -> None:
        world, shape, ctx = self.world, self.shape, self.ctx
        ctx.defer(self.closed)
        for key in shape.pins:
            self.pinned[key] = ctx[KEYS[key]]
        self.look()
        if shape.keeper is not None:
            self.kept = await ctx.shared(SharedKey[Kept]("kept", (shape.keeper,)), world.keeping(shape.keeper))
            self.look()
        if shape.slow:
            await world.gate(f"{self} opening")
            self.look()
        for key in shape.provides:
            self.provide(key)
        scope = world.scope if shape.scoped else None
        if shape.entry:
            self.add("common" if shape.entry == "common" else self.fiber.path, scope)
        if shape.listens:
            self.listen(scope)
        self.tell()
        for child in shape.children:
            ctx.plugin(world.plugin(child))
        if shape.ticks:
            ctx.spawn(self.act)
        if shape.serves:
            ctx.spawn(self.work, while_open=True)
        ctx.defer(self.wind_down)
        if shape.fails == "load" and world.openings[self.fiber] == 1:
            self.excused = True
            raise PlannedError(f"{self} fails at load")
        await anyio.lowlevel.checkpoint()
        self.ready = True

    async def wind_down(self) -> None:
        self.look()
        if self.in_sight:
            self.world.wrong(f"{self} closes although it is visible")
        for lease in self.world.leases:
            if lease.members is not None and self in lease.members and not self.may_vanish():
                self.world.wrong(f"{self} closes although {lease.name} sees it")
        if self.shape.lingers:
            await self.world.gate(f"{self} closing")
            self.look()
        if self.shape.fails == "close":
            raise PlannedError(f"{self} fails in a cleanup")

    def after_yield(self) -> None:
        if self.shape.fails == "late":
            raise PlannedError(f"{self} fails after the yield")

    def closed(self) -> None:
        self.look()
        self.open = False
        del self.world.current[self.fiber]

    def tell(self) -> None:
        self.ctx.emit(FACT, Probe([], None, self))

    async def act(self) -> None:
        while True:
            if not self.in_sight:  # asyncio does not cancel a task that has just been woken before its next await
                self.late_steps += 1
                if self.late_steps > 2:
                    self.world.wrong(f"{self} acts while it is invisible")
            self.look()
            self.tell()
            await self.world.turn()
            self.fall()

    async def work(self) -> None:
        while True:
            self.look()
            self.tell()
            await self.world.turn()
            self.fall()

    def fall(self) -> None:
        if self.doomed:
            raise PlannedError(f"{self} fails late")

    async def fall_when_doomed(self) -> None:
        while True:
            await self.world.turn()
            self.fall()


# -- what the test knows


@dataclass(eq=False)
class Watched:
    """A view whose answers must not change: of a lease, or of the present. `members` is `None` while a stage's."""

    name: str
    ctx: Context
    members: frozenset[Instance] | None
    stage: Stage | None = None
    manager: AbstractContextManager[Context] | None = None
    scoped: dict[Scope, Context] = field(default_factory=dict)


class World:
    """The kernel under test, and everything the script has done to it."""

    def __init__(self, root: Context, backend: str) -> None:
        self.root = root
        self.kernel = root.kernel
        self.backend = backend
        self.problems: list[str] = []
        self.instances: list[Instance] = []
        self.current: dict[Fiber, Instance] = {}
        self.openings: dict[Fiber, int] = {}
        self.keepers: list[Kept] = []
        self.stages: list[Stage] = []
        self.leases: list[Watched] = []
        self.scope = Scope("scope")
        self.gates: dict[anyio.Event, str] = {}
        self.free = False
        self.over = False
        self.jobs: dict[str, int] = {}
        self.turnstile = anyio.Event()
        self.present = Watched("the present", root, None)
        self.busy = False

    def wrong(self, problem: str) -> None:
        self.problems.append(problem)

    def verify(self, done: object) -> None:
        if self.problems:
            raise AssertionError("\n".join([f"after {done}:", *list(dict.fromkeys(self.problems))[:4]]))

    # -- plugins

    def plugin(self, shape: Shape) -> Plugin[Setting]:
        def born(ctx: Context) -> Instance:
            self.openings[ctx.fiber] = self.openings.get(ctx.fiber, 0) + 1
            me = self.current[ctx.fiber] = Instance(self, len(self.instances) + 1, shape, ctx)
            self.instances.append(me)
            return me

        async def returns(ctx: Context, config: Setting) -> None:
            await born(ctx).set_up()

        async def yields(ctx: Context, config: Setting) -> AsyncIterator[None]:
            me = born(ctx)
            await me.set_up()
            yield
            me.after_yield()

        async def groups(ctx: Context, config: Setting) -> AsyncIterator[None]:
            me = born(ctx)
            async with anyio.create_task_group() as tasks:
                await me.set_up()
                tasks.start_soon(me.fall_when_doomed)
                yield
                tasks.cancel_scope.cancel()
            me.after_yield()

        body: Any = {"returns": returns, "yields": yields, "groups": groups}[shape.body]
        make = plugin(
            "row",
            config=Setting,
            inject=[KEYS[n] for n in shape.injects],
            pinned=[KEYS[n] for n in shape.pins],
            provides=[KEYS[n] for n in shape.provides],
        )
        return make(body)

    def keeping(self, number: int) -> Callable[[Context], AsyncIterator[Kept]]:
        async def keep(ctx: Context) -> AsyncIterator[Kept]:
            if any(other.open and other.number == number for other in self.keepers):
                self.wrong(f"keeper {number} is opened twice")
            kept = Kept(number)
            self.keepers.append(kept)

            async def fall_when_doomed() -> None:
                while True:
                    await self.turn()
                    if kept.doomed:
                        raise PlannedError(f"keeper {number} fails")

            ctx.spawn(fall_when_doomed)
            try:
                await anyio.lowlevel.checkpoint()
                yield kept
            finally:
                if not kept.doomed:
                    for holder in self.current.values():
                        if holder.kept is kept and not holder.fiber.abandoned:
                            self.wrong(f"keeper {number} closes although {holder} holds it")
                kept.open = False

        return keep

    # -- time

    async def gate(self, label: str) -> None:
        if self.free:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        self.gates[event] = label
        try:
            await event.wait()
        finally:
            self.gates.pop(event, None)

    async def turn(self) -> None:
        await self.turnstile.wait()

    async def tick(self) -> None:
        """Let readers and tasks do one step."""
        turnstile, self.turnstile = self.turnstile, anyio.Event()
        turnstile.set()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()

    async def idle(self) -> None:
        """Open every gate and wait until every task waits for something."""
        self.free = True
        for gate in list(self.gates):
            gate.set()
        if self.backend == "trio":
            with trio.move_on_after(30) as limit:
                await trio.testing.wait_all_tasks_blocked()
            quiet = not limit.cancelled_caught
        else:
            ready: Any = vars(asyncio.get_running_loop())["_ready"]
            calm = 0
            for _ in range(20_000):
                await anyio.lowlevel.checkpoint()
                calm = 0 if ready else calm + 1
                if calm == 3:
                    break
            quiet = calm == 3
        if not quiet:
            self.wrong("the loop never comes to rest")
        self.free = False

    # -- answers

    def visible(self) -> frozenset[Instance]:
        return frozenset(i for i in self.current.values() if i.fiber.visible)

    def seen_by(self, ctx: Context) -> frozenset[Instance]:
        return frozenset(i for i in self.current.values() if ctx.view.sees(i.fiber))

    def members(self, watched: Watched) -> frozenset[Instance]:
        """Who this view should see: what it saw at first, without what was disposed of since."""
        if watched is self.present:
            return self.visible()
        if watched.members is None:
            return self.seen_by(watched.ctx)
        stay = []
        for member in watched.members:
            if member.open and self.current.get(member.fiber) is member and not member.fiber.hidden:
                stay.append(member)
            elif not member.may_vanish():
                self.wrong(f"{watched.name} lost sight of {member}, which nobody disposed of")
        return frozenset(stay)

    def examine(self, watched: Watched) -> None:
        """Compare every answer of a view with what the test knows."""
        members = self.members(watched)
        given = sorted(
            ((c.priority, i.fiber.order, c.number, c) for i in members for c in i.given if c.live),
            key=lambda item: item[:3],
        )
        ordered = [item[3] for item in given]
        for member in members:
            if not member.open:
                self.wrong(f"{watched.name} sees the closed {member}")
        for number, key in enumerate(KEYS):
            found = [c.thing for c in ordered if c.kind == "service" and c.name == str(number)]
            if len(found) > 1 and watched.members is None and watched is not self.present:
                continue  # a stage beside which another provider has appeared; its commit will be refused
            thing = watched.ctx.get(key)
            self.compare(watched, f"key {number}", [thing], found[:2] or [None])
        for scope in (None, self.scope):
            self.examine_scope(watched, members, ordered, scope)

    def examine_scope(
        self, watched: Watched, members: frozenset[Instance], ordered: list[Contribution], scope: Scope | None
    ) -> None:
        ctx = watched.ctx
        if scope is not None:
            ctx = watched.scoped.setdefault(scope, ctx.scoped(scope))
        relevant = [c for c in ordered if c.scope is None or c.scope is scope]
        entries = [c for c in relevant if c.kind == "entry"]
        shadowed = {c.name for c in entries if c.scope is not None}
        wanted = [(c.name, c.thing) for c in entries if c.scope is not None or c.name not in shadowed]
        if watched.members is not None or watched is self.present:  # two stages may prepare entries of one name
            self.compare(watched, f"entries for {scope}", list(ctx.registry(ENTRIES).items()), wanted)
        listeners = [c.thing.instance for c in relevant if c.kind == "listener"]
        probe = Probe([], scope)
        ctx.bail(QUESTION, probe)
        if watched.members is None and watched is not self.present:
            # Of a row that was replaced outside it meanwhile a stage sees two, of equal rank; it will be refused.
            probe.heard.sort(key=id)
            listeners.sort(key=id)
        self.compare(watched, f"listeners for {scope}", probe.heard, listeners)
        if watched is self.present:
            told = Probe([], scope)
            ctx.emit(FACT, told)
            self.compare(watched, f"hearers for {scope}", told.heard, listeners)
        elif watched.members is not None:
            self.examine_policy(watched, members, scope)

    def examine_policy(self, watched: Watched, members: frozenset[Instance], scope: Scope | None) -> None:
        """Policy is asked of everything visible now, and of what the lease saw that has no successor now."""
        now = self.visible()
        rows = {i.fiber.row for i in now if i.fiber.parent is self.root.fiber}
        asked = [
            (i.fiber.order, c.number, i)
            for i in now | {m for m in members if m.fiber.row not in rows}
            for c in i.given
            if c.live and c.kind == "listener" and (c.scope is None or c.scope is scope)
        ]
        probe = Probe([], scope)
        (watched.ctx if scope is None else watched.scoped[scope]).bail(POLICY, probe)
        self.compare(watched, f"policy for {scope}", probe.heard, [a[2] for a in sorted(asked, key=lambda a: a[:2])])

    def compare(self, watched: Watched, what: str, found: Sequence[object], wanted: Sequence[object]) -> None:
        if found != wanted:
            self.wrong(f"{watched.name}, {what}: sees {found}, should see {wanted}")

    def observe(self) -> None:
        """What holds at every moment, also in the middle of anything."""
        if self.busy:
            return
        self.busy = True
        try:
            self.examine(self.present)
            rows: dict[str, Instance] = {}
            for instance in self.visible():
                self.observe_visible(instance)
                other = rows.setdefault(instance.fiber.path, instance)
                if other is not instance:
                    self.wrong(f"{other} and {instance} of one row are visible together")
            for lease in self.leases:
                self.examine(lease)
        finally:
            self.busy = False

    def observe_visible(self, instance: Instance) -> None:
        fiber = instance.fiber
        if not instance.ready:
            self.wrong(f"{instance} is visible but not ready")
        parent = fiber.parent
        if parent is not None and not parent.visible:
            self.wrong(f"{instance} is visible, its parent is not")
        instance.look()
        for key, thing in instance.pinned.items():
            found = self.root.get(KEYS[key])
            if found is not thing:
                self.wrong(f"{instance} is pinned to {thing}, but the present has {found}")

    # -- at rest

    async def rest(self) -> None:
        await self.idle()
        self.observe()
        for name, count in self.jobs.items():
            if count:
                self.wrong(f"at rest, {name} is still under way")
        for fiber in self.kernel.fibers:
            self.examine_resting(fiber)
        tables: Iterable[Any] = [
            *self.kernel.events.values(),
            *self.kernel.registries.values(),
            *self.kernel.services.slots(),
        ]
        for table in tables:
            for entry in table.entries():
                if entry.owner not in self.kernel.fibers:
                    self.wrong(f"at rest, a table holds {entry} of a fiber that has ended")
        for slot in self.kernel.services.slots():
            for consumer in (*slot.consumers, *slot.pinned):
                if consumer not in self.kernel.fibers:
                    self.wrong(f"at rest, {slot.name} knows {consumer}, which has ended")
        for key, keeper in self.kernel.keepers.items():
            if not keeper.holders:
                self.wrong(f"at rest, {key} is kept for nobody")

    def examine_resting(self, fiber: Fiber) -> None:
        state = fiber.state
        if fiber is self.root.fiber:
            return
        if state in (FiberState.LOADING, FiberState.UNLOADING):
            self.wrong(f"at rest, {fiber} is {state.value}")
        elif state is FiberState.PENDING and (fiber.ended or not fiber.missing()):
            self.wrong(f"at rest, {fiber} is pending without a reason")
        elif state is FiberState.ACTIVE and (fiber.ended or fiber.hidden or fiber.retired != NEVER):
            if not self.may_drain(fiber):
                self.wrong(f"at rest, {fiber} is still open although nobody uses it")
        elif state is FiberState.ACTIVE and not fiber.visible and fiber.stage is None:
            self.wrong(f"at rest, {fiber} is open but invisible")
        elif fiber.visible and fiber.keeper is None and not (fiber.mounted is not None and fiber.mounted.live):
            self.wrong(f"at rest, {fiber} is visible but nobody's effect")
        elif state is FiberState.FAILED and fiber.error is None:
            self.wrong(f"at rest, {fiber} has failed without an error")
        if (fiber.activation is None) is (state is FiberState.ACTIVE):
            self.wrong(f"at rest, {fiber} is {state.value} with activation {fiber.activation}")

    def may_drain(self, fiber: Fiber) -> bool:
        """Whether a lease keeps a retired fiber open, itself or through what was opened upon it."""
        if fiber.awaits_parent and fiber.parent is not None and self.may_drain(fiber.parent):
            return True
        if fiber.hidden:
            return False
        if any(lease.sees(fiber) for lease in self.kernel.leases):
            return True
        return any(
            other is not fiber and slot in other.slots and other.retired != NEVER and self.may_drain(other)
            for slot in fiber.provided
            for other in self.kernel.fibers
        )

    async def close(self) -> None:
        """Take everything away again: nothing may be left."""
        self.over = True
        while self.leases:
            self.let_go(self.leases[0])
        for stage in self.stages:
            self.job("the last discard", stage.discard)
        for fiber in list(self.root.fiber.kids):
            if fiber.keeper is None:
                self.excuse(fiber)
                self.job(f"the last disposal of {fiber.path}", fiber.dispose)
        self.job("the end of the scope", partial(CloseScope().close, self, self.scope))
        await self.tick()
        await self.rest()
        kernel = self.kernel
        left: dict[str, object] = {
            "fibers": [f for f in kernel.fibers if f is not self.root.fiber],
            "effects of the root": [e for e in self.root.fiber.effects if e not in self.own],
            "rows": list(kernel.rows),
            "leases": list(kernel.leases),
            "held epochs": list(kernel.held),
            "draining fibers": list(kernel.draining),
            "keepers": list(kernel.keepers),
            "open keepers": [kept.number for kept in self.keepers if kept.open],
            "abandoned": list(kernel.abandoned.values()),
            "registries": [key for key, table in kernel.registries.items() if table.size],
            "slots": [slot.name for slot in kernel.services.slots()],
            "listeners": [e for t in kernel.events.values() for e in t.entries() if e.owner is not self.root.fiber],
            "instances": list(self.current),
            "gates": list(self.gates.values()),
        }
        for what, things in left.items():
            if things:
                self.wrong(f"in the end there are still {what}: {things}")

    own: tuple[Effect, ...] = ()

    # -- doing

    def job(self, name: str, func: Callable[[], Awaitable[object]]) -> None:
        """Run something that may take its time beside the script."""
        self.jobs[name] = self.jobs.get(name, 0) + 1

        async def run() -> None:
            try:
                await func()
            except (DshdError, PlannedError):
                pass
            except ExceptionGroup as group:
                if group.split((DshdError, PlannedError))[1] is not None:
                    self.wrong(f"{name} raised {group!r}")
            except Exception as exc:
                self.wrong(f"{name} raised {exc!r}")
            finally:
                self.jobs[name] -= 1

        self.tasks.start_soon(run, name=name)

    tasks: anyio.abc.TaskGroup

    def excuse(self, fiber: Fiber) -> None:
        """The script takes this fiber out of every view."""
        for member in fiber.latest.family():
            instance = self.current.get(member)
            if instance is not None:
                instance.excused = True

    def fibers(self) -> list[Fiber]:
        return [f for f in self.kernel.fibers if f.parent is not None and f.keeper is None]

    def live(self) -> list[Instance]:
        return [i for i in self.current.values() if i.in_sight and i.ready and not i.doomed]

    def lease(self, ctx: Context, name: str) -> Watched:
        manager = ctx.leased(name)
        view = manager.__enter__()
        stage = ctx.view.anchor()[1]
        members = None if stage is not None else self.seen_by(view)
        lease = Watched(name, view, members, stage, manager)
        self.leases.append(lease)
        return lease

    def let_go(self, lease: Watched) -> None:
        self.leases.remove(lease)
        assert lease.manager is not None
        lease.manager.__exit__(None, None, None)

    async def read(self, number: int) -> None:
        """A reader: leases of various lengths, one inside the other, examined at every step."""
        while not self.over:
            lease = self.lease(self.root, f"reader {number}")
            inner = self.lease(lease.ctx, f"reader {number} within")
            for _ in range(2 * number):
                await self.turn()
                self.observe()
            for held in (lease, inner):
                if held in self.leases:  # not so at the end
                    self.let_go(held)
            await self.turn()


def pick(things: Sequence[T], index: int) -> T | None:
    return things[index % len(things)] if things else None


# -- the script


@dataclass(frozen=True, repr=False)
class Mount:
    """Mount a plugin under the root, or at run time under something live; in a stage, or by itself."""

    shape: Shape
    under: int | None = None
    stage: int | None = None
    optional: bool = False

    __repr__ = brief

    async def do(self, world: World) -> None:
        parent = None if self.under is None else pick(world.live(), self.under)
        stage = None if self.stage is None else pick(world.stages, self.stage)
        ctx = world.root if parent is None else parent.ctx
        ctx.plugin(world.plugin(self.shape), stage=stage, optional=self.optional)


@dataclass(frozen=True, repr=False)
class Open:
    """A new stage."""

    __repr__ = brief

    async def do(self, world: World) -> None:
        if len(world.stages) < 3:
            world.stages.append(world.kernel.stage())


@dataclass(frozen=True, repr=False)
class Replace:
    """Stage another instance of something, of the same shape or another."""

    stage: int
    fiber: int
    shape: Shape | None = None

    __repr__ = brief

    async def do(self, world: World) -> None:
        stage, fiber = pick(world.stages, self.stage), pick([i.fiber for i in world.live()], self.fiber)
        if stage is not None and fiber is not None:
            if self.shape is None:
                stage.replace(fiber, config={"number": fiber.config.number + 1})  # type: ignore[attr-defined]
            else:
                stage.replace(fiber, world.plugin(self.shape))


@dataclass(frozen=True, repr=False)
class Retire:
    """Let a stage retire something."""

    stage: int
    fiber: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        stage, fiber = pick(world.stages, self.stage), pick(world.fibers(), self.fiber)
        if stage is not None and fiber is not None and fiber.stage is not stage:
            stage.retire(fiber)


@dataclass(frozen=True, repr=False)
class Drop:
    """Take one incoming fiber out of a stage."""

    stage: int
    fiber: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        stage = pick(world.stages, self.stage)
        fiber = None if stage is None else pick(list(stage.incoming), self.fiber)
        if stage is not None and fiber is not None:
            world.excuse(fiber)
            world.job(f"dropping {fiber.path}", partial(stage.drop, fiber))


@dataclass(frozen=True, repr=False)
class Commit:
    """Commit a stage, mostly once it has settled. Refused, it changes nothing; else it changes exactly what it says."""

    stage: int
    settled: bool = True

    __repr__ = brief

    async def do(self, world: World) -> None:
        stage = pick(world.stages, self.stage)
        if stage is None:
            return
        if self.settled:
            await world.idle()
        world.observe()
        before = world.visible()
        epoch = world.kernel.epoch
        staged = [lease for lease in world.leases if lease.stage is stage]
        leaving = {member for fiber in stage.outgoing for member in fiber.family()}
        coming = {
            world.current[fiber]
            for fiber in stage.incoming
            if fiber.opened and not fiber.hidden and fiber not in leaving and fiber in world.current
        }
        views = {lease: world.seen_by(lease.ctx) for lease in staged}
        try:
            stage.commit()
        except CommitRefusedError:
            if (world.kernel.epoch, world.visible()) != (epoch, before):
                world.wrong("a refused commit changed something")
        else:
            world.stages.remove(stage)
            after = frozenset(i for i in before if i.fiber not in leaving) | coming
            if world.visible() != after:
                world.wrong(f"a commit made visible {set(world.visible())} instead of {set(after)}")
            for lease in staged:
                lease.stage = None
                lease.members = views[lease]
        world.observe()


@dataclass(frozen=True, repr=False)
class Discard:
    stage: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        stage = pick(world.stages, self.stage)
        if stage is not None:
            world.stages.remove(stage)
            for fiber in stage.incoming:
                world.excuse(fiber)
            for lease in [lease for lease in world.leases if lease.stage is stage]:
                world.let_go(lease)
            staged = list(stage.incoming)
            world.job("a discard", stage.discard)
            await anyio.lowlevel.checkpoint()
            if any(fiber.visible for fiber in staged):
                world.wrong("a discard published something")


@dataclass(frozen=True, repr=False)
class Dispose:
    fiber: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        fiber = pick(world.fibers(), self.fiber)
        if fiber is not None:
            world.excuse(fiber)
            target = fiber.latest
            world.job(f"disposing of {target.path}", fiber.dispose)


@dataclass(frozen=True, repr=False)
class Update:
    fiber: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        fiber = pick(world.fibers(), self.fiber)
        if fiber is not None:
            number = fiber.config.number + 1  # type: ignore[attr-defined]
            world.job(f"updating {fiber.path}", partial(fiber.update, {"number": number}))


@dataclass(frozen=True, repr=False)
class Retry:
    fiber: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        failed = [fiber for fiber in world.fibers() if fiber.state is FiberState.FAILED]
        fiber = pick(failed, self.fiber)
        if fiber is not None:
            fiber.retry()


@dataclass(frozen=True, repr=False)
class Crash:
    """A task of something live, or of a staged one, fails at its next step."""

    instance: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        shapes = [i for i in world.current.values() if i.shape.ticks or i.shape.serves or i.shape.body == "groups"]
        instance = pick(shapes, self.instance)
        if instance is not None:
            instance.doomed = instance.excused = True


@dataclass(frozen=True, repr=False)
class CrashKeeper:
    number: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        for kept in world.keepers:
            if kept.number == self.number and kept.open:
                kept.doomed = True
        for instance in world.current.values():
            if instance.shape.keeper == self.number:
                instance.excused = True


@dataclass(frozen=True, repr=False)
class Withdraw:
    """Undo one contribution at run time. A service is lost to its consumers; the instance stays."""

    instance: int
    which: int = 0

    __repr__ = brief

    async def do(self, world: World) -> None:
        instance = pick(world.live(), self.instance)
        given = None if instance is None else pick([c for c in instance.given if c.live], self.which)
        if instance is not None and given is not None:
            world.job(f"withdrawing {given.thing}", partial(self.undo, given))

    async def undo(self, given: Contribution) -> None:
        given.live = False
        if given.kind == "service":
            given.thing.instance.lost_keys.add(int(given.name))
        for effect in given.effects:
            await effect.dispose()


@dataclass(frozen=True, repr=False)
class Contribute:
    """Contribute something at run time; offer again a service that was withdrawn."""

    instance: int
    kind: str = "entry"
    scoped: bool = False

    __repr__ = brief

    async def do(self, world: World) -> None:
        instance = pick(world.live(), self.instance)
        if instance is None:
            return
        scope = world.scope if self.scoped else None
        try:
            if self.kind == "entry":
                instance.add(f"more {instance.fiber.path}", scope)
            elif self.kind == "listener":
                instance.listen(scope)
            else:
                live = {c.name for c in instance.given if c.live}
                for key in instance.shape.provides:
                    if str(key) not in live:
                        world.busy = True  # told of before the test knows it
                        instance.provide(key)
        except DshdError:
            pass
        finally:
            world.busy = False


@dataclass(frozen=True, repr=False)
class Swap:
    """Put another value in the place of an entry: seen by all at once, leases included."""

    instance: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        instance = pick(world.live(), self.instance)
        for given in instance.given if instance is not None else ():
            if given.kind == "entry" and given.live:
                given.thing = Thing(given.thing.instance, f"{given.thing.what}'")
                given.effects[0].set(given.thing)


@dataclass(frozen=True, repr=False)
class CloseScope:
    __repr__ = brief

    async def do(self, world: World) -> None:
        scope, world.scope = world.scope, Scope("scope")
        world.job("closing a scope", partial(self.close, world, scope))

    async def close(self, world: World, scope: Scope) -> None:
        for instance in world.instances:
            for given in instance.given:
                if given.scope is scope:
                    given.live = False
        await scope.close()


@dataclass(frozen=True, repr=False)
class Lease:
    """Lease what the root sees, or what an instance does (perhaps in a stage), or what another lease does."""

    of: str = "root"
    index: int = 0

    __repr__ = brief

    async def do(self, world: World) -> None:
        ctx: Context | None = world.root
        if self.of == "instance":
            instance = pick([i for i in world.current.values() if not i.fiber.is_closing], self.index)
            ctx = None if instance is None else instance.ctx
        elif self.of == "lease":
            lease = pick(world.leases, self.index)
            ctx = None if lease is None else lease.ctx
        if ctx is not None and len(world.leases) < 12:
            stage = ctx.view.anchor()[1]
            if stage is None or stage in world.stages:
                world.lease(ctx, f"lease {len(world.leases)} of {self.of}")


@dataclass(frozen=True, repr=False)
class LetGo:
    lease: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        lease = pick([lease for lease in world.leases if not lease.name.startswith("reader")], self.lease)
        if lease is not None:
            world.let_go(lease)


@dataclass(frozen=True, repr=False)
class Ask:
    """An awaited dispatch of the root's, of an instance's (perhaps staged), or under a lease."""

    how: str = "serial"
    of: str = "root"
    index: int = 0
    scoped: bool = False

    __repr__ = brief

    async def do(self, world: World) -> None:
        ctx: Context | None = world.root
        if self.of == "instance":
            asking = [i for i in world.current.values() if i.ready and not i.fiber.is_closing]
            instance = pick(asking, self.index)
            ctx = None if instance is None else instance.ctx
        elif self.of == "lease":
            lease = pick([lease for lease in world.leases if not lease.name.startswith("reader")], self.index)
            ctx = None if lease is None else lease.ctx
        if ctx is not None:
            world.job(f"a {self.how} dispatch", partial(self.ask, world, ctx))

    async def ask(self, world: World, ctx: Context) -> None:
        scope = world.scope if self.scoped else None
        probe = Probe([], scope)
        expected = Probe([], scope)
        if self.how == "parallel":
            await ctx.parallel(PARALLEL, probe)
            return
        ctx.bail(QUESTION, expected)
        if self.how == "serial":
            await ctx.serial(SERIAL, probe)
        else:
            numbers = await ctx.waterfall(CHAIN, probe, self.nobody)
            if numbers != [i.number for i in expected.heard]:
                world.wrong(f"a waterfall answered {numbers}, should have asked {expected.heard}")
        if probe.heard != expected.heard:
            world.wrong(f"a dispatch asked {probe.heard} instead of {expected.heard}")

    @staticmethod
    async def nobody(probe: Probe) -> list[int]:
        return []


@dataclass(frozen=True, repr=False)
class Pass:
    """Open one of the gates that something slow waits at."""

    gate: int

    __repr__ = brief

    async def do(self, world: World) -> None:
        gate = pick(list(world.gates), self.gate)
        if gate is not None:
            gate.set()


@dataclass(frozen=True, repr=False)
class Turns:
    """Let everything that can run do so for some turns of the loop."""

    count: int = 1

    __repr__ = brief

    async def do(self, world: World) -> None:
        for _ in range(self.count):
            await world.tick()


@dataclass(frozen=True, repr=False)
class Rest:
    """Open every gate, wait until nothing moves, and look at everything."""

    __repr__ = brief

    async def do(self, world: World) -> None:
        await world.rest()


Operation: TypeAlias = (
    Mount | Open | Replace | Retire | Drop | Commit | Discard | Dispose | Update | Retry | Crash | CrashKeeper
    | Withdraw | Contribute | Swap | CloseScope | Lease | LetGo | Ask | Pass | Turns | Rest
)  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn, depth: int = 1) -> Shape:
    keys = draw(st.lists(st.integers(0, 3), max_size=4, unique=True).map(sorted))
    cut = draw(st.integers(0, min(2, len(keys))))
    needed = keys[:cut]
    pins = tuple(key for key in needed if draw(st.booleans()))
    rare = st.sampled_from([False, False, False, True])
    children: list[Shape] = []
    if depth and draw(rare):
        children = draw(st.lists(shapes(depth - 1), min_size=1, max_size=2))
    return Shape(
        injects=tuple(key for key in needed if key not in pins),
        pins=pins,
        provides=tuple(keys[cut:][:2]),
        entry=draw(st.sampled_from(["", "own", "own", "common"])),
        scoped=draw(rare),
        listens=draw(st.booleans()),
        ticks=draw(rare),
        serves=draw(rare),
        keeper=draw(st.sampled_from([None, None, 0, 1])),
        slow=draw(rare),
        lingers=draw(rare),
        fails=draw(st.sampled_from(["", "", "", "", "", "load", "late", "close"])),
        body=draw(st.sampled_from(["returns", "yields", "groups"])),
        children=tuple(children),
    )


INDEX = st.integers(0, 7)
MOUNTS = st.builds(Mount, shapes(), st.sampled_from([None, None, None, 0, 1, 2]), st.sampled_from([None, None, 0, 1]))
OPTIONAL = st.builds(Mount, shapes(), st.none(), INDEX, st.just(True))
REPLACEMENTS = st.builds(Replace, INDEX, INDEX, st.one_of(st.none(), st.none(), shapes()))
OPERATIONS: list[st.SearchStrategy[Operation]] = [
    MOUNTS,
    MOUNTS,
    MOUNTS,
    st.builds(Turns, st.integers(1, 4)),
    st.builds(Turns, st.integers(1, 4)),
    st.builds(Rest),
    st.builds(Open),
    OPTIONAL,
    REPLACEMENTS,
    REPLACEMENTS,
    st.builds(Retire, INDEX, INDEX),
    st.builds(Drop, INDEX, INDEX),
    st.builds(Commit, INDEX, st.sampled_from([True, True, True, False])),
    st.builds(Commit, INDEX, st.sampled_from([True, True, True, False])),
    st.builds(Discard, INDEX),
    st.builds(Dispose, INDEX),
    st.builds(Update, INDEX),
    st.builds(Retry, INDEX),
    st.builds(Crash, INDEX),
    st.builds(CrashKeeper, st.integers(0, 1)),
    st.builds(Withdraw, INDEX, INDEX),
    st.builds(Contribute, INDEX, st.sampled_from(["entry", "listener", "service", "service"]), st.booleans()),
    st.builds(Swap, INDEX),
    st.builds(CloseScope),
    st.builds(Lease, st.sampled_from(["root", "root", "instance", "lease"]), INDEX),
    st.builds(LetGo, INDEX),
    st.builds(
        Ask,
        st.sampled_from(["serial", "waterfall", "parallel"]),
        st.sampled_from(["root", "instance", "lease"]),
        INDEX,
        st.booleans(),
    ),
    st.builds(Pass, INDEX),
]
CHAPTERS = st.lists(st.one_of(OPERATIONS), max_size=20)
SCRIPTS = st.tuples(*[CHAPTERS] * 8).map(lambda chapters: [operation for chapter in chapters for operation in chapter])
"""Some forty operations each; a chapter may shrink to nothing, where one long list would seldom be long at all."""


async def play(script: list[Operation], backend: str, impatient: bool) -> None:
    """Run a script. Of what crashes, the first few are re-opened at once if `impatient`, else none without a retry."""
    at_once = iter([1.0] * 5 if impatient else [])
    backoff = Backoff(initial=1e9, maximum=1e9, jitter=1.0)
    async with running(timing=PATIENT, backoff=backoff, random=lambda: next(at_once, 0.0)) as root:
        world = World(root, backend)
        world.own = (
            root.on(internal.STATUS, lambda change: world.observe()),
            root.on(internal.SERVICE, lambda change: world.observe()),
        )
        try:
            async with anyio.create_task_group() as tasks:
                world.tasks = tasks
                for number in range(1, 4):
                    tasks.start_soon(world.read, number)
                try:
                    await anyio.lowlevel.checkpoint()
                    for number, operation in enumerate(script, 1):
                        await operation.do(world)
                        world.observe()
                        world.verify(f"step {number}, {operation}")
                    await world.close()
                    world.verify("the end")
                finally:
                    world.over = True
                    tasks.cancel_scope.cancel()
        except BaseException:
            free(world)
            raise


def free(world: World) -> None:
    """Something is wrong already: let go of whatever would keep the kernel from ending."""
    world.free = True
    for gate in list(world.gates):
        gate.set()
    while world.leases:
        world.let_go(world.leases[0])
    for fiber in world.kernel.fibers:
        if fiber is not world.root.fiber:
            fiber.abandoned = True
            if fiber.activation is not None:
                fiber.activation._limit.cancel()
            fiber.wake()
            fiber.notify()


EXPECTED = (DshdError, PlannedError)


def run(script: list[Operation], backend: str, impatient: bool) -> None:
    if backend == "trio":
        scheduler: Any = trio._core._run
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
        scheduler._r.seed(len(script))
    with capture_logs() as logs:
        try:
            anyio.run(play, script, backend, impatient, backend=backend)
        except BaseException as error:
            cause = leaf(error)
            raise AssertionError(f"{cause}\non {backend}, impatient={impatient}, by\n{told(script)}") from cause
    for entry in logs:
        reported: BaseException | None = entry.get("exc_info")
        if entry["log_level"] == "error" and not isinstance(reported, EXPECTED):
            raise AssertionError(f"the kernel reported {entry}\n{told(script)}") from reported


def told(script: list[Operation]) -> str:
    return "\n".join(f"  {number}. {operation}" for number, operation in enumerate(script, 1))


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def check(backend: str, examples: int) -> None:
    @hypothesis.settings(
        max_examples=EXAMPLES or examples,
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(script=SCRIPTS, impatient=st.booleans())
    def obeys(script: list[Operation], impatient: bool) -> None:
        run(script, backend, impatient)

    obeys()


CHILDREN = (Shape(injects=(1,)), Shape(provides=(0,)))
FOUND: dict[str, list[Operation]] = {
    "a commit published a consumer whose provider, staged under what it retires, it dropped": [
        Mount(Shape(children=(Shape(provides=(0,)),))), Rest(), Open(), Replace(0, 0, Shape(injects=(0,))),
        Replace(0, 1), Commit(0),
    ],
    "a service taken back waited for the lease of a consumer's parent": [
        Mount(Shape()), Turns(2), Mount(Shape(children=(Shape(), Shape(injects=(0,)))), under=0), Open(),
        Mount(Shape(provides=(0,)), stage=0, optional=True), Update(0), Lease(), Rest(), Withdraw(0), Rest(),
    ],
    "a pinned consumer, staged, kept what its own stage replaced": [
        Open(), Mount(Shape(provides=(0, 1))), Mount(Shape(injects=(0,), pins=(1,)), stage=0, optional=True), Rest(),
        Replace(0, 0), Commit(0),
    ],
    "a lease took an entry of what was born after it for one it sees": [
        Mount(Shape()), Rest(), Contribute(0),
    ],
    "a disposal waited for the lease of a consumer": [
        Mount(Shape(provides=(0,))), Mount(Shape(injects=(0,))), Rest(), Lease(), Open(), Retire(0, 1), Commit(0),
        Dispose(0), Rest(),
    ],
    "a disposal waited for the lease of a parent": [
        Mount(Shape(children=(Shape(),))), Rest(), Lease(), Update(0), Turns(4), Dispose(1), Rest(),
    ],
    "a listener closed under a dispatch out of a stage": [
        Mount(Shape(listens=True, slow=True)), Open(), Mount(Shape(), stage=0), Rest(), Ask(of="instance", index=1),
        Turns(), Open(), Retire(1, 0), Commit(1, settled=False), Turns(7), Rest(),
    ],
    "a pinned consumer, staged, outlived its provider": [
        Mount(Shape(provides=(0,))), Open(), Mount(Shape(pins=(0,)), stage=0), Rest(), Update(0), Rest(), Commit(0),
    ],
    "a pinned consumer, opening, outlived its provider": [
        Mount(Shape(provides=(0,))), Mount(Shape(pins=(0,), slow=True)), Turns(3), Update(0), Turns(5), Rest(),
    ],
    "a service offered again was forgotten": [
        Mount(Shape(provides=(0,))), Mount(Shape(injects=(0,), lingers=True)), Rest(), Withdraw(0), Turns(3),
        Contribute(0, "service"), Rest(), Dispose(0), Rest(),
    ],
    "one row was visible twice": [
        Mount(Shape()), Open(), Open(), Rest(), Replace(0, 0), Replace(1, 0), Commit(0), Commit(0),
    ],
    "a child was published by the commit that retired its parent": [
        Mount(Shape(children=(Shape(),))), Open(), Rest(), Retire(0, 0), Replace(0, 1), Commit(0),
    ],
    "the successor of what was disposed of belonged to nobody": [
        Mount(Shape()), Open(), Rest(), Replace(0, 0), Turns(3), Dispose(0), Turns(3), Commit(0), Rest(),
    ],
    "a slot was forgotten in place of its predecessor": [
        Mount(Shape(provides=(0,))), Turns(2), Update(0), Withdraw(0), Rest(),
    ],
    "a child that was opening lost sight of its parent's service": [
        Mount(Shape(provides=(0, 1), children=(Shape(injects=(0,), provides=(1,), body="groups"),))), Rest(), Retry(0),
    ],
    "a failing task group cancelled a cleanup": [
        Mount(Shape(lingers=True, body="groups")), Turns(3), Crash(0),
    ],
    "a pending consumer was not woken by the successor of a service taken back": [
        Mount(Shape(provides=(0,))), Mount(Shape(injects=(0,), lingers=True)), Mount(Shape(injects=(0,))), Rest(),
        Withdraw(0), Turns(3), Update(0), Turns(5), Rest(),
    ],
    "a provider and a consumer under one parent waited for each other": [
        Mount(Shape(children=(Shape(injects=(0,)), Shape(provides=(0,))))), Rest(),
    ],
    "they did so across somebody else": [
        Mount(Shape(injects=(0,), provides=(1,))), Mount(Shape(children=CHILDREN)), Rest(),
    ],
    "they did so across two parents": [
        Mount(Shape(children=CHILDREN)), Mount(Shape(children=(Shape(injects=(0,)), Shape(provides=(1,))))), Rest(),
    ],
    "a parent waited for a consumer that waited for its child": [
        Mount(Shape(injects=(0,), provides=(2,))), Mount(Shape(provides=(0,), children=(Shape(injects=(0, 2)),))),
        Rest(),
    ],
    "a service taken back waited for the lease of a consumer": [
        Mount(Shape(injects=(0,))), Mount(Shape(provides=(0,))), Rest(), Lease(), Update(0), Turns(4), Withdraw(0),
        Rest(),
    ],
    "what a commit retired while it opened lost sight of its provider": [
        Mount(Shape(provides=(0,))), Rest(), Mount(Shape(injects=(0,), slow=True)), Turns(3), Open(), Retire(0, 0),
        Retire(0, 1), Commit(0, settled=False), Rest(),
    ],
    "what one stage had opened, and another retired, lost sight of its provider": [
        Open(), Open(), Mount(Shape(provides=(0,))), Rest(), Mount(Shape(injects=(0,)), stage=0), Rest(), Retire(1, 0),
        Retire(1, 1), Commit(1), Rest(),
    ],
    "a commit published the consumer of a child that it dropped with its parent": [
        Mount(Shape(children=(Shape(provides=(0,)),))), Rest(), Open(), Replace(0, 0, Shape(injects=(0,))),
        Replace(0, 1), Commit(0), Rest(),
    ],
    "it did so when a stranger consumed": [
        Mount(Shape(children=(Shape(provides=(0,)),))), Mount(Shape(injects=(0,))), Rest(), Open(), Replace(0, 0),
        Replace(0, 2), Replace(0, 1), Commit(0), Rest(),
    ],
    "a staged consumer outlived its staged provider, which another stage retired": [
        Open(), Open(), Mount(Shape(injects=(0,)), stage=0), Mount(Shape(provides=(0,)), stage=0), Rest(), Retire(1, 1),
        Commit(1),
    ],
    "a staged consumer was not woken by a provider that another commit brought": [
        Mount(Shape(provides=(0,))), Rest(), Open(), Retire(0, 0), Mount(Shape(injects=(0,)), stage=0), Rest(),
        Update(0), Rest(),
    ],
    "an update waited for the lease of a parent": [
        Mount(Shape()), Rest(), Lease(), Mount(Shape(), under=0), Rest(), Update(0), Update(1), Rest(),
    ],
}  # fmt: skip
"""Scripts that failed once, by what was wrong."""


@pytest.fixture(scope="module", autouse=True)
def _leave_no_garbage() -> Iterator[None]:
    """What thousands of kernels leave behind must not be collected while another test counts calls."""
    yield
    gc.collect()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("script", FOUND.values(), ids=FOUND)
def test_what_was_found_before(script: list[Operation], backend: str) -> None:
    run(script, backend, impatient=False)


@pytest.mark.parametrize(("backend", "examples"), [("asyncio", 700), ("trio", 300)])
def test_no_view_changes_its_answer_whatever_happens(backend: str, examples: int) -> None:
    check(backend, examples)
