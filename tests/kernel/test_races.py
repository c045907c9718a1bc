"""Committing and ending while something is under way: the races, by name."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from dshd import (
    CommitRefusedError,
    Config,
    Context,
    Fiber,
    FiberState,
    Plugin,
    RegistryKey,
    Serial,
    ServiceKey,
    Timing,
    Waterfall,
    picture,
    plugin,
)
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

PENDING, LOADING, ACTIVE = FiberState.PENDING, FiberState.LOADING, FiberState.ACTIVE
FAILED, DISPOSED = FiberState.FAILED, FiberState.DISPOSED
DB = ServiceKey[str]("db")
A, B = ServiceKey[str]("a"), ServiceKey[str]("b")
THING = RegistryKey[str]("thing")
ASK = Serial[str, str]("ask")
FLOW = Waterfall[str, str]("flow")


class Value(Config):
    value: str = "one"


@asynccontextmanager
async def kernel(*plugins: Plugin[Any], **options: Any) -> AsyncIterator[Context]:
    with anyio.fail_after(10):
        async with running(*plugins, **options) as root:
            yield root


def row(root: Context, path: str) -> Fiber:
    return next(fiber for fiber in root.kernel.rows[path] if not fiber.ended)


class Gated:
    """A plugin `subject` that provides the database, logs its life, and opens only once its value is let through."""

    def __init__(self, *held: str, name: str = "subject", inject: tuple[ServiceKey[str], ...] = ()) -> None:
        self.log: list[str] = []
        self.gates = {value: anyio.Event() for value in held}

        @plugin(name, config=Value, provides=[DB], inject=inject)
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


# -- opening


async def test_dispose_while_loading() -> None:
    subject = Gated("one")
    async with kernel() as root:
        fiber = root.plugin(subject.plugin)
        await wait_all_tasks_blocked()
        await fiber.dispose()
        assert (fiber.state, subject.log) == (DISPOSED, ["one starts", "one undone"])


@pytest.mark.parametrize("another", [False, True], ids=["nobody else", "another provider"])
async def test_provider_lost_while_opening(another: bool) -> None:
    """Opening is not interrupted; the provider closes after it, and it then waits, or opens anew on the other one."""
    gate = anyio.Event()
    log: list[str] = []
    first, second = Gated(name="first"), Gated(name="second")

    @plugin("consumer", inject=[DB])
    async def consumer(ctx: Context, config: Config) -> AsyncIterator[None]:
        log.append(f"starts on {ctx[DB]}")
        await gate.wait()
        log.append(f"opens on {ctx[DB]}")
        yield
        log.append(f"closes on {ctx[DB]}")

    async with kernel(first.plugin) as root:
        fiber, provider = root.plugin(consumer), row(root, "first")
        await wait_all_tasks_blocked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider.dispose)
            await wait_all_tasks_blocked()
            assert (fiber.state, "one closes" in first.log, live(root)) == (LOADING, False, [])
            if another:
                await root.plugin(second.plugin, {"value": "two"}).settled()
                assert fiber.state is LOADING
            first.log = log
            gate.set()
        await fiber.settled()
        assert log.index("closes on one") < log.index("one undone")
        own = [entry for entry in log if "on" in entry.split()]
        again = ["starts on two", "opens on two"] if another else []
        assert own == ["starts on one", "opens on one", "closes on one", *again]
        assert fiber.state is (ACTIVE if another else PENDING)


async def test_a_to_b_to_a() -> None:
    subject = Gated()
    async with kernel(subject.plugin) as root:
        with root.leased("a reader") as view:
            await row(root, "subject").update({"value": "two"})
            again = await row(root, "subject").update({"value": "one"})
            await wait_all_tasks_blocked()
            assert (live(root), list(view.registry(THING).values())) == (["one"], ["one"])
            assert subject.log[-2:] == ["two undone", "two closes"], "the lease is of the first, which stays"
            assert root.registry(THING)._visible()["subject"].owner is again
        await wait_all_tasks_blocked()
        assert [(f.state, f) for f in root.fiber.kids] == [(ACTIVE, again)]


async def test_what_opens_in_a_stage_is_seen_there_at_once_by_who_asked_before() -> None:
    gate = anyio.Event()

    @plugin("late", provides=[DB])
    async def late(ctx: Context, config: Config) -> None:
        ctx.provide(DB, "late")
        await gate.wait()

    async with kernel() as root, root.kernel.stage() as stage:
        asker, provider = root.plugin(link("asker", A), stage=stage), root.plugin(late, stage=stage)
        await wait_all_tasks_blocked()
        assert (asker.ctx.get(DB), provider.state) == (None, LOADING)
        gate.set()
        await stage.settled()
        assert (asker.ctx.get(DB), root.get(DB)) == ("late", None)


# -- between settling and committing


async def refused(stage: Any, root: Context, reason: str) -> None:
    """The commit is refused for this reason, and nothing is different afterwards."""
    before = picture(root).epoch, live(root), root.get(DB), [fiber.path for fiber in root.fiber.kids if fiber.visible]
    with pytest.raises(CommitRefusedError, match=reason):
        stage.commit()
    await stage.discard()
    visible = [fiber.path for fiber in root.fiber.kids if fiber.visible]
    assert (picture(root).epoch, live(root), root.get(DB), visible) == before


async def test_crash_between_settle_and_commit() -> None:
    burn = anyio.Event()
    subject = Gated()

    @plugin("fragile")
    async def fragile(ctx: Context, config: Config) -> None:
        async def fail() -> None:
            await burn.wait()
            raise RuntimeError("burnt")

        ctx.spawn(fail, while_open=True)

    async with kernel(subject.plugin) as root:
        stage = root.kernel.stage()
        stage.replace(row(root, "subject"), config={"value": "two"})
        root.plugin(fragile, stage=stage)
        await stage.settled()
        burn.set()
        await wait_all_tasks_blocked()
        await refused(stage, root, "'fragile' failed: burnt")


async def test_provider_disposed_between_settle_and_commit() -> None:
    async with kernel(Gated().plugin) as root:
        stage = root.kernel.stage()
        root.plugin(link("consumer", A, DB), stage=stage)
        await stage.settled()
        await row(root, "subject").dispose()
        await refused(stage, root, "'consumer' waits for 'db'")


async def test_child_mounted_between_settle_and_commit() -> None:
    child = Gated("one", name="child")
    async with kernel() as root:
        stage = root.kernel.stage()
        parent = root.plugin(link("parent", A), stage=stage)
        await stage.settled()
        parent.ctx.plugin(child.plugin)
        with pytest.raises(CommitRefusedError, match="'parent/child'"):
            stage.commit()  # in the same tick: it has not even begun
        await wait_all_tasks_blocked()
        with pytest.raises(CommitRefusedError, match="'parent/child' is still loading"):
            stage.commit()
        child.gates["one"].set()
        await stage.settled()
        stage.commit()
        assert (root.get(A), live(root)) == ("parent", ["one"]), "both in one tick"


@pytest.mark.parametrize("what", ["mounted", "replaced"])
async def test_two_stages_over_one_slot(what: str) -> None:
    async with kernel(Gated(name="start").plugin) as root:
        first, second = root.kernel.stage(), root.kernel.stage()
        for stage, value in ((first, "two"), (second, "three")):
            if what == "replaced":
                stage.replace(row(root, "start"), config={"value": value})
            else:
                stage.retire(row(root, "start"))
                root.plugin(Gated(name=value).plugin, {"value": value}, stage=stage)
            await stage.settled()
        first.commit()
        await refused(second, root, "would be provided by both|was replaced")
        assert (live(root), root.get(DB)) == (["two"], "two")


async def test_two_stages_over_one_row() -> None:
    async with kernel(link("plain", A)) as root:
        bare = root.plugin(link("bare", B))
        await bare.settled()

        @plugin("bare")
        async def nothing(ctx: Context, config: Config) -> None: ...

        first, second = root.kernel.stage(), root.kernel.stage()
        for stage in (first, second):
            stage.replace(bare, nothing)
            await stage.settled()
        first.commit()
        await refused(second, root, "bare")
        assert [fiber.path for fiber in root.fiber.kids if fiber.visible] == ["plain", "bare"]


async def test_stage_discarded_while_loading() -> None:
    one, two = Gated("one", name="left"), Gated("one", name="right", inject=(A,))
    async with kernel(link("a", A)) as root:
        before = picture(root)
        async with root.kernel.stage() as stage:
            fibers = [root.plugin(one.plugin, stage=stage), root.isolate(DB, "x").plugin(two.plugin, stage=stage)]
            await wait_all_tasks_blocked()
            assert [fiber.state for fiber in fibers] == [LOADING, LOADING]
        after = picture(root)
        assert one.log == two.log == ["one starts", "one undone"]
        assert (after.epoch, after.effects, len(after.fibers)) == (before.epoch, before.effects, len(before.fibers))


# -- from inside


async def test_commit_from_inside_a_leased_dispatch() -> None:
    log: list[str] = []

    def listener(name: str, value: str, act: Callable[[Context], Awaitable[None]] | None = None) -> Plugin[Config]:
        @plugin(name)
        async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
            async def answer(question: str) -> None:
                log.append(f"{name} {value} hears")
                if act is not None:
                    await act(ctx)

            ctx.on(ASK, answer)
            yield
            log.append(f"{name} {value} closes")

        return body

    async def replace_both(ctx: Context) -> None:
        async with ctx.kernel.stage() as stage:
            for name in "xy":
                stage.replace(row(ctx.root, name), listener(name, "new"))
            await stage.settled()
            stage.commit()

    async with kernel(listener("x", "old", replace_both), listener("y", "old")) as root:
        await root.serial(ASK, "?")
        assert log == ["x old hears", "y old hears"], "the dispatch holds what it selected"
        await wait_all_tasks_blocked()
        assert sorted(log[2:]) == ["x old closes", "y old closes"]
        await root.serial(ASK, "?")
        assert log[4:] == ["x new hears", "y new hears"]


@pytest.mark.parametrize("whose", ["another task", "its own task"])
async def test_dispose_from_inside_a_waterfall_listener_of_the_fiber_itself(whose: str) -> None:
    answers: list[str] = []

    @plugin("lemming")
    async def lemming(ctx: Context, config: Config) -> None:
        async def jump(payload: str, following: Callable[[], Awaitable[str]]) -> str:
            await ctx.fiber.dispose()
            return f"{payload} {await following()}"

        async def ask() -> None:
            answers.append(await ctx.waterfall(FLOW, "jumped", inner))

        ctx.on(FLOW, jump)
        if whose == "its own task":
            ctx.spawn(ask, while_open=True)

    async def inner(payload: str) -> str:
        return "and landed"

    async with kernel() as root:
        fiber = root.plugin(lemming)
        await fiber.settled()
        if whose == "another task":
            answers.append(await root.waterfall(FLOW, "jumped", inner))
        await fiber.closing()
        assert (fiber.state, fiber.error, picture(root).fibers) == (DISPOSED, None, ())
        assert answers == ["jumped and landed"]


# -- ending


def link(name: str, gives: ServiceKey[str], *needs: ServiceKey[str]) -> Plugin[Config]:
    @plugin(name, inject=needs, provides=[gives])
    async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.provide(gives, name)
        yield
        for key in needs:
            assert ctx[key]

    return body


@pytest.mark.parametrize("end", ["a", "b", "stop"])
async def test_mutual_use_closes_without_a_deadlock(end: str) -> None:
    with anyio.fail_after(3):  # before the deadline for unloading
        async with running(link("b", B), link("a", A, B)) as root:
            async with root.kernel.stage() as stage:
                stage.replace(row(root, "b"), link("b", B, A))
                await stage.settled()
                stage.commit()
            a, b = row(root, "a"), row(root, "b")
            assert (a.ctx[B], b.ctx[A]) == ("b", "a")
            if end != "stop":
                await row(root, end).dispose()
                await a.settled()
                await b.settled()
        assert (a.state, b.state, a.error, b.error) == (DISPOSED, DISPOSED, None, None)


async def test_stop_while_loading() -> None:
    subject = Gated("one")
    with anyio.fail_after(3):
        async with running(timing=Timing(load=30)) as root:
            fiber = root.plugin(subject.plugin)
            await wait_all_tasks_blocked()
        assert (fiber.state, subject.log) == (DISPOSED, ["one starts", "one undone"])


async def test_a_cancelled_host_still_unloads_gracefully() -> None:
    log: list[str] = []

    @plugin("graceful")
    async def graceful(ctx: Context, config: Config) -> AsyncIterator[None]:
        async def cleanup() -> None:
            await checkpoint()
            log.append("undone")

        ctx.defer(cleanup)
        yield
        await checkpoint()
        log.append("closed")

    with anyio.fail_after(3), anyio.CancelScope() as scope:
        async with running(graceful):
            scope.cancel()
            await checkpoint()
    assert (scope.cancelled_caught, log) == (True, ["undone", "closed"])
