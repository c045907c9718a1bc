"""The pipeline under everything that plugins, models and callers may do to it."""

import gc
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import date
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from dshd import Aborted, Aborter, Context, Next, Scope, ServiceKey, Signal
from dshd.capabilities.tools import (
    GUARD,
    POST_EXECUTE,
    PRE_EXECUTE,
    TOOL_EXECUTE,
    TOOL_RESULT,
    TOOLS,
    AfterExecution,
    Allow,
    Denial,
    Deny,
    PostDecision,
    PreDecision,
    ToolCall,
    ToolCode,
    ToolDefinition,
    ToolError,
    ToolFailure,
    ToolOutcome,
    ToolSuccess,
    tool,
)
from dshd.capabilities.values import BLOCK_KINDS, Extension, Kind, TextBlock, text_of, user_message
from dshd.testing.contracts.tools import (
    a_call,
    around,
    echo,
    failed,
    offering,
    results,
    stumble,
    succeeded,
    tools_of,
)
from dshd.testing.kernel import running
from dshd_plugins.tools import tools

pytestmark = pytest.mark.anyio

CONTEXT = user_message("by the way")
NUMBER = ServiceKey[int]("number")


def returning(value: Any) -> ToolDefinition:
    """A tool called `give` that returns a value, or what a function gives."""

    async def give(call: ToolCall) -> Any:
        return value() if callable(value) else value

    return ToolDefinition(name="give", description="Give.", parameters={"type": "object"}, execute=give)


async def given(value: Any) -> ToolOutcome:
    async with running(tools, offering("row", returning(value))) as root:
        told = results(root)
        outcome = await tools_of(root).execute(a_call("give"))
        assert [each.outcome for each in told] == [outcome]
        return outcome


# -- what a tool returns


class Forecast(BaseModel):
    day: date
    city: str


@dataclass
class Pair:
    left: int


BLOCK = TextBlock("block")
PICTURE = Extension("image", {"url": "x"})


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", (TextBlock("text"),)),
        ("a\ud800b", (TextBlock("a\ud800b"),)),
        ("", (TextBlock(""),)),
        (None, ()),
        (BLOCK, (BLOCK,)),
        ([BLOCK, PICTURE], (BLOCK, PICTURE)),
        ([], (TextBlock("[]"),)),
        (True, (TextBlock("true"),)),
        ({"ä": [1, None]}, (TextBlock('{"ä": [1, null]}'),)),
        ({"mean": float("nan")}, (TextBlock('{"mean": NaN}'),)),
        (Forecast(day=date(2024, 2, 29), city="Ulm"), (TextBlock('{"day": "2024-02-29", "city": "Ulm"}'),)),
        ([Pair(1)], (TextBlock('[{"left": 1}]'),)),
        ({"a"}, (TextBlock('["a"]'),)),
    ],
)
async def test_what_a_tool_returns_is_made_readable_and_kept_as_it_is(value: Any, content: Any) -> None:
    outcome = succeeded(await given(value))
    assert outcome.content == content
    assert outcome.value is value


async def test_a_tool_may_return_the_whole_outcome() -> None:
    success = ToolSuccess(content=(BLOCK,), meta={"a": 1}, contexts=(CONTEXT,), concludes_turn=True)
    failure = ToolFailure(message="no", code="OWN", contexts=(CONTEXT,))
    assert await given(success) is success
    assert await given(failure) is failure


def ring() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


async def forgotten() -> None: ...


class Rude(BaseException):
    """None of the exceptions that one thinks of."""


def raising(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [BLOCK, object()],
        {"a": object()},
        b"\xff",
        ring,
        lambda: 10**5000,
        lambda: forgotten(),
        lambda: ToolSuccess(content="text"),  # type: ignore[arg-type]
        lambda: ToolSuccess(content=(TextBlock(5),)),  # type: ignore[arg-type]
        lambda: ToolSuccess(content=(), contexts=("text",)),  # type: ignore[arg-type]
        lambda: ToolSuccess(content=(), contexts=(user_message([TextBlock(5)]),)),  # type: ignore[arg-type]
        lambda: ToolSuccess(content=(), concludes_turn="yes"),  # type: ignore[arg-type]
        lambda: ToolFailure(message="no", code=7),  # type: ignore[arg-type]
        lambda: ToolFailure(message="no", code=""),
        lambda: ToolFailure(message=7, code="OWN"),  # type: ignore[arg-type]
    ],
)
async def test_what_cannot_be_read_is_told_to_the_author_and_not_to_the_model(value: Any) -> None:
    with capture_logs() as log:
        outcome = failed(await given(value), ToolCode.INTERNAL)
    assert outcome.message == "tool give ran, but its result cannot be shown"
    assert [(line["tool"], line["of"]) for line in log] == [("give", "row")]
    gc.collect()  # a coroutine that was not awaited would warn now


