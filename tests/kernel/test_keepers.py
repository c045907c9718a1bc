"""Replacing instances, and what outlives them: updates, pinned consumers, and keepers of shared state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from pydantic import ValidationError

from dshd import Config, Context, Fiber, FiberState, Plugin, RegistryKey, ServiceKey, SharedKey, picture, plugin
from dshd.kernel.internal import STATUS
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

PENDING, LOADING, ACTIVE = FiberState.PENDING, FiberState.LOADING, FiberState.ACTIVE
FAILED, DISPOSED = FiberState.FAILED, FiberState.DISPOSED
DB, A = ServiceKey[str]("db"), ServiceKey[str]("a")
THING = RegistryKey[str]("thing")


class Value(Config):
    value: str = "one"


@asynccontextmanager
async def kernel(*plugins: Plugin[Any], **options: Any) -> AsyncIterator[Context]:
    with anyio.fail_after(10):
        async with running(*plugins, **options) as root:
            yield root


def row(root: Context, path: str) -> Fiber:
    return next(fiber for fiber in root.kernel.rows[path] if not fiber.ended)


@plugin("bystander")
async def bystander(ctx: Context, config: Config) -> None: ...


# -- keepers


class Store:
    """Shared state as a test sees it: how often it opened and closed, in which task, and what holds that up."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.opening = anyio.Event()
        self.closing = anyio.Event()
        self.burn = anyio.Event()
        self.faults: list[Exception] = []
        self.tasks: list[int] = []  # what opened it and what closed it
        self.opened = 0

    def let_through(self) -> "Store":
        self.opening.set()
        self.closing.set()
        return self

    async def fail_when_burnt(self) -> None:
        await self.burn.wait()
        self.burn = anyio.Event()
        raise RuntimeError("burnt")

    async def open(self, ctx: Context) -> AsyncIterator[str]:
        self.opened += 1
        value = f"state {self.opened}"
        await self.opening.wait()
        if self.faults:
            raise self.faults.pop()
        self.tasks.append(anyio.get_current_task().id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.fail_when_burnt)
            self.log.append(f"{value} opens")
            yield value
            tasks.cancel_scope.cancel()
        await self.closing.wait()
        self.tasks.append(anyio.get_current_task().id)
        self.log.append(f"{value} closes")


STATE = SharedKey[str]("state")


def holder(store: Store, name: str = "holder", key: SharedKey[str] = STATE) -> Plugin[Value]:
    @plugin(name, config=Value)
    async def body(ctx: Context, config: Value) -> AsyncIterator[None]:
        state = await ctx.shared(key, store.open)
        store.log.append(f"{name} holds {state}")
        yield
        store.log.append(f"{name} closes")

    return body


async def test_it_is_opened_once_however_many_ask_and_shown_with_its_holders() -> None:
    store = Store()
    async with kernel() as root, root.kernel.stage() as stage:
        fibers = [root.plugin(holder(store, name)) for name in "ab"]
        fibers.append(root.plugin(holder(store, "staged"), stage=stage))
        await wait_all_tasks_blocked()
        assert [fiber.state for fiber in fibers] == [LOADING] * 3
        store.let_through()
        for fiber in fibers:
            await fiber.settled()
        assert sorted(store.log) == ["a holds state 1", "b holds state 1", "staged holds state 1", "state 1 opens"]
        assert [(k.key, k.state, k.holders) for k in picture(root).keepers] == [("state", ACTIVE, ("a", "b", "staged"))]
        assert [fiber.path for fiber in picture(root).fibers] == ["a", "b", "staged"], "it is no row"


async def test_it_survives_the_replacement_of_all_who_hold_it() -> None:
    store = Store().let_through()
    async with kernel(holder(store, "a"), holder(store, "b")) as root:
        for value in ("two", "three"):
            async with root.kernel.stage() as stage:
                for name in "ab":
                    stage.replace(row(root, name), config={"value": value})
                await stage.settled()
                stage.commit()
            await wait_all_tasks_blocked()
        assert (store.opened, [entry for entry in store.log if "state 1 closes" in entry]) == (1, [])
        assert picture(root).keepers[0].holders == ("a", "b")


