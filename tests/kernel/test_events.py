"""Events: five modes, typed, ordered by declaration, and contained."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from dshd import Bail, Config, Context, Emit, Next, Parallel, Plugin, Serial, Waterfall, plugin
from dshd.kernel.errors import EventModeError, NextCalledTwiceError, PluginExitError, StrayCancellationError
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Word:
    text: str = "hello"


HELLO = Word()
SAID = Emit[Word]("said")
CREATED = Emit[Word]("created", veto=True)
SPREAD = Parallel[Word]("spread")
PICKED = Bail[Word, object]("picked")
ASKED = Serial[Word, object]("asked")
STOPPING = Serial[Word, None]("stopping", answers=False)
SHAPED = Waterfall[Word, str]("shaped")

in_every_mode = pytest.mark.parametrize("event", [SAID, PICKED, SPREAD, ASKED, SHAPED], ids=lambda event: event.name)
in_awaited_modes = pytest.mark.parametrize("event", [SPREAD, ASKED, SHAPED], ids=lambda event: event.name)


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


async def innermost(word: Word) -> str:
    return word.text


async def dispatch(ctx: Context, event: Any) -> object:
    """Dispatch `event` in its own mode."""
    if isinstance(event, Waterfall):
        return await ctx.waterfall(event, HELLO, innermost)
    answer: object = getattr(ctx, type(event).__name__.lower())(event, HELLO)
    return await answer if inspect.isawaitable(answer) else answer


async def failure(ctx: Context, event: Any) -> object:
    """What the only listener of `event` failed with: logged for an emit, raised to the asker in every other mode."""
    with capture_logs() as logs:
        try:
            await dispatch(ctx, event)
        except ExceptionGroup as group:
            return group.exceptions[0]
        except Exception as error:
            return error
    return logs[0]["exc_info"]


def listening(event: Any, heard: Callable[[], object]) -> Callable[..., Any]:
    """A listener of the colour of `event` that answers what `heard` returns (awaited), or delegates."""

    def sync(word: Word) -> object:
        return heard()

    async def coloured(word: Word, next: Next[str] | None = None) -> object:
        result = heard()
        if inspect.isawaitable(result):
            result = await result
        return result if next is None else await next()

    return sync if isinstance(event, (Emit, Bail)) else coloured


def clumsy(word: Word) -> None:
    raise ValueError("clumsy")


@in_every_mode
async def test_a_listener_hears_until_its_effect_is_disposed_or_its_plugin_ends(event: Any) -> None:
    heard: list[str] = []
    async with started() as root:
        effect = root.on(event, listening(event, lambda: heard.append("root")))
        fiber = root.plugin(row("a", lambda ctx: ctx.on(event, listening(event, lambda: heard.append("a")))))
        await fiber.settled()
        await dispatch(root, event)
        assert sorted(heard) == ["a", "root"]
        for leaving in (effect, fiber):
            await leaving.dispose()
            await dispatch(root, event)
        assert sorted(heard) == ["a", "a", "root"]


@in_every_mode
async def test_once_is_removed_before_its_first_call(event: Any) -> None:
    live: list[bool] = []
    async with started() as root:
        effect = root.once(event, listening(event, lambda: live.append(effect.live)))
        await dispatch(root, event)
        await dispatch(root, event)
        assert live == [False]


@in_awaited_modes
async def test_once_is_called_once_though_two_dispatches_in_flight_have_selected_it(event: Any) -> None:
    heard: list[str] = []
    arrived: list[str] = []
    both, go = anyio.Event(), anyio.Event()

    async def hold() -> None:
        arrived.append("here")
        if len(arrived) == 2:
            both.set()
        await go.wait()

    async with started() as root:
        root.on(event, listening(event, hold))
        root.once(event, listening(event, lambda: heard.append("once")))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatch, root, event)
            tasks.start_soon(dispatch, root, event)
            await both.wait()
            go.set()
        assert heard == ["once"]


@pytest.mark.parametrize("names", ["abc", "cba", "bca"])
async def test_order_is_priority_then_row_path_then_order_in_the_body_and_never_mount_time(names: str) -> None:
    heard: list[str] = []

    def speaking(name: str) -> Plugin[Config]:
        def setup(ctx: Context) -> None:
            ctx.on(SAID, lambda _: heard.append(f"{name} late"), priority=5)
            ctx.on(SAID, lambda _: heard.append(f"{name} one"))
            ctx.on(SAID, lambda _: heard.append(f"{name} two"))
            ctx.on(SAID, lambda _: heard.append(f"{name} first"), prepend=True)
            ctx.on(SAID, lambda _: heard.append(f"{name} early"), priority=-5)

        return row(name, setup)

    def spoken(root: Context) -> str:
        heard.clear()
        root.emit(SAID, HELLO)
        return ", ".join(heard)

    expected = (
        "a first, b first, c first, a early, b early, c early, "
        "a one, a two, b one, b two, c one, c two, a late, b late, c late"
    )
    async with started(*map(speaking, names)) as root:
        assert spoken(root) == expected
        for name in reversed(names):
            (fiber,) = root.kernel.rows[name]
            await fiber.update({})
            assert spoken(root) == expected, "replaced"
        await fiber.dispose()
        await root.plugin(speaking(names[0])).settled()
        assert spoken(root) == expected, "mounted last"


async def test_emit_tells_everybody_and_logs_what_one_raises_with_its_owner() -> None:
    heard: list[Word] = []
    async with started(
        row("a", lambda ctx: ctx.on(SAID, lambda word: heard.append(word))),
        row("b", lambda ctx: ctx.on(SAID, clumsy)),
        row("c", lambda ctx: ctx.on(SAID, heard.append)),
    ) as root:
        with capture_logs() as logs:
            assert root.emit(SAID, HELLO) is None  # type: ignore[func-returns-value]
        assert [word is HELLO for word in heard] == [True, True]
        (log,) = logs
        assert (log["log_level"], log["plugin"], log["row"], log["of"]) == ("error", "b", "b", "said")
        assert "clumsy" in log["listener"]
        assert isinstance(log["exc_info"], ValueError)


async def test_a_vetoing_emit_raises_the_first_exception_to_its_emitter_and_tells_nobody_else() -> None:
    heard: list[str] = []
    async with started() as root:
        root.on(CREATED, lambda _: heard.append("before"))
        root.on(CREATED, clumsy)
        root.on(CREATED, lambda _: heard.append("after"))
        with pytest.raises(ValueError, match="clumsy"):
            root.emit(CREATED, HELLO)
        assert heard == ["before"]


async def test_parallel_runs_all_at_once_to_their_end_and_then_raises_their_errors_together() -> None:
    finished: list[str] = []
    failed = anyio.Event()

    async def finish(word: Word) -> None:
        await failed.wait()
        await anyio.lowlevel.checkpoint()
        finished.append("finished")

    async def fail(word: Word) -> None:
        failed.set()
        raise ValueError("clumsy")

    async with started() as root:
        for listener in (finish, fail, fail):
            root.on(SPREAD, listener)
        with pytest.raises(ExceptionGroup, match="spread") as caught:
            await root.parallel(SPREAD, HELLO)
        assert [type(error) for error in caught.value.exceptions] == [ValueError, ValueError]
        assert finished == ["finished"]


@pytest.mark.parametrize("event", [ASKED, PICKED], ids=lambda event: event.name)
@pytest.mark.parametrize("answer", [False, 0, "yes"], ids=repr)
async def test_none_abstains_and_any_other_answer_ends_the_question(event: Any, answer: object) -> None:
    asked: list[object] = []

    def note(value: object) -> object:
        asked.append(value)
        return value

    async with started() as root:
        assert await dispatch(root, event) is None
        for value in (None, answer, "never asked"):
            root.on(event, listening(event, partial(note, value)))
        assert await dispatch(root, event) is answer
        assert asked == [None, answer]


async def test_an_event_that_takes_no_answer_runs_everybody_and_logs_a_stray_answer_as_that_listeners_fault() -> None:
    heard: list[str] = []

    async with started(
        row("a", lambda ctx: ctx.on(STOPPING, listening(STOPPING, lambda: False))),
        row("b", lambda ctx: ctx.on(STOPPING, listening(STOPPING, lambda: heard.append("b")))),
    ) as root:
        with capture_logs() as logs:
            await root.serial(STOPPING, HELLO)
        assert heard == ["b"]
        assert [(log["log_level"], log["row"], "listening" in log["listener"]) for log in logs] == [
            ("error", "a", True)
        ]


async def test_a_waterfall_listener_delegates_inward_or_answers_for_all_inner_ones() -> None:
    seen: list[Word] = []

    def wrapping(mark: str, delegates: bool = True) -> Callable[[Word, Next[str]], Any]:
        async def listener(word: Word, next: Next[str]) -> str:
            seen.append(word)
            return f"{mark}({await next()})" if delegates else mark

        return listener

    async with started() as root:
        assert await root.waterfall(SHAPED, HELLO, innermost) == "hello"
        root.on(SHAPED, wrapping("outer"))
        root.on(SHAPED, wrapping("inner"))
        assert await root.waterfall(SHAPED, HELLO, innermost) == "outer(inner(hello))"
        root.on(SHAPED, wrapping("short", delegates=False), priority=-1)
        assert await root.waterfall(SHAPED, HELLO, innermost) == "short"
        assert [word is HELLO for word in seen] == [True] * 3, "everybody is given the same payload"


async def test_nothing_a_listener_does_alters_what_inner_ones_are_given() -> None:
    async def altering(word: Word, next: Next[str]) -> str:
        with pytest.raises(TypeError):
            next(Word("altered"))  # type: ignore[call-arg]
        return await next()

    async with started() as root:
        root.on(SHAPED, altering)
        assert await root.waterfall(SHAPED, HELLO, innermost) == "hello"


@pytest.mark.parametrize("how", ["on", "once"])
async def test_a_second_next_is_an_error_that_names_the_listener(how: str) -> None:
    async def greedy(word: Word, next: Next[str]) -> str:
        return await next() + await next()

    async with started(row("a", lambda ctx: getattr(ctx, how)(SHAPED, greedy))) as root:
        with pytest.raises(NextCalledTwiceError, match=r"greedy.*'a'") as caught:
            await root.waterfall(SHAPED, HELLO, innermost)
        assert caught.value.event == "shaped"


@in_every_mode
async def test_one_event_name_has_one_mode(event: Any) -> None:
    other: Any = Bail[Word, object](event.name) if isinstance(event, Emit) else Emit[Word](event.name)
    async with started() as root:
        root.on(event, listening(event, lambda: None))
        with pytest.raises(EventModeError, match=event.name):
            root.on(other, listening(other, lambda: None))
        with pytest.raises(EventModeError, match=event.name):
            await dispatch(root, other)


@pytest.mark.parametrize("event", [SAID, PICKED], ids=lambda event: event.name)
@pytest.mark.parametrize("how", ["on", "once"])
async def test_an_async_listener_is_refused_on_a_synchronous_event(event: Any, how: str) -> None:
    async def coloured(word: Word) -> None:
        pass

    async with started() as root:
        with pytest.raises(EventModeError, match="coloured"):
            getattr(root, how)(event, coloured)


@in_every_mode
async def test_what_is_removed_or_added_during_a_dispatch_does_not_disturb_it(event: Any) -> None:
    heard: list[str] = []
    async with started() as root:

        def change() -> None:
            leaving.release()
            root.on(event, listening(event, lambda: heard.append("added")))

        root.once(event, listening(event, change), priority=-1)
        leaving = root.on(event, listening(event, lambda: heard.append("removed")))
        await dispatch(root, event)
        assert heard == ["removed"]
        await dispatch(root, event)
        assert heard == ["removed", "added"]


@in_every_mode
async def test_a_listener_that_calls_sys_exit_fails_alone(event: Any) -> None:
    async with started(row("a", lambda ctx: ctx.on(event, listening(event, lambda: sys.exit(3))))) as root:
        error = await failure(root, event)
        assert isinstance(error, SystemExit if event is SAID else PluginExitError)


@in_every_mode
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_of_what_a_listener_awaits_is_its_error_and_not_the_callers(event: Any) -> None:
    async with started() as root:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        fails = future.result if event in (SAID, PICKED) else lambda: future
        await root.plugin(row("a", lambda ctx: ctx.on(event, listening(event, fails)))).settled()
        error = await failure(root, event)
        assert isinstance(error, asyncio.CancelledError if event is SAID else StrayCancellationError)


@in_awaited_modes
async def test_a_cancellation_of_the_caller_passes_through_its_listeners(event: Any) -> None:
    begun = anyio.Event()

    async def wait() -> None:
        begun.set()
        await anyio.sleep_forever()

    async with started() as root:
        for _ in range(2):
            root.on(event, listening(event, wait))
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(dispatch, root, event)
                await begun.wait()
                scope.cancel()
        assert scope.cancelled_caught
        assert list(root.kernel.leases) == [], "the dispatch holds nothing any more"


@in_awaited_modes
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_of_the_calling_task_passes_through_its_listeners(event: Any) -> None:
    begun = anyio.Event()

    async def wait() -> None:
        begun.set()
        await anyio.sleep_forever()

    async with started() as root:
        root.on(event, listening(event, wait))
        caller = asyncio.create_task(dispatch(root, event))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
