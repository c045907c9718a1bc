"""What a plugin owns: its effects, undone last first and once, and its tasks, which act only while it is visible."""

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from dshd import (
    Backoff,
    Config,
    Context,
    Emit,
    Fiber,
    FiberState,
    InactiveFiberError,
    Plugin,
    picture,
    plugin,
)
from dshd.kernel.errors import WrongTaskError
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

PING = Emit[str]("ping")
WHO: ContextVar[str] = ContextVar("who", default="nobody")


@asynccontextmanager
async def kernel(*plugins: Plugin[Any], **options: Any) -> AsyncIterator[Context]:
    with anyio.fail_after(10):
        async with running(*plugins, **options) as root:
            yield root


def row(root: Context, path: str) -> Fiber:
    return next(iter(root.kernel.rows[path]))


async def test_effects_unwind_last_first_each_awaited_and_one_that_raises_is_logged_while_the_rest_run() -> None:
    log: list[str] = []

    async def slow() -> None:
        log.append("slow begins")
        await checkpoint()
        log.append("slow ends")

    def broken() -> None:
        raise ValueError("no cleanup today")

    @plugin("owner")
    async def owner(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.defer(lambda: log.append("first"))
        ctx.defer(slow)
        ctx.defer(broken, "broken")
        ctx.defer(lambda: log.append("last"))
        yield
        log.append("after the yield")

    async with kernel(owner) as root:
        with capture_logs() as logged:
            await row(root, "owner").dispose()
    assert log == ["last", "slow begins", "slow ends", "first", "after the yield"]
    assert [(e["event"], e["row"], e["effect"]) for e in logged] == [("cleanup failed", "owner", "broken")]


async def test_effects_made_in_a_listener_a_call_and_a_task_are_undone_as_well() -> None:
    undone: list[str] = []
    calls: list[Callable[[], object]] = []
    started = anyio.Event()

    @plugin("owner")
    async def owner(ctx: Context, config: Config) -> None:
        async def background() -> None:
            ctx.defer(lambda: undone.append("task"))
            started.set()

        ctx.defer(lambda: undone.append("body"))

        def hear(who: str) -> None:
            ctx.defer(lambda: undone.append("listener"))

        ctx.on(PING, hear)
        calls.append(lambda: ctx.defer(lambda: undone.append("call")))
        ctx.spawn(background)

    async with kernel(owner) as root:
        await started.wait()
        root.emit(PING, "somebody")
        calls[0]()
        await row(root, "owner").dispose()
        assert undone == ["call", "listener", "task", "body"]
        assert picture(root).listeners == 0


async def test_undoing_works_once_and_a_second_call_does_not_wait_for_the_first() -> None:
    runs: list[int] = []
    gate = anyio.Event()

    async def cleanup() -> None:
        runs.append(1)
        await gate.wait()

    async with kernel() as root:
        effect = root.defer(cleanup)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(effect.dispose)
            await wait_all_tasks_blocked()
            await effect.dispose()
            gate.set()
        await effect.dispose()
        assert runs == [1]


async def test_a_composite_contains_the_effects_themselves_and_undoes_them_last_first() -> None:
    log: list[str] = []

    @plugin("owner")
    async def owner(ctx: Context, config: Config) -> None:
        one, two, _, three = (ctx.defer(lambda n=n: log.append(n), n) for n in ("one", "two", "between", "three"))  # type: ignore[misc]
        inner = ctx.compose("inner", [one, two])
        ctx.compose("outer", [inner, three])

    async with kernel(owner) as root:
        seen = picture(root).fibers[0]
        assert [e.label for e in seen.effects] == ["between", "outer"]
        assert [e.label for e in seen.effects[1].parts] == ["inner", "three"]
        outer = list(row(root, "owner").effects)[1]
        await outer.dispose()
        assert log == ["three", "two", "one"]
        await row(root, "owner").dispose()
        assert log == ["three", "two", "one", "between"]


async def test_what_a_body_enters_is_left_last_first_by_the_task_that_entered_it() -> None:
    log: list[str] = []

    @contextmanager
    def file() -> Iterator[str]:
        log.append("file opens")
        yield "file"
        log.append("file closes")

    @asynccontextmanager
    async def client() -> AsyncIterator[str]:
        async with anyio.create_task_group() as tasks:  # may only be left by the task that entered it
            tasks.start_soon(anyio.sleep_forever)
            yield "client"
            tasks.cancel_scope.cancel()
        log.append("client closes")

    @plugin("returning")
    async def returning(ctx: Context, config: Config) -> None:
        log.append(ctx.enter(file()))
        log.append(await ctx.aenter(client()))

    async with kernel(returning) as root:
        await row(root, "returning").dispose()
        assert log == ["file opens", "file", "client", "client closes", "file closes"]


async def test_aenter_belongs_into_a_body_that_returns() -> None:
    refused: list[str] = []
    tried = anyio.Event()

    @asynccontextmanager
    async def never() -> AsyncIterator[None]:
        refused.append("it was entered")
        yield

    async def attempt(ctx: Context) -> None:
        with pytest.raises(WrongTaskError) as caught:
            await ctx.aenter(never())
        refused.append(str(caught.value))
        if len(refused) == 3:
            tried.set()

    @plugin("yielding")
    async def yielding(ctx: Context, config: Config) -> AsyncIterator[None]:
        await attempt(ctx)
        yield

    @plugin("returning")
    async def returning(ctx: Context, config: Config) -> None:
        ctx.spawn(attempt, ctx)

    async with kernel(yielding, returning) as root:
        await attempt(row(root, "returning").ctx)
        await tried.wait()
        assert sum("around the yield" in text for text in refused) == 1


async def ticking(log: list[str], name: str) -> None:
    log.append(f"{name} starts")
    try:
        await anyio.sleep_forever()
    finally:
        log.append(f"{name} stops")


def worker(log: list[str]) -> Plugin[Config]:
    @plugin("worker")
    async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
        async def watch() -> None:
            await ctx.published()
            log.append("published")
            await ctx.retired()
            log.append("retired")

        ctx.spawn(ticking, log, "visible")
        ctx.spawn(ticking, log, "open", while_open=True)
        ctx.spawn(watch, while_open=True)
        yield
        log.append("closed")

    return body


async def test_a_task_acts_while_its_fiber_is_visible_and_one_while_open_until_the_release() -> None:
    log: list[str] = []
    async with kernel() as root:
        async with root.kernel.stage() as stage:
            fiber = root.plugin(worker(log), stage=stage)
            await stage.settled()
            await wait_all_tasks_blocked()
            assert log == ["open starts"], "staged: what acts only while visible has not begun"
            stage.commit()
        await wait_all_tasks_blocked()
        assert sorted(log[1:]) == ["published", "visible starts"]
        with root.leased("a reader"):
            away = root.kernel.stage()
            away.retire(fiber)
            away.commit()
            await wait_all_tasks_blocked()
            assert sorted(log[3:]) == ["retired", "visible stops"]
            assert fiber.draining
            with pytest.raises(InactiveFiberError):
                fiber.ctx.spawn(ticking, log, "late")
            assert "late starts" not in log
        await fiber.closing()
        assert log[5:] == ["open stops", "closed"]


async def test_a_task_of_a_discarded_stage_never_runs() -> None:
    log: list[str] = []
    async with kernel() as root:
        async with root.kernel.stage() as stage:
            root.plugin(worker(log), stage=stage)
            await stage.settled()
        assert log == ["open starts", "open stops", "closed"]


async def test_the_body_itself_may_not_wait_for_its_own_publication() -> None:
    @plugin("impatient")
    async def impatient(ctx: Context, config: Config) -> None:
        with pytest.raises(WrongTaskError, match="the body opens before it is published"):
            await ctx.published()

    async with kernel(impatient) as root:
        assert row(root, "impatient").state is FiberState.ACTIVE


async def test_a_task_survives_the_garbage_collector_and_is_cancelled_and_awaited_at_the_end() -> None:
    log: list[str] = []

    @plugin("forgetful")
    async def forgetful(ctx: Context, config: Config) -> None:
        ctx.spawn(ticking, log, "task")

    async with kernel(forgetful) as root:
        await wait_all_tasks_blocked()
        for _ in range(50):
            gc.collect()
            await checkpoint()
        assert log == ["task starts"]
        await row(root, "forgetful").dispose()
        assert log == ["task starts", "task stops"]


async def test_a_task_that_raises_unloads_its_own_fiber_in_order_which_is_reopened_with_back_off() -> None:
    log: list[str] = []
    opened: list[float] = []
    third = anyio.Event()

    @plugin("clumsy")
    async def clumsy(ctx: Context, config: Config) -> AsyncIterator[None]:
        async def stumble() -> None:
            raise RuntimeError("I stumbled")

        opened.append(anyio.current_time())
        ctx.defer(lambda: log.append("undone"))
        if len(opened) < 3:
            ctx.spawn(stumble)
        else:
            third.set()
        yield
        log.append("closed")

    backoff = Backoff(initial=0.02, factor=3)
    with capture_logs() as logged:
        async with kernel(worker([]), clumsy, backoff=backoff) as root:
            sibling = row(root, "worker")
            await third.wait()
            await row(root, "clumsy").settled()
            assert (row(root, "clumsy").state, row(root, "clumsy").crashes) == (FiberState.ACTIVE, 2)
            assert log == ["undone", "closed"] * 2
            assert opened[1] - opened[0] >= 0.02
            assert opened[2] - opened[1] >= 0.06
            assert row(root, "worker") is sibling
            assert sibling.state is FiberState.ACTIVE
    assert [(e["event"], e["row"], str(e["exc_info"])) for e in logged] == [
        ("plugin failed", "clumsy", "I stumbled")
    ] * 2


async def test_a_task_runs_in_the_context_variables_of_its_fiber_not_in_those_of_any_caller() -> None:
    seen: dict[str, str] = {}
    told = anyio.Event()

    @plugin("speaker")
    async def speaker(ctx: Context, config: Config) -> None:
        async def look(name: str) -> None:
            seen[name] = WHO.get()
            if name == "by a listener":
                told.set()

        seen["body"] = WHO.get()
        ctx.spawn(look, "before")
        WHO.set("the fiber")
        ctx.spawn(look, "after")

        def hear(who: str) -> None:
            ctx.spawn(look, "by a listener")

        ctx.on(PING, hear)

    async with kernel() as root:
        WHO.set("the caller")
        await root.plugin(speaker).settled()
        root.emit(PING, "somebody")
        await told.wait()
        assert seen["body"] == "nobody"
        assert (seen["after"], seen["by a listener"]) == ("the fiber", "the fiber")


def child_process(name: str, log: list[str]) -> Plugin[Config]:
    @plugin(name)
    async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ticking, log, name)
            await wait_all_tasks_blocked()
            yield
            tasks.cancel_scope.cancel()

    return body