async def test_it_is_closed_by_its_own_task_when_nobody_holds_it_any_more() -> None:
    store = Store().let_through()
    async with kernel(holder(store, "a"), holder(store, "b")) as root:
        await row(root, "a").dispose()
        assert len(store.tasks) == 1
        await row(root, "b").dispose()
        await wait_all_tasks_blocked()
        assert (store.log[-1], picture(root).keepers) == ("state 1 closes", ())
        assert store.tasks[0] == store.tasks[1] != anyio.get_current_task().id


@pytest.mark.parametrize("opened", [True, False], ids=["open", "opening"])
async def test_discarding_a_stage_lets_go_of_what_it_held(opened: bool) -> None:
    store = Store()
    store.closing.set()
    async with kernel() as root:
        async with root.kernel.stage() as stage:
            root.plugin(holder(store), stage=stage)
            await wait_all_tasks_blocked()
            if opened:
                store.opening.set()
                await stage.settled()
        await wait_all_tasks_blocked()
        assert picture(root).keepers == ()
        assert store.log == (
            ["state 1 opens", "holder holds state 1", "holder closes", "state 1 closes"] if opened else []
        )


async def test_an_error_while_opening_reaches_all_who_ask_and_the_next_who_asks_tries_anew() -> None:
    store = Store()
    store.faults.append(OSError("the disk is full"))
    async with kernel() as root:
        fibers = [root.plugin(holder(store, name)) for name in "ab"]
        await wait_all_tasks_blocked()
        store.let_through()
        for fiber in fibers:
            with pytest.raises(OSError, match="the disk is full"):
                await fiber.settled()
        assert (store.opened, picture(root).keepers) == (1, ())
        fibers[0].retry()
        await fibers[0].settled()
        assert store.log == ["state 2 opens", "a holds state 2"]


async def test_who_asks_may_do_without_what_cannot_be_opened() -> None:
    store = Store().let_through()
    store.faults.append(OSError("the disk is full"))

    @plugin("frugal")
    async def frugal(ctx: Context, config: Config) -> None:
        with pytest.raises(OSError, match="the disk is full"):
            await ctx.shared(STATE, store.open)

    async with kernel() as root:
        fiber = root.plugin(frugal)
        await fiber.settled()
        assert (fiber.state, picture(root).keepers, list(fiber.effects)) == (ACTIVE, (), [])


async def test_who_asks_while_it_closes_waits_and_gets_a_new_one() -> None:
    store = Store()
    store.opening.set()
    async with kernel(holder(store, "a")) as root:
        await row(root, "a").dispose()
        second = root.plugin(holder(store, "b"))
        await wait_all_tasks_blocked()
        assert (second.state, store.opened) == (LOADING, 1)
        store.closing.set()
        await second.settled()
        assert store.log[-3:] == ["state 1 closes", "state 2 opens", "b holds state 2"]


async def test_when_it_fails_all_who_hold_it_are_reopened_upon_a_new_one() -> None:
    store = Store().let_through()
    async with kernel(holder(store, "a"), holder(store, "b"), bystander) as root:
        fibers = [row(root, name) for name in ("a", "b", "bystander")]
        errors: list[object] = []
        root.on(STATUS, lambda change: errors.append(change.fiber.error) if change.new is FAILED else None)
        store.burn.set()
        while store.opened == 1 or any(fiber.state is not ACTIVE for fiber in fibers):
            await checkpoint()
        assert sorted(store.log[-3:]) == ["a holds state 2", "b holds state 2", "state 2 opens"]
        assert sorted(map(str, errors)) == [f"state that {name!r} holds has failed: burnt" for name in "ab"]
        assert [fiber.crashes for fiber in fibers] == [1, 1, 0]


