"""What a call passes on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dshd.capabilities.tools import (
    GUARD,
    POST_EXECUTE,
    PRE_EXECUTE,
    TOOL_EXECUTE,
    TOOL_RESULT,
    TOOLS,
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
    ToolSuccess,
    tool,
)
from dshd.capabilities.values import TextBlock, text_of, user_message
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.events import Next
from dshd.testing.contracts.expect import same

from .rows import Mounting, a_call, around, echo, failed, offering, results, stumble, succeeded, tools_of


class PipelineContract(Mounting):
    """What a call passes on its way."""

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