class Picture(BaseModel):
    url: str


async def test_blocks_that_their_registered_kind_refuses_are_found_before_they_are_to_be_logged() -> None:
    bad, good = Extension("image", {"url": 5}), Extension("image", {"url": "x"})
    outcomes = {
        "bad": bad,
        "bad context": ToolSuccess(content=(), contexts=(user_message([bad]),)),
        "good": good,
    }
    came = {}
    for name, value in outcomes.items():
        with capture_logs():
            async with running(tools, offering("row", returning(value))) as root:
                root.registry(BLOCK_KINDS).add("image", Kind(model=Picture))
                came[name] = await tools_of(root).execute(a_call("give"))
    failed(came["bad"], ToolCode.INTERNAL)
    failed(came["bad context"], ToolCode.INTERNAL)
    assert succeeded(came["good"]).content == (good,)


async def test_meta_that_is_no_json_is_a_fault_of_the_tool() -> None:
    with capture_logs():
        failed(await given(lambda: ToolSuccess(content=(), meta={"a": object()})), ToolCode.INTERNAL)


# -- what a tool raises


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ToolError("the door is locked"), ToolCode.TOOL_ERROR, "the door is locked"),
        (ToolError("no", "OWN"), "OWN", "no"),
        (ToolError(" "), ToolCode.TOOL_ERROR, "the tool gives no reason"),
        (ExceptionGroup("x", [ToolError("inside")]), ToolCode.TOOL_ERROR, "inside"),
        (Aborted("the user"), ToolCode.ABORTED, "tool give was stopped: the user"),
        (OSError(2, "no such file", "a.txt"), ToolCode.INTERNAL, "tool give failed: [Errno 2] no such file: 'a.txt'"),
        (KeyError(), ToolCode.INTERNAL, "tool give failed"),
        (ExceptionGroup("x", [ToolError("a"), KeyError("b")]), ToolCode.INTERNAL, "tool give failed: a"),
        (TimeoutError(), ToolCode.INTERNAL, "tool give failed"),
        (SystemExit("bye"), ToolCode.INTERNAL, "tool give failed"),
        (KeyboardInterrupt(), ToolCode.INTERNAL, "tool give failed"),
        (Rude("rude"), ToolCode.INTERNAL, "tool give failed: rude"),
        (ValueError("x" * 10_000), ToolCode.INTERNAL, f"tool give failed: {'x' * 499}…"),
    ],
)
async def test_whatever_a_body_raises_is_a_failure(error: BaseException, code: str, message: str) -> None:
    with capture_logs() as log:
        outcome = failed(await given(raising(error)), code)
    assert (outcome.message, outcome.error) == (message, error)
    assert [line["exc_info"] for line in log] == ([error] if code == ToolCode.INTERNAL else [])


async def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    async def strayed(call: ToolCall) -> None:
        raise anyio.get_cancelled_exc_class()()

    with capture_logs():
        async with running(tools, offering("row", replace(returning(1), execute=strayed))) as root:
            for timeout in (None, 5):
                definition = replace(returning(1), name=f"give-{timeout}", execute=strayed, timeout=timeout)
                await root.plugin(offering("more", definition)).settled()
                failed(await tools_of(root).execute(a_call(f"give-{timeout}")), ToolCode.INTERNAL)
                told = replace(definition, name=f"{definition.name}-told", cooperative=True)
                await root.plugin(offering("told", told)).settled()
                failed(await tools_of(root).execute(a_call(told.name)), ToolCode.INTERNAL)