async def test_what_opening_depends_on_tells_keepers_apart() -> None:
    one, two, same = Store().let_through(), Store().let_through(), Store().let_through()
    here, there = SharedKey[str]("state", ("here", 1)), SharedKey[str]("state", ("there", 1))
    again = SharedKey[str]("state", ("here", 1))
    async with kernel(holder(one, "a", here), holder(two, "b", there), holder(same, "c", again)) as root:
        assert (one.opened + same.opened, two.opened) == (1, 1)
        seen = [(keeper.key, keeper.holders) for keeper in picture(root).keepers]
        assert seen == [("state(here, 1)", ("a", "c")), ("state(there, 1)", ("b",))]


async def test_keepers_close_last() -> None:
    store = Store().let_through()

    @plugin("slow")
    async def slow(ctx: Context, config: Config) -> AsyncIterator[None]:
        await ctx.shared(STATE, store.open)
        yield
        await wait_all_tasks_blocked()
        store.log.append("slow closes")

    async with kernel(slow, holder(store)):
        pass
    assert store.log[-3:] == ["holder closes", "slow closes", "state 1 closes"]


class Gated:
    """A plugin `subject` that provides the database, logs its life, and opens only once its value is let through."""

    def __init__(self, *held: str, inject: tuple[ServiceKey[str], ...] = ()) -> None:
        self.log: list[str] = []
        self.gates = {value: anyio.Event() for value in held}

        @plugin("subject", config=Value, provides=[DB], inject=inject)
        async def body(ctx: Context, config: Value) -> AsyncIterator[None]:
            self.log.append(f"{config.value} starts")
            ctx.defer(lambda: self.log.append(f"{config.value} undone"))
            if config.value in self.gates:
                await self.gates[config.value].wait()
            if config.value == "bad":
                raise ValueError("a bad value")
            ctx.provide(DB, config.value)
            ctx.registry(THING).add("subject", config.value)
            self.log.append(f"{config.value} opens")
            yield
            self.log.append(f"{config.value} closes")

        self.plugin = body


def live(root: Context) -> list[str]:
    return list(root.registry(THING).values())


# -- updates


async def test_an_update_opens_the_new_beside_the_old_and_swaps_them() -> None:
    subject = Gated()
    async with kernel(subject.plugin) as root:
        old = row(root, "subject")
        new = await old.update({"value": "two"})
        await old.closing()
        assert subject.log == ["one starts", "one opens", "two starts", "two opens", "one undone", "one closes"]
        assert (old.state, new.state, old.latest, new.config) == (DISPOSED, ACTIVE, new, Value(value="two"))
        assert (live(root), [kid.path for kid in root.fiber.kids]) == (["two"], ["subject"])


@pytest.mark.parametrize(
    ("config", "error"), [({"value": "bad"}, ValueError), ({"value": 7}, ValidationError), ({"?": 1}, ValidationError)]
)
async def test_a_failing_update_changes_nothing(config: dict[str, object], error: type[Exception]) -> None:
    subject = Gated()
    async with kernel(subject.plugin) as root:
        before, fiber = picture(root), row(root, "subject")
        with pytest.raises(error):
            await fiber.update(config)
        after = picture(root)
        assert (row(root, "subject"), fiber.state, fiber.config, live(root)) == (fiber, ACTIVE, Value(), ["one"])
        assert (after.epoch, after.effects, after.entries) == (before.epoch, before.effects, before.entries)


