"""The suite for whoever provides `TOOLS`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import anyio
from structlog.testing import capture_logs

from dshd.capabilities.tools import (
    GUARD,
    POST_EXECUTE,
    PRE_EXECUTE,
    TOOL_EXECUTE,
    TOOL_RESULT,
    TOOLS,
    TOOLS_CHANGED,
    AfterExecution,
    Allow,
    Ask,
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
    Tools,
    ToolSuccess,
    tool,
)
from dshd.capabilities.values import CallId, TextBlock, text_of, user_message
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.errors import EntryConflictError
from dshd.kernel.events import Next
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.kernel.signal import Aborter, Signal
from dshd.testing.kernel import running


def offering(name: str, *definitions: ToolDefinition, scope: Scope | None = None) -> Plugin[Config]:
    """A row that registers tools, for one agent or for all."""

    @plugin(name, inject=[TOOLS])
    async def row(ctx: Context, config: Config) -> None:
        service = (ctx if scope is None else ctx.scoped(scope))[TOOLS]
        for definition in definitions:
            service.register(definition)

    return row


def around(name: str, set_up: Callable[[Context], object]) -> Plugin[Config]:
    """A row that does something with its context: listens, guards, restricts."""

    @plugin(name, inject=[TOOLS])
    async def row(ctx: Context, config: Config) -> None:
        set_up(ctx)

    return row


def tools_of(ctx: Context, scope: Scope | None = None) -> Tools:
    """The service as `ctx` sees it, or an agent of it."""
    service = (ctx if scope is None else ctx.scoped(scope)).get(TOOLS)
    assert service is not None, "nobody provides the tools service"
    return service


def a_call(tool: str, arguments: Any = None, **more: Any) -> ToolCall:
    """A call as a model makes it: with its arguments as text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(id=CallId("call"), name=tool, raw_arguments=text, **more)


def failed(outcome: ToolOutcome, code: str, *words: str) -> ToolFailure:
    """The outcome as a failure with this code, whose text for the model has all these words."""
    assert isinstance(outcome, ToolFailure), f"a failure was due, but this came: {outcome!r}"
    assert outcome.code == code, f"{code} was due, but this came: {outcome!r}"
    missing = [word for word in words if word not in text_of(outcome.content)]
    assert not missing, f"{text_of(outcome.content)!r} does not say {missing}"
    return outcome


def succeeded(outcome: ToolOutcome, text: str | None = None) -> ToolSuccess:
    """The outcome as a success, with this text for the model."""
    assert isinstance(outcome, ToolSuccess), f"a success was due, but this came: {outcome!r}"
    assert text is None or text_of(outcome.content) == text, f"{text!r} was due, but this came: {outcome.content!r}"
    return outcome


def results(root: Context) -> list[AfterExecution]:
    """Everything that `tools/result` tells from now on."""
    told: list[AfterExecution] = []
    root.on(TOOL_RESULT, told.append)
    return told


@tool
async def echo(text: str = "") -> str:
    """Say it again."""
    return text


@tool
async def stumble() -> str:
    """Stumble."""
    raise RuntimeError("over a stone")


def same(first: object, second: object) -> None:
    assert first == second, f"{first!r} is not {second!r}"