async def test_an_error_whose_words_are_broken_is_still_a_failure() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with capture_logs():
        assert failed(await given(raising(Mute())), ToolCode.INTERNAL).message == "tool give failed"


async def test_a_body_that_is_no_coroutine_function_is_a_failure() -> None:
    definition = replace(returning(1), execute=lambda call: 5)  # type: ignore[arg-type, return-value]
    with capture_logs():
        async with running(tools, offering("row", definition)) as root:
            failed(await tools_of(root).execute(a_call("give")), ToolCode.INTERNAL)


# -- listeners


async def rubbish(payload: Any, inner: Next[Any]) -> Any:
    return "rubbish"


async def silence(payload: Any, inner: Next[Any]) -> Any:
    await inner()


async def twice(payload: Any, inner: Next[Any]) -> Any:
    await inner()
    return await inner()


async def crash(payload: Any, inner: Next[Any]) -> Any:
    raise RuntimeError("secret words")


async def leave(payload: Any, inner: Next[Any]) -> Any:
    raise SystemExit


async def stray(payload: Any, inner: Next[Any]) -> Any:
    raise anyio.get_cancelled_exc_class()()


async def rude(payload: Any, inner: Next[Any]) -> Any:
    raise Rude


LISTENERS = [rubbish, silence, twice, crash, leave, stray, rude]


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    ("event", "code"),
    [(PRE_EXECUTE, ToolCode.DENIED), (TOOL_EXECUTE, ToolCode.INTERNAL), (POST_EXECUTE, ToolCode.INTERNAL)],
)
async def test_a_listener_at_fault_ends_the_call_in_a_failure_told_once(event: Any, code: str, listener: Any) -> None:
    with capture_logs() as log:
        async with running(
            tools, offering("row", echo), around("listener", lambda ctx: ctx.on(event, listener))
        ) as root:
            told = results(root)
            outcome = failed(await tools_of(root).execute(a_call("echo", {"text": "private"})), code)
            assert [each.outcome for each in told] == [outcome]
    assert "private" not in outcome.message
    assert "secret words" not in outcome.message
    assert len([line for line in log if line["log_level"] == "error"]) == 1


async def test_an_async_function_is_no_guard() -> None:
    async def guard(call: ToolCall) -> None: ...

    async with running(tools) as root:
        with pytest.raises(TypeError, match="async def"):
            tools_of(root).guard(guard)  # type: ignore[arg-type]


async def test_the_first_guard_that_denies_is_the_one_the_model_hears() -> None:
    def set_up(ctx: Context) -> None:
        for answer in (None, Denial("first"), Denial("second")):
            ctx[TOOLS].guard(lambda call, answer=answer: answer)  # type: ignore[misc]

    async with running(tools, offering("row", echo), around("guards", set_up)) as root:
        failed(await tools_of(root).execute(a_call("echo")), ToolCode.DENIED, "denied: first")