@pytest.mark.parametrize("wanted", [["two"], ["two", "one"], ["two", "three"]], ids=" then ".join)
async def test_an_update_while_starting_is_not_lost_and_the_last_value_runs(wanted: list[str]) -> None:
    subject = Gated("one", "two")
    returned: list[Fiber] = []
    async with kernel() as root:
        fiber = root.plugin(subject.plugin)
        await wait_all_tasks_blocked()
        assert fiber.state is LOADING

        async def update(value: str) -> None:
            returned.append(await fiber.update({"value": value}))

        async with anyio.create_task_group() as tasks:
            for value in wanted:
                tasks.start_soon(update, value)
                await wait_all_tasks_blocked()
            for gate in subject.gates.values():
                gate.set()
        await returned[0].settled()
        await wait_all_tasks_blocked()
        assert live(root) == [wanted[-1]]
        assert [entry for entry in subject.log if entry.endswith("starts")][-1] == f"{wanted[-1]} starts"
        assert [(f.state, f.config) for f in root.fiber.kids] == [(ACTIVE, Value(value=wanted[-1]))]
        assert {f.latest for f in returned} == {row(root, "subject")}


async def test_of_several_updates_at_once_the_last_wins_and_all_return_its_fiber() -> None:
    subject = Gated("0", "1", "2", "3")
    returned: list[Fiber] = []
    async with kernel(subject.plugin) as root:
        fiber = row(root, "subject")

        async def update(value: str) -> None:
            returned.append(await fiber.update({"value": value}))

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(update, str(number))
                await wait_all_tasks_blocked()
            subject.gates["3"].set()
        assert (live(root), set(returned), len(returned)) == (["3"], {row(root, "subject")}, 4)
        assert not any(f"{n} opens" in subject.log for n in "012")


async def test_what_waits_for_a_service_may_be_updated() -> None:
    subject = Gated(inject=(A,))
    async with kernel() as root:
        fiber = root.plugin(subject.plugin)
        await fiber.settled()
        new = await fiber.update({"value": "two"})
        await fiber.closing()
        await new.settled()
        assert (new.state, fiber.state, subject.log) == (PENDING, DISPOSED, [])
        await root.plugin(gives_a).settled()
        await new.settled()
        assert (new.state, live(root)) == (ACTIVE, ["two"])


async def test_what_has_failed_is_opened_by_an_update_that_mends_it() -> None:
    subject = Gated()
    async with kernel() as root:
        fiber = root.plugin(subject.plugin, {"value": "bad"})
        with pytest.raises(ValueError, match="a bad value"):
            await fiber.settled()
        new = await fiber.update({"value": "good"})
        await fiber.closing()
        assert (new.state, new.error, live(root), list(root.fiber.kids)) == (ACTIVE, None, ["good"], [new])


@plugin("a", provides=[A])
async def gives_a(ctx: Context, config: Config) -> None:
    ctx.provide(A, "a")


@pytest.mark.parametrize("also", ["provider only", "pinned first", "provider first"])
async def test_pinned_consumers_are_replaced_in_the_commit_of_their_provider_each_once(also: str) -> None:
    subject = Gated()

    def user(name: str, *pinned: ServiceKey[str]) -> Plugin[Config]:
        @plugin(name, inject=[DB], pinned=pinned)
        async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
            subject.log.append(f"{name} opens on {ctx[DB]}")
            yield
            subject.log.append(f"{name} closes on {ctx[DB]}")

        return body

    async with kernel(subject.plugin, user("b", DB), user("c", DB), user("late"), bystander) as root:
        late, unrelated, b, old = (row(root, name) for name in ("late", "bystander", "b", "subject"))
        subject.log.clear()
        async with root.kernel.stage() as stage:
            if also == "pinned first":
                stage.replace(b, config={})
            stage.replace(old, config={"value": "two"})
            if also == "provider first":
                stage.replace(b, config={})
            await stage.settled()
            stage.commit()
        await old.closing()
        log = [entry for entry in subject.log if not entry.endswith(("starts", "undone"))]
        assert [log[0], *sorted(log[1:3])] == ["two opens", "b opens on two", "c opens on two"]
        assert [*sorted(log[3:5]), *log[5:]] == ["b closes on one", "c closes on one", "one closes"]
        assert (row(root, "late"), row(root, "bystander"), late.ctx[DB]) == (late, unrelated, "two")