class ToolsContract:
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `TOOLS` and needs no config."""

    plugin: ClassVar[Plugin[Any]]
    patience: ClassVar[float] = 20
    """Seconds after which a test that hangs has failed."""

    @asynccontextmanager
    async def with_rows(self, *rows: Plugin[Config]) -> AsyncIterator[Context]:
        with anyio.fail_after(self.patience), capture_logs():
            async with running(self.plugin, *rows) as root:
                yield root

    # -- what is on offer

    async def test_a_tool_is_there_for_as_long_as_the_row_that_registered_it(self) -> None:
        async with self.with_rows() as root:
            changes: list[object] = []
            root.on(TOOLS_CHANGED, changes.append)
            fiber = root.plugin(offering("row", echo))
            await fiber.settled()
            service = tools_of(root)
            same([schema.name for schema in service.schemas()], ["echo"])
            same(service.get("echo"), echo)
            await fiber.dispose()
            same((tools_of(root).schemas(), tools_of(root).get("echo")), ([], None))
            same(len(changes), 2)

    async def test_a_name_is_given_once_and_a_scope_may_shadow_it(self) -> None:
        agent = Scope("agent")
        own = replace(echo, description="mine")
        async with self.with_rows(offering("first", echo), offering("own", own, scope=agent)) as root:
            second = root.plugin(offering("second", echo))
            try:
                await second.settled()
            except EntryConflictError:
                pass
            else:
                raise AssertionError("two tools have one name")
            same([schema.description for schema in tools_of(root, agent).schemas()], ["mine"])
            same([schema.description for schema in tools_of(root).schemas()], [echo.description])

    async def test_a_scope_sees_its_own_tools_and_of_the_others_none_unless_one_is_named(self) -> None:
        agent = Scope("agent")
        own, other = replace(echo, name="own"), replace(echo, name="other")
        async with self.with_rows(offering("row", echo, other), offering("mine", own, scope=agent)) as root:
            service = tools_of(root, agent)

            def names() -> list[str]:
                return sorted(schema.name for schema in service.schemas())

            same(names(), ["own"])
            allowed = service.restrict(allow=["echo", "o*"])
            same(names(), ["echo", "other", "own"])
            service.restrict(allow=["*"], deny=["oth*"])
            same(names(), ["echo", "own"])
            await allowed.dispose()
            same(names(), ["echo", "own"])
            same(sorted(schema.name for schema in tools_of(root).schemas()), ["echo", "other"])

    async def test_a_tool_that_is_hidden_is_not_told_from_one_that_does_not_exist(self) -> None:
        agent = Scope("agent")
        async with self.with_rows(offering("row", echo)) as root:
            service = tools_of(root, agent)
            told = results(root)
            hidden = failed(await service.execute(a_call("echo")), ToolCode.UNKNOWN_TOOL, "'echo'")
            same(service.get("echo"), None)
        async with self.with_rows() as root:
            unknown = failed(await tools_of(root, agent).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
        same(hidden, unknown)
        same([each.outcome for each in told], [hidden])

    async def test_a_denial_that_comes_during_a_lease_binds_at_once_and_a_removed_one_still(self) -> None:
        agent = Scope("agent")

        def deny(ctx: Context) -> None:
            ctx.scoped(agent)[TOOLS].restrict(deny=["echo"])

        allow = around("allow", lambda ctx: ctx.scoped(agent)[TOOLS].restrict(allow=["*"]))
        async with self.with_rows(offering("row", echo), allow) as root:
            with root.leased("step") as view:
                succeeded(await tools_of(view, agent).execute(a_call("echo")))
                denying = root.plugin(around("deny", deny))
                await denying.settled()
                failed(await tools_of(view, agent).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
            with root.leased("step") as view:
                async with root.kernel.stage() as stage:
                    stage.retire(denying)
                    stage.commit()
                failed(await tools_of(view, agent).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
                succeeded(await tools_of(root, agent).execute(a_call("echo")))

    async def test_a_call_may_run_beside_others_only_if_its_tool_says_so(self) -> None:
        def picky(arguments: Any) -> Any:
            if "mode" not in arguments:
                raise KeyError("mode")
            return arguments["mode"]

        @tool(mode=picky)
        async def asked(mode: str) -> None:
            """Asked."""

        @tool(mode="parallel")
        async def free() -> None:
            """Free."""

        async with self.with_rows(offering("row", asked, free, echo)) as root:
            classify = tools_of(root).classify
            same(classify(a_call("asked", {"mode": "parallel"})), "parallel")
            same(classify(a_call("free")), "parallel")
            calls = [("asked", {"mode": "exclusive"}), ("asked", {"mode": "x"}), ("asked", {}), ("asked", "no JSON")]
            for name, arguments in [*calls, ("echo", {}), ("nowhere", {})]:
                same(classify(a_call(name, arguments)), "exclusive")

    # -- the pipeline

    async def test_everybody_is_asked_in_order_and_the_result_is_told_last(self) -> None:
        order: list[str] = []

        @tool
        async def body() -> str:
            """Body."""
            order.append("body")
            return "done"

        def finalize(call: ToolCall, outcome: ToolOutcome) -> tuple[TextBlock, ...]:
            order.append("finalize")
            return (TextBlock(text_of(outcome.content) + "!"),)

        async def before(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
            order.append("pre-execute")
            return await inner()

        async def execute(call: ToolCall, inner: Next[ToolOutcome]) -> ToolOutcome:
            order.append("execute")
            outcome = await inner()
            order.append("executed")
            return outcome

        async def after(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
            order.append("post-execute")
            return await inner()

        def listen(ctx: Context) -> None:
            ctx.on(TOOL_RESULT, lambda _: order.append("result"))
            ctx.on(POST_EXECUTE, after)
            ctx.on(TOOL_EXECUTE, execute)
            ctx.on(PRE_EXECUTE, before)
            ctx[TOOLS].guard(lambda call: order.append("guard"))

        async with self.with_rows(
            offering("row", replace(body, finalize_content=finalize)), around("listener", listen)
        ) as root:
            succeeded(await tools_of(root).execute(a_call("body")), "done!")
        around_the_body = ["execute", "body", "executed"]
        same(order, ["pre-execute", "guard", *around_the_body, "post-execute", "finalize", "result"])

    async def test_a_denial_of_any_kind_skips_everything_up_to_the_result(self) -> None:
        ran: list[str] = []

        @tool
        async def body() -> None:
            """Body."""
            ran.append("body")

        async def execute(call: ToolCall, inner: Next[ToolOutcome]) -> ToolOutcome:
            ran.append("execute")
            return ToolSuccess(content=())

        async def after(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
            ran.append("post-execute")
            return PostDecision(replaces_value=True, value="lifted")

        def listen(ctx: Context) -> None:
            ctx.on(TOOL_EXECUTE, execute)
            ctx.on(POST_EXECUTE, after)

        async def denied(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
            return Deny("not today")

        async def asked(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
            return Ask("may I?")

        async def broken(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
            raise RuntimeError("no idea")

        async def mute(call: ToolCall, inner: Next[PreDecision]) -> Any:
            await inner()

        def broken_guard(call: ToolCall) -> Denial | None:
            raise RuntimeError("no idea")

        def rubbish_guard(call: ToolCall) -> Any:
            return False

        ways: list[tuple[Callable[[Context], object], str, list[str]]] = [
            (lambda ctx: ctx.on(PRE_EXECUTE, denied), ToolCode.DENIED, ["not today"]),
            (lambda ctx: ctx.on(PRE_EXECUTE, asked), ToolCode.APPROVAL_REQUIRED, ["approval", "may I?", "nobody"]),
            (lambda ctx: ctx.on(PRE_EXECUTE, broken), ToolCode.DENIED, ["could not be checked"]),
            (lambda ctx: ctx.on(PRE_EXECUTE, mute), ToolCode.DENIED, ["could not be checked"]),
            (lambda ctx: ctx[TOOLS].guard(lambda call: Denial("never")), ToolCode.DENIED, ["never"]),
            (lambda ctx: ctx[TOOLS].guard(broken_guard), ToolCode.DENIED, ["could not be checked"]),
            (lambda ctx: ctx.on(GUARD, rubbish_guard), ToolCode.DENIED, ["could not be checked"]),
        ]
        for way, code, words in ways:
            async with self.with_rows(
                offering("row", body), around("listener", listen), around("denying", way)
            ) as root:
                told = results(root)
                outcome = failed(await tools_of(root).execute(a_call("body")), code, *words)
                same([each.outcome for each in told], [outcome])
        same(ran, [])

    async def test_a_listener_that_allows_everything_does_not_lift_a_guard(self) -> None:
        async def allow(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
            return Allow()

        guard = around("guard", lambda ctx: ctx[TOOLS].guard(lambda call: Denial("never")))
        lift = around("lift", lambda ctx: ctx.on(PRE_EXECUTE, allow, prepend=True))
        async with self.with_rows(offering("row", echo), guard, lift) as root:
            failed(await tools_of(root).execute(a_call("echo")), ToolCode.DENIED, "never")

    async def test_a_guard_of_an_agent_is_asked_about_that_agent_only(self) -> None:
        ada, bob = Scope("ada"), Scope("bob")

        def set_up(ctx: Context) -> None:
            for scope in (ada, bob):
                ctx.scoped(scope)[TOOLS].restrict(allow=["*"])
            ctx.scoped(ada)[TOOLS].guard(lambda call: Denial("not Ada"))

        async with self.with_rows(offering("row", echo), around("guard", set_up)) as root:
            failed(await tools_of(root, ada).execute(a_call("echo")), ToolCode.DENIED, "not Ada")
            failed(await tools_of(root).execute(a_call("echo", scope=ada)), ToolCode.DENIED, "not Ada")
            succeeded(await tools_of(root, bob).execute(a_call("echo")))

    async def test_arguments_that_do_not_fit_never_reach_anybody(self) -> None:
        asked: list[ToolCall] = []

        @tool
        async def count(number: int) -> int:
            """Count."""
            return number

        by_hand = ToolDefinition(
            name="by_hand",
            description="Count.",
            parameters=count.parameters,
            execute=lambda call: count.execute(call),
        )

        def guard(call: ToolCall) -> None:
            asked.append(call)

        async with self.with_rows(
            offering("row", count, by_hand), around("guard", lambda ctx: ctx[TOOLS].guard(guard))
        ) as root:
            service = tools_of(root)
            for name in ("count", "by_hand"):
                for arguments in (
                    {},
                    {"number": "x"},
                    {"number": 1, "more": 2},
                    "[1]",
                    "{",
                    '{"number": 1, "number": 2}',
                ):
                    outcome = await service.execute(a_call(name, arguments))
                    failed(outcome, ToolCode.INVALID_ARGUMENTS, "do not fit", 'Expected: {"number": integer}')
                succeeded(await service.execute(a_call(name, {"number": 3})), "3")
        same([call.arguments for call in asked], [{"number": 3}, {"number": 3}])

    async def test_a_body_that_raises_reaches_post_execute_as_an_error(self) -> None:
        seen: list[ToolOutcome] = []

        @tool
        async def refuse() -> None:
            """Refuse."""
            raise ToolError("the door is locked", "LOCKED")

        @tool
        async def leave() -> None:
            """Leave."""
            raise SystemExit(3)

        async def after(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
            seen.append(after.outcome)
            return await inner()

        async with self.with_rows(
            offering("row", refuse, leave, stumble), around("listener", lambda ctx: ctx.on(POST_EXECUTE, after))
        ) as root:
            service = tools_of(root)
            failed(await service.execute(a_call("refuse")), "LOCKED", "the door is locked")
            failed(await service.execute(a_call("stumble")), ToolCode.INTERNAL, "over a stone")
            failed(await service.execute(a_call("leave")), ToolCode.INTERNAL)
        same([each.code for each in seen if isinstance(each, ToolFailure)], ["LOCKED", "INTERNAL", "INTERNAL"])

    async def test_a_result_may_be_replaced_added_to_or_blocked_after_the_body(self) -> None:
        context = user_message("by the way")
        decisions: dict[str, PostDecision] = {
            "content": PostDecision(content=(TextBlock("other words"),)),
            "value": PostDecision(replaces_value=True, value={"a": 1}),
            "block": PostDecision(block="try again", contexts=(context,)),
            "contexts": PostDecision(contexts=(context,)),
        }

        async def after(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
            return decisions.get(str(after.call.arguments["text"])) or await inner()

        async with self.with_rows(
            offering("row", echo), around("listener", lambda ctx: ctx.on(POST_EXECUTE, after))
        ) as root:

            async def say(text: str) -> ToolOutcome:
                return await tools_of(root).execute(a_call("echo", {"text": text}))

            succeeded(await say("as it is"), "as it is")
            same(succeeded(await say("content"), "other words").value, "content")
            same(succeeded(await say("value"), '{"a": 1}').value, {"a": 1})
            same(failed(await say("block"), ToolCode.BLOCKED, "try again").contexts, (context,))
            same(succeeded(await say("contexts"), "contexts").contexts, (context,))

    async def test_a_result_that_could_not_be_checked_is_withheld(self) -> None:
        async def broken(after: AfterExecution, inner: Next[PostDecision]) -> PostDecision:
            raise RuntimeError("no idea")

        def unfinished(call: ToolCall, outcome: ToolOutcome) -> tuple[TextBlock, ...]:
            raise RuntimeError("no idea")

        final = replace(echo, finalize_content=unfinished)
        listening = around("listener", lambda ctx: ctx.on(POST_EXECUTE, broken))
        for rows in ((offering("row", echo), listening), (offering("row", final),)):
            async with self.with_rows(*rows) as root:
                told = results(root)
                outcome = await tools_of(root).execute(a_call("echo", {"text": "secret"}))
                withheld = failed(outcome, ToolCode.INTERNAL, "withheld")
                assert "secret" not in text_of(withheld.content), "what could not be checked was shown"
                same([each.outcome for each in told], [withheld])

    # -- stopping

    async def test_a_call_that_is_told_to_stop_before_it_begins_runs_nothing(self) -> None:
        async with self.with_rows(offering("row", echo)) as root:
            told = results(root)
            aborter = Aborter()
            aborter.abort("enough")
            outcome = await tools_of(root).execute(a_call("echo", signal=aborter.signal))
            failed(outcome, ToolCode.ABORTED_BEFORE_DISPATCH, "tool call aborted before dispatch")
            same([each.outcome for each in told], [outcome])

    async def test_a_signal_stops_a_body_at_once_and_lets_one_that_takes_it_return_what_it_has(self) -> None:
        begun = anyio.Event()

        @tool
        async def deaf() -> None:
            """Deaf."""
            begun.set()
            await anyio.sleep_forever()

        @tool
        async def careful(signal: Signal) -> str:
            """Careful."""
            begun.set()
            return f"half of it, for {await signal.wait()}"

        async with self.with_rows(offering("row", deaf, careful)) as root:
            for name in ("deaf", "careful"):
                begun = anyio.Event()
                aborter = Aborter()
                outcomes: list[ToolOutcome] = []

                async def run(call: ToolCall, into: list[ToolOutcome] = outcomes) -> None:
                    into.append(await tools_of(root).execute(call))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run, a_call(name, signal=aborter.signal))
                    await begun.wait()
                    aborter.abort("enough")
                if name == "deaf":
                    failed(outcomes[0], ToolCode.ABORTED, "enough")
                else:
                    succeeded(outcomes[0], "half of it, for enough")

    async def test_a_body_that_takes_longer_than_its_timeout_is_stopped(self) -> None:
        @tool(timeout=0.01)
        async def slow() -> None:
            """Slow."""
            await anyio.sleep_forever()

        @tool(timeout=0.01)
        async def careful(signal: Signal) -> str:
            """Careful."""
            await signal.wait()
            return "half of it"

        async with self.with_rows(offering("row", slow, careful)) as root:
            failed(await tools_of(root).execute(a_call("slow")), ToolCode.TIMEOUT, "0.01 s")
            succeeded(await tools_of(root).execute(a_call("careful")), "half of it")

    async def test_the_callers_own_cancellation_passes_and_the_call_is_accounted_for(self) -> None:
        begun = anyio.Event()

        @tool
        async def deaf() -> None:
            """Deaf."""
            begun.set()
            await anyio.sleep_forever()

        returned: list[ToolOutcome] = []
        async with self.with_rows(offering("row", deaf)) as root:
            told = results(root)

            async def run() -> None:
                returned.append(await tools_of(root).execute(a_call("deaf")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await begun.wait()
                tasks.cancel_scope.cancel()
            same(returned, [])
            same(len(told), 1)
            failed(told[0].outcome, ToolCode.ABORTED)

    # -- change

    async def test_no_contribution_is_lost_when_the_service_is_replaced(self) -> None:
        agent = Scope("agent")

        def set_up(ctx: Context) -> None:
            ctx.scoped(agent)[TOOLS].restrict(allow=["e*"])
            ctx[TOOLS].guard(lambda call: Denial("never") if call.arguments else None)

        async with running(offering("row", echo, stumble), around("set up", set_up)) as root:
            with anyio.fail_after(self.patience), capture_logs():
                fiber = root.plugin(self.plugin)
                await fiber.settled()
                for row in root.fiber.kids:
                    await row.settled()
                fiber = await fiber.update({})
                service = tools_of(root, agent)
                same([schema.name for schema in service.schemas()], ["echo"])
                succeeded(await service.execute(a_call("echo")))
                failed(await service.execute(a_call("echo", {"text": "x"})), ToolCode.DENIED, "never")

    async def test_a_running_call_ends_on_what_it_began_with_whatever_is_replaced_or_removed(self) -> None:
        begun, go_on = anyio.Event(), anyio.Event()
        closed: list[str] = []

        def hammer(generation: str) -> Plugin[Config]:
            @tool
            async def strike() -> str:
                """Strike."""
                if generation == "old":
                    begun.set()
                    await go_on.wait()
                    return f"old, closed: {closed}"
                return generation

            @plugin("hammer", inject=[TOOLS])
            async def row(ctx: Context, config: Config) -> AsyncIterator[None]:
                ctx[TOOLS].register(strike)
                yield
                closed.append(generation)

            return row

        for change in ("replace the tool", "remove the tool", "replace the service", "remove both"):
            begun, go_on = anyio.Event(), anyio.Event()
            closed.clear()
            outcomes: list[ToolOutcome] = []
            async with self.with_rows() as root:
                service = next(kid for kid in root.fiber.kids if kid.plugin is self.plugin)
                old = root.plugin(hammer("old"))
                await old.settled()

                async def run(root: Context = root, outcomes: list[ToolOutcome] = outcomes) -> None:
                    outcomes.append(await tools_of(root).execute(a_call("strike")))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run)
                    await begun.wait()
                    async with root.kernel.stage() as stage:
                        if change == "replace the tool":
                            stage.replace(old, plugin=hammer("new"))
                        elif change == "remove the tool":
                            stage.retire(old)
                        elif change == "replace the service":
                            stage.replace(service)
                        else:
                            stage.retire(old)
                            stage.retire(service)
                        await stage.settled()
                        stage.commit()
                    if change == "replace the tool":
                        succeeded(await tools_of(root).execute(a_call("strike")), "new")
                    elif change == "remove the tool":
                        failed(await tools_of(root).execute(a_call("strike")), ToolCode.UNKNOWN_TOOL)
                    await anyio.wait_all_tasks_blocked()  # whatever may close has closed
                    go_on.set()
                succeeded(outcomes[0], "old, closed: []")