async def test_task_groups_held_across_the_yield_may_be_closed_in_any_order_from_any_task() -> None:
    log: list[str] = []
    async with kernel(child_process("one", log), child_process("two", log)) as root:
        first, second = row(root, "one"), row(root, "two")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.dispose)
        assert (log[2:], second.state) == (["one stops"], FiberState.ACTIVE)
        await second.dispose()
        assert log[2:] == ["one stops", "two stops"]
        assert (first.error, second.error) == (None, None)


async def test_a_task_group_that_fails_across_the_yield_fails_its_plugin_with_the_error_of_the_child() -> None:
    log: list[str] = []
    burn = anyio.Event()

    async def child() -> None:
        await burn.wait()
        raise RuntimeError("the child failed")

    async def cleanup() -> None:
        await checkpoint()
        log.append("cleaned up")

    @plugin("holder")
    async def holder(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.defer(cleanup)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child)
                yield
                log.append("went on as if nothing had happened")
        finally:
            log.append("left")

    async with kernel(worker([]), holder, backoff=Backoff(initial=1000)) as root:
        fiber = row(root, "holder")
        burn.set()
        await fiber.closing()
        with pytest.raises(RuntimeError, match="the child failed"):
            await fiber.settled()
        assert (fiber.state, log) == (FiberState.FAILED, ["cleaned up", "left"])
        assert row(root, "worker").state is FiberState.ACTIVE
