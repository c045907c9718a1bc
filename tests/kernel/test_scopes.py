"""Scopes: what is contributed for one agent counts for that agent, and ends with it or with its plugin."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from dshd import Bail, Config, Context, Emit, Next, Parallel, Plugin, RegistryKey, Scope, Serial, Waterfall, plugin
from dshd.kernel.errors import ClosedScopeError, EntryConflictError, InactiveFiberError, UnscopedEventError
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class News:
    about: Scope | None


def subject(news: News) -> Scope | None:
    return news.about


TOLD = Emit[News]("told", subject=subject)
UNSCOPED = Emit[News]("unscoped")
EVENTS: list[Any] = [
    TOLD,
    Parallel[News]("spread", subject=subject),
    Bail[News, object]("picked", subject=subject),
    Serial[News, object]("asked", subject=subject),
    Waterfall[News, object]("shaped", subject=subject),
]
TOOL = RegistryKey[str]("tool")


@asynccontextmanager
async def started(*plugins: Plugin[Any]) -> AsyncIterator[Context]:
    with anyio.fail_after(5):
        async with running(*plugins) as root:
            yield root


def row(name: str, setup: Callable[[Context], object]) -> Plugin[Config]:
    @plugin(name)
    async def body(ctx: Context, config: Config) -> None:
        setup(ctx)

    return body


def listening(event: Any, heard: Callable[[], object]) -> Callable[..., Any]:
    def sync(news: News) -> None:
        heard()

    async def coloured(news: News, next: Next[object] | None = None) -> object:
        heard()
        return None if next is None else await next()

    return sync if isinstance(event, (Emit, Bail)) else coloured


async def dispatch(ctx: Context, event: Any, news: News) -> None:
    async def innermost(news: News) -> None:
        pass

    if isinstance(event, Waterfall):
        await ctx.waterfall(event, news, innermost)
    else:
        result = getattr(ctx, type(event).__name__.lower())(event, news)
        if not isinstance(event, (Emit, Bail)):
            await result


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
async def test_a_scoped_listener_hears_only_what_is_about_its_scope_and_an_unscoped_one_hears_all(event: Any) -> None:
    one, two, nobody = Scope("one"), Scope("two"), Scope("nobody listens")
    heard: list[str] = []

    def setup(ctx: Context) -> None:
        ctx.on(event, listening(event, lambda: heard.append("all")))
        ctx.scoped(one).on(event, listening(event, lambda: heard.append("one")))
        ctx.scoped(two).on(event, listening(event, lambda: heard.append("two")))

    async with started(row("a", setup)) as root:
        for about, expected in ((one, ["all", "one"]), (two, ["all", "two"]), (nobody, ["all"]), (None, ["all"])):
            heard.clear()
            await dispatch(root, event, News(about))
            assert sorted(heard) == expected


async def test_the_filter_follows_the_subject_of_the_payload_and_not_the_context_that_dispatches() -> None:
    one, two = Scope("one"), Scope("two")
    heard: list[str] = []
    async with started() as root:
        root.scoped(one).on(TOLD, lambda _: heard.append("one"))
        root.scoped(two).on(TOLD, lambda _: heard.append("two"))
        root.scoped(one).emit(TOLD, News(two))
        assert heard == ["two"]
        root.scoped(one).emit(TOLD, News(None))
        assert heard == ["two"]
        root.emit(TOLD, News(one))
        assert heard == ["two", "one"]


async def test_scoped_and_unscoped_listeners_are_ordered_together() -> None:
    one = Scope("one")
    heard: list[str] = []

    def setup(ctx: Context) -> None:
        ctx.scoped(one).on(TOLD, lambda _: heard.append("scoped late"), priority=2)
        ctx.on(TOLD, lambda _: heard.append("global"), priority=1)
        ctx.scoped(one).on(TOLD, lambda _: heard.append("scoped early"))

    async with started(row("a", setup)) as root:
        root.emit(TOLD, News(one))
        assert heard == ["scoped early", "global", "scoped late"]


async def test_once_for_a_scope_is_not_used_up_by_another_subject() -> None:
    one, two = Scope("one"), Scope("two")
    heard: list[News] = []
    async with started() as root:
        root.scoped(one).once(TOLD, heard.append)
        for about in (None, two, one, one):
            root.emit(TOLD, News(about))
        assert heard == [News(one)]


async def test_a_scoped_listener_on_an_event_about_nobody_is_an_error_and_registers_nothing() -> None:
    async with started() as root:
        effects = len(root.fiber.effects)
        with pytest.raises(UnscopedEventError, match="unscoped"):
            root.scoped(Scope("one")).on(UNSCOPED, lambda _: None)
        assert len(root.fiber.effects) == effects


async def test_a_scoped_entry_shadows_the_global_one_of_its_name_for_that_scope_only() -> None:
    one, two = Scope("one"), Scope("two")
    async with started(
        row("a", lambda ctx: ctx.registry(TOOL).add("read", "global")),
        row("b", lambda ctx: ctx.registry(TOOL).add("write", "global")),
        row("c", lambda ctx: ctx.scoped(one).registry(TOOL).add("read", "scoped")),
    ) as root:
        assert dict(root.registry(TOOL).items()) == {"read": "global", "write": "global"}
        assert dict(root.scoped(two).registry(TOOL).items()) == {"read": "global", "write": "global"}
        seen = root.scoped(one).registry(TOOL)
        assert dict(seen.items()) == {"read": "scoped", "write": "global"}
        assert seen.owner("read") == "c"
        assert len(seen) == 2
        await one.close()
        assert dict(root.scoped(one).registry(TOOL).items()) == {"read": "global", "write": "global"}
        assert seen["read"] == "global"


async def test_a_global_entry_that_comes_later_does_not_uncover_what_a_scope_shadows() -> None:
    one = Scope("one")
    async with started(row("a", lambda ctx: ctx.scoped(one).registry(TOOL).add("read", "scoped"))) as root:
        seen = root.scoped(one).registry(TOOL)
        assert seen["read"] == "scoped"
        entry = root.registry(TOOL).add("read", "global", prepend=True)
        assert (seen["read"], root.registry(TOOL)["read"]) == ("scoped", "global")
        await entry.dispose()
        assert seen["read"] == "scoped"
        assert "read" not in root.registry(TOOL)


async def test_two_entries_of_one_name_conflict_within_a_scope_and_not_across_scopes() -> None:
    one, two = Scope("one"), Scope("two")
    async with started() as root:
        root.scoped(one).registry(TOOL).add("read", "first")
        root.scoped(two).registry(TOOL).add("read", "another")
        with pytest.raises(EntryConflictError, match="read"):
            root.scoped(one).registry(TOOL).add("read", "second")
        assert root.scoped(one).registry(TOOL)["read"] == "first"


async def test_a_scope_that_closes_ends_what_several_plugins_contributed_the_last_first() -> None:
    one = Scope("one")
    order: list[str] = []
    heard: list[str] = []

    def setup(name: str) -> Callable[[Context], object]:
        def contribute(ctx: Context) -> None:
            for_one = ctx.scoped(one)
            for_one.on(TOLD, lambda _: heard.append(name))
            for_one.defer(lambda: order.append(f"{name} first"))
            for_one.defer(lambda: order.append(f"{name} last"))
            ctx.defer(lambda: order.append(f"{name} itself"))

        return contribute

    async with started() as root:
        for name in "ab":
            await root.plugin(row(name, setup(name))).settled()
        root.emit(TOLD, News(one))
        assert heard == ["a", "b"]
        await one.close()
        assert order == ["b last", "b first", "a last", "a first"]
        root.emit(TOLD, News(one))
        assert heard == ["a", "b"], "nobody listens any more"
        await one.close()
        for name in "ab":
            (fiber,) = root.kernel.rows[name]
            assert [effect.label.split()[0] for effect in fiber.effects] == ["defer"], "only what is not of the scope"
            await fiber.dispose()
        assert order[4:] == ["a itself", "b itself"], "what ended with the scope does not end again"


async def test_each_effect_of_a_scope_ends_before_the_next_one_and_a_failing_one_stops_nothing() -> None:
    one = Scope("one")
    order: list[str] = []
    go = anyio.Event()

    async def slow() -> None:
        order.append("slow begins")
        await go.wait()
        order.append("slow ends")

    def fail() -> None:
        raise ValueError("clumsy")

    def setup(ctx: Context) -> None:
        for_one = ctx.scoped(one)
        for cleanup in (lambda: order.append("first"), fail, slow):
            for_one.defer(cleanup)

    async with started(row("a", setup)), anyio.create_task_group() as tasks:
        with capture_logs() as logs:
            tasks.start_soon(one.close)
            await anyio.wait_all_tasks_blocked()
            assert order == ["slow begins"]
            go.set()
            await anyio.wait_all_tasks_blocked()
        assert order == ["slow begins", "slow ends", "first"]
        assert [log["row"] for log in logs] == ["a"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cleanup_of_a_scope_cancelled_by_what_it_awaits_stops_nothing() -> None:
    one = Scope("one")
    order: list[str] = []
    async with started() as root:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        root.scoped(one).defer(lambda: order.append("first"))
        root.scoped(one).defer(lambda: gone)
        await one.close()
        assert order == ["first"]


async def test_a_scope_whose_closing_was_cancelled_leaves_nothing_behind_when_closed_again() -> None:
    one = Scope("one")
    begun = anyio.Event()

    async def slow() -> None:
        begun.set()
        await anyio.sleep_forever()

    async with started() as root:
        root.scoped(one).registry(TOOL).add("read", "x")
        root.scoped(one).defer(slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.close)
            await begun.wait()
            tasks.cancel_scope.cancel()
        await one.close()
        assert list(root.scoped(one).registry(TOOL)) == []


async def test_tasks_and_children_of_a_scope_end_with_it() -> None:
    one = Scope("one")
    ended: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("task")

    @plugin("child")
    async def child(ctx: Context, config: Config) -> AsyncIterator[None]:
        yield
        ended.append("child")

    def setup(ctx: Context) -> None:
        ctx.scoped(one).plugin(child)
        ctx.scoped(one).spawn(work)

    async with started(row("a", setup)) as root:
        (fiber,) = root.kernel.rows["a"]
        (kid,) = fiber.kids
        await kid.settled()
        await anyio.wait_all_tasks_blocked()
        await one.close()
        assert ended == ["task", "child"]
        assert not fiber.effects


async def test_what_a_plugin_contributed_to_a_scope_ends_with_the_plugin() -> None:
    one = Scope("one")
    ended: list[str] = []

    def setup(ctx: Context) -> None:
        ctx.scoped(one).registry(TOOL).add(ctx.fiber.path, "x")
        ctx.scoped(one).defer(lambda: ended.append(ctx.fiber.path))

    async with started(row("a", setup), row("b", setup)) as root:
        (fiber,) = root.kernel.rows["a"]
        assert list(root.scoped(one).registry(TOOL)) == ["a", "b"]
        await fiber.dispose()
        assert list(root.scoped(one).registry(TOOL)) == ["b"]
        assert ended == ["a"]
        await one.close()
        assert ended == ["a", "b"], "what ended with its plugin does not end again"


async def test_registering_in_a_closed_scope_is_a_typed_error_that_names_it_and_registers_nothing() -> None:
    one = Scope("agent one")
    async with started() as root:
        await one.close()
        effects = len(root.fiber.effects)
        for_one = root.scoped(one)
        attempts: list[Callable[[], object]] = [
            lambda: for_one.on(TOLD, lambda _: None),
            lambda: for_one.once(TOLD, lambda _: None),
            lambda: for_one.registry(TOOL).add("read", "x"),
            lambda: for_one.defer(lambda: None),
            lambda: for_one.spawn(anyio.sleep_forever),
            lambda: for_one.plugin(row("late", lambda ctx: None)),
        ]
        for attempt in attempts:
            with pytest.raises(ClosedScopeError, match="agent one") as caught:
                attempt()
            assert isinstance(caught.value, InactiveFiberError)
        assert (len(root.fiber.effects), root.scoped(one).registry(TOOL).get("read")) == (effects, None)


async def test_a_scope_refuses_from_the_moment_it_begins_to_close() -> None:
    one = Scope("one")
    refused: list[str] = []
    async with started() as root:

        def contribute() -> None:
            with pytest.raises(ClosedScopeError):
                root.scoped(one).defer(lambda: None)
            refused.append("refused")

        root.scoped(one).defer(contribute)
        await one.close()
        assert refused == ["refused"]


def calls_of(func: Callable[[], object]) -> int:
    """How many Python functions run while `func` does."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.disable()  # what a collection in the middle finalises would be counted
    sys.setprofile(note)
    try:
        func()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


async def test_a_thousand_scopes_cost_nothing_to_what_is_not_about_them() -> None:
    heard: list[News] = []

    async def cost(others: int) -> list[int]:
        one = Scope("one")
        async with started() as root:
            for_one = root.scoped(one)
            for scope in [one, *(Scope(str(n)) for n in range(others))]:
                root.scoped(scope).on(TOLD, heard.append)
                root.scoped(scope).registry(TOOL).add("read", scope.name)
            heard.clear()
            counted = []
            for _ in range(2):  # at first what is seen is worked out, then it is remembered
                counted += [
                    calls_of(lambda: root.emit(TOLD, News(one))),
                    calls_of(lambda: root.emit(TOLD, News(None))),
                    calls_of(lambda: for_one.registry(TOOL)["read"]),
                    calls_of(lambda: for_one.on(TOLD, heard.append)),
                    calls_of(lambda: for_one.registry(TOOL).add("write", "x").release()),
                ]
            assert len(heard) == 3, "one listener the first time, two the second"
            return counted

    assert await cost(1) == await cost(1000)
