"""Whatever a plugin does wrong, wherever it does it: it is contained, named, and nobody beside it notices."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from dshd import (
    Config,
    Context,
    Emit,
    Fiber,
    FiberState,
    Parallel,
    RegistryKey,
    ServiceKey,
    Timing,
    picture,
    plugin,
)
from dshd.kernel.errors import AbandonedError, LoadTimeoutError, PluginExitError, StrayCancellationError
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

PENDING, ACTIVE, FAILED, DISPOSED = FiberState.PENDING, FiberState.ACTIVE, FiberState.FAILED, FiberState.DISPOSED
IMPATIENT = Timing(load=0.15, unload=0.15, grace=0.05, slow=0.1)
DB = ServiceKey[str]("db")
THING = RegistryKey[int]("thing")
PING = Emit[str]("ping")
ASK = Parallel[str]("ask")


class World:
    """The tree around one culprit, and the events that let go of what it holds on to."""

    def __init__(self) -> None:
        self.release = anyio.Event()
        self.thread = threading.Event()
        self.reached = anyio.Event()
        self.reopened = anyio.Event()
        self.gone: list[str] = []
        self.opened: list[str] = []
        self.provider: Fiber
        self.parent: Fiber
        self.culprit: Fiber

    async def ended(self, fault: object) -> None:
        """Until what an `ENDING` fault asked for is over."""
        await self.culprit.closing()
        if fault is ends_its_parent:
            await self.parent.closing()
        if fault is ends_its_provider:
            await self.provider.closing()
            await self.culprit.settled()


Fault = Callable[[World], Awaitable[object]]


async def never_returns(world: World) -> None:
    await world.release.wait()


async def swallows(world: World) -> None:
    while not world.release.is_set():
        try:
            await world.release.wait()
        except anyio.get_cancelled_exc_class():
            pass


async def raises_late(world: World) -> None:
    await swallows(world)
    raise ValueError("late")


async def raises(world: World) -> None:
    await checkpoint()
    raise ValueError("broken")


async def exits(world: World) -> None:
    await checkpoint()
    sys.exit(3)


async def awaits_what_was_cancelled(world: World) -> None:
    other = asyncio.ensure_future(asyncio.sleep(1000))
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


async def is_cancelled_natively(world: World) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(1000)


async def blocks_a_thread(world: World) -> None:
    await anyio.to_thread.run_sync(world.thread.wait)


async def ends_itself(world: World) -> None:
    await world.culprit.dispose()
    await checkpoint()


async def ends_its_parent(world: World) -> None:
    await world.parent.dispose()
    await checkpoint()


async def ends_its_provider(world: World) -> None:
    await world.provider.dispose()
    await checkpoint()


NATIVE = [awaits_what_was_cancelled, is_cancelled_natively]
STUCK = [swallows, raises_late, blocks_a_thread]
ENDING = [ends_itself, ends_its_parent, ends_its_provider]
FAULTS = [never_returns, raises, exits, *STUCK, *NATIVE, *ENDING]
ERRORS: dict[Fault, type[BaseException]] = {
    never_returns: LoadTimeoutError, raises: ValueError, exits: PluginExitError,
    awaits_what_was_cancelled: StrayCancellationError, is_cancelled_natively: StrayCancellationError,
}  # fmt: skip


@asynccontextmanager
async def culprit_in_a_tree(place: str, fault: Fault, **options: Any) -> AsyncIterator[tuple[Context, World]]:
    """A provider, a parent with the culprit as its child, and a sibling; all but what the culprit opens has opened."""
    world = World()

    async def run() -> None:
        world.reached.set()
        await fault(world)

    @plugin("provider", provides=[DB])
    async def provider(ctx: Context, config: Config) -> None:
        ctx.provide(DB, "db")

    @plugin("culprit", inject=[DB])
    async def culprit(ctx: Context, config: Config) -> AsyncIterator[None]:
        if "culprit" in world.opened:
            world.reopened.set()
        world.opened.append("culprit")
        ctx.defer(lambda: world.gone.append("first effect"))
        ctx.registry(THING).add("culprit", 1)
        if place == "cleanup":
            ctx.defer(run, "the culprit's cleanup")
        if place == "task" and len(world.opened) == 2:
            ctx.spawn(run, name="the culprit's task")
        if place == "listener":
            ctx.on(ASK, lambda who: run())
        if place == "body":
            await run()
        yield
        if place == "after the yield":
            await run()

    @plugin("parent")
    async def parent(ctx: Context, config: Config) -> None:
        world.culprit = ctx.plugin(culprit)

    @plugin("sibling", inject=[DB])
    async def sibling(ctx: Context, config: Config) -> None:
        world.opened.append("sibling")

    with anyio.fail_after(10):
        async with running(provider, sibling, timing=IMPATIENT, **options) as root:
            world.provider = next(iter(root.kernel.rows["provider"]))
            world.parent = root.plugin(parent)
            await world.parent.settled()
            try:
                yield root, world
                beside = next(iter(root.kernel.rows["sibling"]))
                kept = fault is not ends_its_provider
                assert (beside.state, world.opened.count("sibling")) == (ACTIVE if kept else PENDING, 1)
            finally:
                world.release.set()
                world.thread.set()
            await root.kernel.none_abandoned()
            assert picture(root).abandoned == (), "what ended after all is forgotten"


def skip_native(fault: Fault, backend: str) -> None:
    if fault in NATIVE and backend != "asyncio":
        pytest.skip("only asyncio has cancellation without a scope")


async def rest(fiber: Fiber) -> None:
    """Until nothing is under way, whatever has become of it."""
    try:
        await fiber.settled()
    except Exception as exc:
        if exc is not fiber.error:
            raise


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_while_opening_is_contained(fault: Fault, anyio_backend: str) -> None:
    skip_native(fault, anyio_backend)
    with capture_logs() as logged:
        async with culprit_in_a_tree("body", fault) as (root, world):
            await world.reached.wait()
            fiber = world.culprit
            await rest(fiber)
            assert list(root.registry(THING)) == []
            if fault in STUCK:
                assert (fiber.state, type(fiber.error)) == (FAILED, AbandonedError)
                assert picture(root).abandoned == ("plugin 'parent/culprit'",)
            elif fault in ERRORS:
                assert (fiber.state, type(fiber.error)) == (FAILED, ERRORS[fault])
                assert world.gone == ["first effect"]
            else:
                await world.ended(fault)
                assert fiber.state is (PENDING if fault is ends_its_provider else DISPOSED)
                assert world.parent.state is (DISPOSED if fault is ends_its_parent else ACTIVE)
        assert fault in ENDING or "parent/culprit" in [entry.get("row") for entry in logged]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("place", ["cleanup", "after the yield"])
async def test_a_fault_while_closing_is_contained(place: str, fault: Fault, anyio_backend: str) -> None:
    skip_native(fault, anyio_backend)
    with capture_logs() as logged:
        async with culprit_in_a_tree(place, fault) as (root, world):
            fiber = world.culprit
            await fiber.settled()
            await fiber.dispose()
            assert fiber.state is DISPOSED
            assert picture(root).abandoned == (("plugin 'parent/culprit'",) if fault in STUCK else ())
            assert (world.gone == ["first effect"]) is not (place == "cleanup" and fault in STUCK)
            if fault in ENDING:
                await world.ended(fault)
                assert world.parent.state is (DISPOSED if fault is ends_its_parent else ACTIVE)
                assert world.provider.state is (DISPOSED if fault is ends_its_provider else ACTIVE)
        assert any(entry.get("row") == "parent/culprit" or entry.get("plugin") == "culprit" for entry in logged)
        if place == "cleanup" and fault in STUCK:
            left = [entry["left_undone"] for entry in logged if "left_undone" in entry]
            assert left == [["defer culprit_in_a_tree.<locals>.culprit.<locals>.<lambda>"]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_in_a_task_is_contained(fault: Fault, anyio_backend: str) -> None:
    skip_native(fault, anyio_backend)
    with capture_logs() as logged:
        async with culprit_in_a_tree("task", fault) as (root, world):
            await world.reached.wait()
            await anyio.wait_all_tasks_blocked()
            fiber = world.culprit
            if fault in STUCK or fault is never_returns:
                assert fiber.state is ACTIVE
                await fiber.dispose()
                task = "task \"the culprit's task\" of 'parent/culprit'"
                assert (fiber.state, world.gone) == (DISPOSED, ["first effect"])
                assert picture(root).abandoned == ((task,) if fault in STUCK else ())
            elif fault in ERRORS:
                await world.reopened.wait()
                await fiber.settled()
                assert (fiber.state, fiber.crashes, world.gone) == (ACTIVE, 1, ["first effect"])
            else:
                await world.ended(fault)
                assert fiber.state is (PENDING if fault is ends_its_provider else DISPOSED)
        assert fault in ENDING or fault is never_returns or "parent/culprit" in [entry.get("row") for entry in logged]
        assert sum(str(e.get("exc_info")) == "late" for e in logged) == (fault is raises_late)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_in_an_awaited_listener_is_contained(fault: Fault, anyio_backend: str) -> None:
    skip_native(fault, anyio_backend)
    answers: list[BaseException | None] = []
    over = anyio.Event()

    @plugin("caller")
    async def caller(ctx: Context, config: Config) -> None:
        async def ask() -> None:
            try:
                await ctx.parallel(ASK, "anybody")
                answers.append(None)
            except ExceptionGroup as group:
                answers.extend(group.exceptions)
            finally:
                over.set()

        if not answers and not over.is_set():
            ctx.spawn(ask, name="ask")

    async with culprit_in_a_tree("listener", fault) as (root, world):
        await world.culprit.settled()
        calling = root.plugin(caller)
        await calling.settled()
        await world.reached.wait()
        if fault in STUCK or fault is never_returns:
            await world.culprit.dispose()
            assert world.culprit.state is DISPOSED, "it does not wait for the dispatch"
            await calling.dispose()
            assert calling.state is DISPOSED
            assert picture(root).abandoned == (("task 'ask' of 'caller'",) if fault in STUCK else ())
        elif fault is is_cancelled_natively:  # it cancelled its caller: that is whom it was
            await over.wait()
            await calling.closing()
            assert (answers, world.culprit.state) == ([], ACTIVE)
        elif fault in ERRORS:
            await over.wait()
            assert [type(answer) for answer in answers] == [ERRORS[fault]]
            assert (world.culprit.state, calling.state) == (ACTIVE, ACTIVE)
            assert fault is raises or "parent/culprit" in str(answers[0])
        else:
            await over.wait()
            await world.ended(fault)
            assert (answers, calling.state) == ([None], ACTIVE)


@pytest.mark.parametrize("fault", [ValueError("broken"), SystemExit(3)], ids=repr)
async def test_a_fault_in_a_listener_of_a_fact_is_logged_with_its_owner_and_the_rest_hear_it(
    fault: BaseException,
) -> None:
    heard: list[str] = []

    def break_down(who: str) -> None:
        raise fault

    @plugin("culprit")
    async def culprit(ctx: Context, config: Config) -> None:
        ctx.on(PING, break_down)
        ctx.on(PING, heard.append)

    with anyio.fail_after(10), capture_logs() as logged:
        async with running(culprit) as root:
            root.emit(PING, "all")
        assert heard == ["all"]
        assert [(e["event"], e["row"], e["exc_info"]) for e in logged] == [("listener failed", "culprit", fault)]


@pytest.mark.parametrize("place", ["body", "cleanup", "after the yield", "task"])
async def test_what_was_abandoned_does_not_keep_the_loop_busy(place: str) -> None:
    async with culprit_in_a_tree(place, swallows) as (root, world):
        if place != "body":
            await world.culprit.settled()
        if place in ("body", "task"):
            await world.reached.wait()
        await (rest(world.culprit) if place == "body" else world.culprit.dispose())
        assert len(picture(root).abandoned) == 1
        busy, began = time.process_time(), time.monotonic()
        await anyio.sleep(0.3)
        assert time.process_time() - busy < 0.3 * (time.monotonic() - began)


async def test_the_deadline_of_one_row_is_nobody_elses_and_what_waits_is_named_with_its_place() -> None:
    @plugin("stuck")
    async def stuck(ctx: Context, config: Config) -> None:
        await anyio.sleep_forever()

    @plugin("good")
    async def good(ctx: Context, config: Config) -> None: ...

    with anyio.fail_after(10), capture_logs() as logged:
        async with running(timing=IMPATIENT) as root, root.kernel.stage() as stage:
            slow, fine = root.plugin(stuck, stage=stage), root.plugin(good, stage=stage)
            await stage.settled()
            assert (slow.state, fine.state) == (FAILED, ACTIVE)
            assert stage.obstacles() == ["'stuck' failed: plugin 'stuck' did not finish loading in 0.15 s"]
            await stage.drop(slow)
            stage.commit()
            assert [fiber.path for fiber in picture(root).fibers] == ["good"]
        assert [(e["event"], e["row"]) for e in logged] == [("still loading", "stuck"), ("plugin failed", "stuck")]
        assert f"{__file__}:{stuck.body.__code__.co_firstlineno + 2}" == logged[0]["at"]


async def test_a_second_yield_is_reported_and_the_body_closed() -> None:
    log: list[str] = []

    @plugin("twice")
    async def twice(ctx: Context, config: Config) -> AsyncIterator[None]:
        yield
        try:
            yield
        finally:
            log.append("closed")

    with anyio.fail_after(10), capture_logs() as logged:
        async with running(twice) as root:
            await next(iter(root.kernel.rows["twice"])).dispose()
        assert (log, [(e["event"], e["row"]) for e in logged]) == (
            ["closed"],
            [("the body yielded a second time", "twice")],
        )