async def test_nobody_before_a_call_can_change_its_arguments() -> None:
    async def meddle(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
        with pytest.raises(TypeError):
            call.arguments["text"] = "changed"  # type: ignore[index]
        with pytest.raises(FrozenInstanceError):
            call.raw_arguments = "{}"  # type: ignore[misc]
        return Allow()

    async with running(tools, offering("row", echo), around("m", lambda ctx: ctx.on(PRE_EXECUTE, meddle))) as root:
        succeeded(await tools_of(root).execute(a_call("echo", {"text": "as it was"})), "as it was")


async def test_a_listener_around_the_body_may_answer_itself_and_is_judged_like_the_body() -> None:
    async def cached(call: ToolCall, inner: Next[ToolOutcome]) -> ToolOutcome:
        return ToolSuccess(content=(TextBlock("from memory"),))

    async with running(tools, offering("row", stumble), around("c", lambda ctx: ctx.on(TOOL_EXECUTE, cached))) as root:
        succeeded(await tools_of(root).execute(a_call("stumble")), "from memory")


async def test_a_listener_around_the_body_reads_its_failure_as_an_outcome() -> None:
    async def heal(call: ToolCall, inner: Next[ToolOutcome]) -> ToolOutcome:
        outcome = await inner()
        return ToolSuccess(content=(TextBlock(f"healed {type(outcome).__name__}"),))

    with capture_logs():
        async with running(
            tools, offering("row", stumble), around("heal", lambda ctx: ctx.on(TOOL_EXECUTE, heal))
        ) as root:
            succeeded(await tools_of(root).execute(a_call("stumble")), "healed ToolFailure")


async def after(decision: PostDecision, definition: ToolDefinition) -> ToolOutcome:
    """The outcome of a call of `definition` after which `decision` was made."""

    async def decide(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
        return decision

    with capture_logs():
        async with running(
            tools, offering("row", definition), around("decide", lambda ctx: ctx.on(POST_EXECUTE, decide))
        ) as root:
            return await tools_of(root).execute(a_call(definition.name))


FULL = returning(ToolSuccess(content=(BLOCK,), meta={"a": 1}, contexts=(CONTEXT,), concludes_turn=True))


async def test_a_replaced_value_keeps_what_else_belongs_to_the_result() -> None:
    other = user_message("more")
    outcome = succeeded(await after(PostDecision(replaces_value=True, value=[1], contexts=(other,)), FULL), "[1]")
    assert (outcome.value, outcome.meta, outcome.contexts) == ([1], {"a": 1}, (CONTEXT, other))
    assert outcome.concludes_turn


async def test_the_content_of_a_failure_may_be_replaced_and_it_stays_one() -> None:
    outcome = failed(await after(PostDecision(content=(BLOCK,)), stumble), ToolCode.INTERNAL)
    assert outcome.content == (BLOCK,)


async def test_a_blocked_result_shows_nothing_of_what_it_was_but_its_contexts() -> None:
    outcome = failed(await after(PostDecision(block="read it first"), FULL), ToolCode.BLOCKED)
    assert (outcome.content, outcome.contexts) == ((TextBlock("Error: read it first"),), (CONTEXT,))


@pytest.mark.parametrize(
    "decision",
    [
        PostDecision(replaces_value=True, value=object()),
        PostDecision(content=("text",)),  # type: ignore[arg-type]
        PostDecision(content="text"),  # type: ignore[arg-type]
        PostDecision(contexts=("text",)),  # type: ignore[arg-type]
    ],
)
async def test_a_decision_that_makes_no_result_withholds_it(decision: PostDecision) -> None:
    assert "withheld" in failed(await after(decision, FULL), ToolCode.INTERNAL).message


@pytest.mark.parametrize(
    "more",
    [{"content": (), "block": "x"}, {"content": (), "replaces_value": True}, {"block": "", "replaces_value": True}],
)
def test_a_decision_is_one_thing_only(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not several"):
        PostDecision(**more)


@pytest.mark.parametrize("content", [lambda: "text", lambda: None, lambda: (1,), lambda: forgotten()])
async def test_final_content_that_is_none_withholds_the_result(content: Callable[[], Any]) -> None:
    definition = replace(FULL, finalize_content=lambda call, outcome: content())
    with capture_logs():
        async with running(tools, offering("row", definition)) as root:
            failed(await tools_of(root).execute(a_call("give")), ToolCode.INTERNAL, "withheld")
    gc.collect()


async def test_final_content_is_made_of_the_outcome_that_everybody_has_left() -> None:
    def finalize(call: ToolCall, outcome: ToolOutcome) -> tuple[TextBlock, ...]:
        return (TextBlock(f"{type(outcome).__name__}: {text_of(outcome.content)}"),)

    definition = replace(FULL, finalize_content=finalize)
    succeeded(await after(PostDecision(content=(TextBlock("new"),)), definition), "ToolSuccess: new")
    failed(await after(PostDecision(block="no"), definition), ToolCode.BLOCKED, "ToolFailure: Error: no")


async def test_a_result_listener_that_fails_changes_nothing() -> None:
    def broken(after: AfterExecution) -> None:
        raise RuntimeError("no idea")

    with capture_logs():
        async with running(tools, offering("row", echo)) as root:
            told = results(root)
            root.on(TOOL_RESULT, broken, prepend=True)
            succeeded(await tools_of(root).execute(a_call("echo", {"text": "x"})), "x")
            assert len(told) == 1


# -- stopping


async def stopped_while(
    rows: list[Any], until: anyio.Event, call: Callable[[Signal], ToolCall], grace: float = 10
) -> ToolOutcome:
    """The outcome of a call that is told to stop as soon as `until` is set."""
    aborter = Aborter()
    found: list[ToolOutcome] = []
    with anyio.fail_after(10), capture_logs():
        async with running((tools, {"cancel_grace": grace}), *rows) as root:
            told = results(root)

            async def run() -> None:
                found.append(await tools_of(root).execute(call(aborter.signal)))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await until.wait()
                aborter.abort("the user")
            assert [each.outcome for each in told] == found
    return found[0]


async def test_a_call_stopped_while_it_is_decided_about_was_never_dispatched() -> None:
    asked = anyio.Event()

    async def ponder(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
        asked.set()
        await anyio.sleep_forever()
        return Allow()

    rows = [offering("row", echo), around("ponder", lambda ctx: ctx.on(PRE_EXECUTE, ponder))]
    outcome = await stopped_while(rows, asked, lambda signal: a_call("echo", signal=signal))
    failed(outcome, ToolCode.ABORTED_BEFORE_DISPATCH)


async def test_a_signal_that_comes_with_the_last_decision_still_stops_the_call() -> None:
    aborter = Aborter()
    async with running(
        tools, offering("row", echo), around("g", lambda ctx: ctx[TOOLS].guard(lambda call: stop(aborter)))
    ) as root:
        outcome = await tools_of(root).execute(a_call("echo", signal=aborter.signal))
    failed(outcome, ToolCode.ABORTED_BEFORE_DISPATCH)


def stop(aborter: Aborter) -> None:
    aborter.abort("the guard")


async def test_a_call_that_is_told_to_stop_before_it_begins_is_not_even_looked_at() -> None:
    aborter = Aborter()
    aborter.abort("the user")
    async with running(tools, offering("row", echo)) as root:
        for call in (a_call("nowhere"), a_call("echo", "no JSON")):
            outcome = await tools_of(root).execute(replace(call, signal=aborter.signal))
            failed(outcome, ToolCode.ABORTED_BEFORE_DISPATCH)


async def test_a_listener_around_a_body_is_stopped_with_it() -> None:
    waiting, cleaned = anyio.Event(), []

    async def retry(call: ToolCall, inner: Next[ToolOutcome]) -> ToolOutcome:
        outcome = await inner()
        try:
            waiting.set()
            await anyio.sleep_forever()
        finally:
            cleaned.append(True)
        return outcome

    rows = [offering("row", echo), around("retry", lambda ctx: ctx.on(TOOL_EXECUTE, retry))]
    outcome = await stopped_while(rows, waiting, lambda signal: a_call("echo", signal=signal))
    failed(outcome, ToolCode.ABORTED, "the user")
    assert cleaned


async def test_a_cooperative_body_that_does_not_end_is_stopped_after_the_grace() -> None:
    begun = anyio.Event()

    @tool
    async def stubborn(signal: Signal) -> None:
        """Stubborn."""
        begun.set()
        await anyio.sleep_forever()

    outcome = await stopped_while(
        [offering("row", stubborn)], begun, lambda signal: a_call("stubborn", signal=signal), grace=0.01
    )
    failed(outcome, ToolCode.ABORTED, "the user")


async def test_a_cooperative_body_that_outlasts_timeout_and_grace_timed_out() -> None:
    @tool(timeout=0.01)
    async def stubborn(signal: Signal) -> None:
        """Stubborn."""
        await anyio.sleep_forever()

    async with running((tools, {"cancel_grace": 0.01}), offering("row", stubborn)) as root:
        with anyio.fail_after(5):
            failed(await tools_of(root).execute(a_call("stubborn")), ToolCode.TIMEOUT, "0.01 s")


async def test_a_call_with_a_timeout_follows_the_signal_of_its_turn_as_well() -> None:
    begun = anyio.Event()

    @tool(timeout=60)
    async def careful(signal: Signal) -> str:
        """Careful."""
        begun.set()
        return f"stopped by {await signal.wait()}"

    outcome = await stopped_while([offering("row", careful)], begun, lambda signal: a_call("careful", signal=signal))
    succeeded(outcome, "stopped by the user")


async def test_a_body_that_checks_its_signal_and_gives_up_was_aborted() -> None:
    begun = anyio.Event()

    @tool
    async def checking(signal: Signal) -> None:
        """Checking."""
        begun.set()
        await signal.wait()
        signal.check()

    outcome = await stopped_while([offering("row", checking)], begun, lambda signal: a_call("checking", signal=signal))
    failed(outcome, ToolCode.ABORTED, "the user")


async def test_what_was_begun_is_still_looked_at_after_it_was_stopped() -> None:
    begun, seen = anyio.Event(), []

    async def look(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
        seen.append(after.outcome)
        await anyio.lowlevel.checkpoint()  # the signal does not cancel it
        return PostDecision(contexts=(CONTEXT,))

    @tool
    async def deaf() -> None:
        """Deaf."""
        begun.set()
        await anyio.sleep_forever()

    rows = [offering("row", deaf), around("look", lambda ctx: ctx.on(POST_EXECUTE, look))]
    outcome = failed(await stopped_while(rows, begun, lambda signal: a_call("deaf", signal=signal)), ToolCode.ABORTED)
    assert outcome.contexts == (CONTEXT,)
    assert len(seen) == 1


async def test_a_listener_after_a_body_that_does_not_end_is_stopped_after_the_grace() -> None:
    looking = anyio.Event()

    async def stare(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
        looking.set()
        await anyio.sleep_forever()
        return await inner()

    rows = [offering("row", echo), around("stare", lambda ctx: ctx.on(POST_EXECUTE, stare))]
    outcome = await stopped_while(
        rows, looking, lambda signal: a_call("echo", {"text": "private"}, signal=signal), grace=0.01
    )
    assert "private" not in failed(outcome, ToolCode.ABORTED).message


async def test_a_listener_after_a_body_that_was_stopped_has_the_grace_and_no_more() -> None:
    begun = anyio.Event()

    async def stare(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
        await anyio.sleep_forever()
        return await inner()

    @tool
    async def deaf() -> None:
        """Deaf."""
        begun.set()
        await anyio.sleep_forever()

    rows = [offering("row", deaf), around("stare", lambda ctx: ctx.on(POST_EXECUTE, stare))]
    outcome = await stopped_while(rows, begun, lambda signal: a_call("deaf", signal=signal), grace=0.01)
    failed(outcome, ToolCode.ABORTED, "the user")


@pytest.mark.parametrize("event", [PRE_EXECUTE, TOOL_EXECUTE, POST_EXECUTE])
async def test_a_caller_that_is_cancelled_anywhere_ends_and_leaves_one_result(event: Any) -> None:
    waiting = anyio.Event()

    async def wait(payload: Any, inner: Next[Any]) -> Any:
        waiting.set()
        await anyio.sleep_forever()

    with anyio.fail_after(10), capture_logs() as log:
        async with running(tools, offering("row", echo), around("wait", lambda ctx: ctx.on(event, wait))) as root:
            told = results(root)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tools_of(root).execute, a_call("echo"))
                await waiting.wait()
                tasks.cancel_scope.cancel()
    code = ToolCode.ABORTED_BEFORE_DISPATCH if event is PRE_EXECUTE else ToolCode.ABORTED
    assert [each.outcome.code for each in told if isinstance(each.outcome, ToolFailure)] == [code]
    assert log == []


async def test_a_signal_that_lives_long_remembers_no_call_that_is_over() -> None:
    @tool(timeout=60)
    async def careful(signal: Signal) -> None:
        """Careful."""

    signal = Aborter().signal
    async with running(tools, offering("row", careful, echo)) as root:
        for name in ("careful", "echo"):
            succeeded(await tools_of(root).execute(a_call(name, signal=signal)))
    assert signal._callbacks == {}


# -- whose call it is


async def test_a_call_is_made_with_the_eyes_of_the_agent_that_calls() -> None:
    agent = Scope("agent")
    seen: list[tuple[Any, Any]] = []

    @tool
    async def look(call: ToolCall) -> int | None:
        """Look."""
        seen.append((call.scope, call.context is not None and call.context.scope))
        return call.get(NUMBER)

    async with running(tools, offering("row", look)) as root:
        root.provide(NUMBER, 1)
        room = root.isolate(NUMBER)
        room.provide(NUMBER, 2)
        room.scoped(agent).get(TOOLS).restrict(allow=["look"])  # type: ignore[union-attr]
        succeeded(await tools_of(room, agent).execute(a_call("look")), "2")
        succeeded(await tools_of(room).execute(a_call("look", scope=agent)), "2")
        succeeded(await tools_of(root).execute(a_call("look")), "1")
        assert seen == [(agent, agent), (agent, agent), (None, None)]


async def test_an_agent_cannot_call_in_the_name_of_another() -> None:
    ada, bob = Scope("ada"), Scope("bob")

    def set_up(ctx: Context) -> None:
        ctx.scoped(bob)[TOOLS].restrict(allow=["*"])

    async with running(tools, offering("row", echo), around("set up", set_up)) as root:
        failed(await tools_of(root, ada).execute(a_call("echo", scope=bob)), ToolCode.UNKNOWN_TOOL)


async def test_listeners_of_an_agent_hear_its_calls_only() -> None:
    ada, bob = Scope("ada"), Scope("bob")

    async def deny(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
        return Deny("not Ada")

    def set_up(ctx: Context) -> None:
        for scope in (ada, bob):
            ctx.scoped(scope)[TOOLS].restrict(allow=["*"])
        ctx.scoped(ada).on(PRE_EXECUTE, deny)

    async with running(tools, offering("row", echo), around("set up", set_up)) as root:
        told = results(root.scoped(bob))
        failed(await tools_of(root, ada).execute(a_call("echo")), ToolCode.DENIED)
        succeeded(await tools_of(root, bob).execute(a_call("echo")))
        assert [each.call.scope for each in told] == [bob]


async def test_a_service_used_after_its_lease_answers_with_a_failure() -> None:
    async with running(tools, offering("row", echo)) as root:
        told = results(root)
        with root.leased("step") as view:
            service = tools_of(view)
        outcome = failed(await service.execute(a_call("echo")), ToolCode.INTERNAL, "too late")
        assert [each.outcome for each in told] == [outcome]


@pytest.mark.parametrize("name", ["", "x" * 100_000, "a\ud800", "\n", 5, None, []])
async def test_a_call_of_whatever_name_is_a_failure_told_once(name: Any) -> None:
    with capture_logs():
        async with running(tools, offering("row", echo)) as root:
            told = results(root)
            outcome = await tools_of(root).execute(replace(a_call("x"), name=name))
            assert isinstance(outcome, ToolFailure)
            assert len(outcome.message) < 500
            assert [each.outcome for each in told] == [outcome]


async def test_many_calls_may_run_at_once() -> None:
    everybody, count = anyio.Event(), 0

    @tool
    async def meet(number: int) -> int:
        """Meet."""
        nonlocal count
        count += 1
        if count == 50:
            everybody.set()
        await everybody.wait()
        return number

    found: list[str] = []
    with anyio.fail_after(10):
        async with running(tools, offering("row", meet)) as root, anyio.create_task_group() as tasks:

            async def run(number: int) -> None:
                outcome = await tools_of(root).execute(a_call("meet", {"number": number}))
                found.append(text_of(succeeded(outcome).content))

            for number in range(50):
                tasks.start_soon(run, number)
    assert sorted(found, key=int) == [str(number) for number in range(50)]


async def test_a_tool_may_call_another_tool() -> None:
    @tool
    async def outer(call: ToolCall) -> str:
        """Outer."""
        service = call.get(TOOLS)
        assert service is not None
        return text_of((await service.execute(a_call("echo", {"text": "inner"}))).content) + " and outer"

    agent = Scope("agent")
    async with running(tools, offering("row", outer, echo)) as root:
        tools_of(root, agent).restrict(allow=["outer"])
        succeeded(await tools_of(root).execute(a_call("outer")), "inner and outer")
        outcome = await tools_of(root, agent).execute(a_call("outer"))
        assert "there is no tool 'echo'" in text_of(outcome.content)


async def test_every_guard_listens_to_the_policy_event() -> None:
    async with running(tools, offering("row", echo)) as root:
        root.on(GUARD, lambda call: Denial("by hand"))
        failed(await tools_of(root).execute(a_call("echo")), ToolCode.DENIED, "by hand")
