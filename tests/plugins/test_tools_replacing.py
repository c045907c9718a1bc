"""Replacing the `tools` row, and rows that contribute to it, at any moment and under running calls."""

import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from dshd import Config, Context, Fiber, Next, Plugin, RegistryChange, Scope, ServiceKey, picture, plugin
from dshd.capabilities.tools import (
    PRE_EXECUTE,
    TOOL_EXECUTE,
    TOOLS,
    TOOLS_CHANGED,
    Allow,
    Denial,
    Deny,
    PreDecision,
    ToolCall,
    ToolCode,
    ToolDefinition,
    ToolOutcome,
    tool,
)
from dshd.testing.contracts.tools import a_call, around, echo, failed, offering, results, succeeded, tools_of
from dshd.testing.kernel import running
from dshd_plugins.tools import tools

pytestmark = pytest.mark.anyio


NUMBER = ServiceKey[int]("number")


class Numbered(Config):
    number: int = 0


def counter(closed: list[int] | None = None) -> Plugin[Numbered]:
    """A row whose tool says which of its instances it is of."""

    @plugin("counter", config=Numbered, inject=[TOOLS])
    async def row(ctx: Context, config: Numbered) -> AsyncIterator[None]:
        @tool
        async def which(wait: bool = False, *, call: ToolCall) -> str:
            """Which."""
            if wait:
                gates.append(anyio.Event())
                await gates[-1].wait()
            return f"{config.number} {'closed' if config.number in (closed or []) else 'open'}"

        ctx[TOOLS].register(which)
        yield
        if closed is not None:
            closed.append(config.number)

    return row


gates: list[anyio.Event] = []


def of(root: Context, name: str) -> Fiber:
    """The live row of this name."""
    return next(kid for kid in root.fiber.kids if kid.name == name and kid.visible)


def number_of(counter: Fiber) -> int:
    assert isinstance(counter.config, Numbered)
    return counter.config.number


async def change(root: Context, what: str) -> None:
    """Replace or remove a row by a commit."""
    verb, name = what.split()
    async with root.kernel.stage() as stage:
        fiber = of(root, name)
        if verb == "replace":
            new = {"number": number_of(fiber) + 1} if name == "counter" else {}
            stage.replace(fiber, config=new)
        else:
            stage.retire(fiber)
            if name == "tools":
                stage.retire(of(root, "counter"))
        await stage.settled()
        stage.commit()


@pytest.mark.parametrize("what", ["replace tools", "replace counter", "remove counter", "remove tools"])
@pytest.mark.parametrize("leased", [False, True])
async def test_a_call_in_progress_ends_on_the_instance_it_began_with(what: str, leased: bool) -> None:
    closed: list[int] = []
    gates.clear()
    outcomes: list[ToolOutcome] = []
    with anyio.fail_after(10):
        async with running(tools, counter(closed)) as root:
            told = results(root)

            async def run(ctx: Context) -> None:
                outcomes.append(await tools_of(ctx).execute(a_call("which", {"wait": True})))

            async def step() -> None:
                if leased:
                    with root.leased("step") as view:
                        await run(view)
                else:
                    await run(root)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
                while not gates:
                    await anyio.lowlevel.checkpoint()
                await change(root, what)
                await anyio.wait_all_tasks_blocked()  # whatever may close has closed
                gates[0].set()
            succeeded(outcomes[0], "0 open")
            assert [each.outcome for each in told] == outcomes
            while picture(root).leases or any(fiber.draining for fiber in picture(root).fibers):
                await anyio.lowlevel.checkpoint()
            assert closed == ([] if what == "replace tools" else [0])


async def test_what_a_body_asks_for_stays_what_it_was_when_the_call_began() -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    @plugin("number", config=Numbered, provides=[NUMBER])
    async def provider(ctx: Context, config: Numbered) -> None:
        ctx.provide(NUMBER, config.number)

    @tool
    async def look(call: ToolCall) -> list[int | None]:
        """Look."""
        first = call.get(NUMBER)
        begun.set()
        await go_on.wait()
        return [first, call.get(NUMBER)]

    with anyio.fail_after(10):
        async with running(tools, provider, offering("row", look)) as root:
            outcomes: list[ToolOutcome] = []

            async def run() -> None:
                outcomes.append(await tools_of(root).execute(a_call("look")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await begun.wait()
                await of(root, "number").update({"number": 1})
                assert root.get(NUMBER) == 1
                go_on.set()
            succeeded(outcomes[0], "[0, 0]")


async def test_a_step_calls_the_instance_it_leased_and_the_next_step_the_new_one() -> None:
    async with running(tools, counter()) as root:
        with root.leased("step") as view:
            await change(root, "replace counter")
            succeeded(await tools_of(view).execute(a_call("which")), "0 open")
        with root.leased("next step") as view:
            succeeded(await tools_of(view).execute(a_call("which")), "1 open")
            await change(root, "remove counter")
            succeeded(await tools_of(view).execute(a_call("which")), "1 open")
        failed(await tools_of(root).execute(a_call("which")), ToolCode.UNKNOWN_TOOL)


async def test_a_leased_tool_that_was_removed_answers_to_policy_that_is_new() -> None:
    async with running(tools, counter()) as root:
        with root.leased("step") as view:
            await change(root, "remove counter")
            await root.plugin(around("guard", lambda ctx: ctx[TOOLS].guard(lambda call: Denial("new")))).settled()
            failed(await tools_of(view).execute(a_call("which")), ToolCode.DENIED, "new")


async def test_a_removed_guard_covers_what_was_leased_and_a_replaced_one_is_asked_anew() -> None:
    answers = {"old": "old says no", "new": "new says no"}

    def guard(answer: str) -> Plugin[Config]:
        return around("guard", lambda ctx: ctx[TOOLS].guard(lambda call: Denial(answers[answer])))

    async with running(tools, offering("row", echo), guard("old")) as root:
        with root.leased("step") as view:
            async with root.kernel.stage() as stage:
                stage.replace(of(root, "guard"), plugin=guard("new"))
                await stage.settled()
                stage.commit()
            outcome = failed(await tools_of(view).execute(a_call("echo")), ToolCode.DENIED, "new says no")
            assert "old" not in outcome.message
        with root.leased("step") as view:
            await change(root, "remove guard")
            failed(await tools_of(view).execute(a_call("echo")), ToolCode.DENIED, "new says no")
        succeeded(await tools_of(root).execute(a_call("echo")))


async def test_a_call_begun_under_a_guard_is_decided_by_it_though_its_row_goes_meanwhile() -> None:
    asked, answer = anyio.Event(), anyio.Event()

    async def ponder(call: ToolCall, inner: Next[PreDecision]) -> PreDecision:
        asked.set()
        await answer.wait()
        return Deny("after long thought") if call.name == "echo" else Allow()

    with anyio.fail_after(10):
        async with running(
            tools, offering("row", echo), around("ponder", lambda ctx: ctx.on(PRE_EXECUTE, ponder))
        ) as root:
            outcomes: list[ToolOutcome] = []

            async def run() -> None:
                outcomes.append(await tools_of(root).execute(a_call("echo")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await asked.wait()
                await change(root, "remove ponder")
                answer.set()
            failed(outcomes[0], ToolCode.DENIED, "after long thought")


@pytest.mark.parametrize("event", [PRE_EXECUTE, TOOL_EXECUTE])
@pytest.mark.parametrize("what", ["disposed of", "denied", "denied for all", "replaced", "scope closed"])
async def test_a_tool_that_is_taken_away_while_others_are_asked_does_not_run(what: str, event: Any) -> None:
    asked, answer = anyio.Event(), anyio.Event()
    ran: list[str] = []

    async def ponder(payload: Any, inner: Next[Any]) -> Any:
        asked.set()
        await answer.wait()
        return await inner()

    async def body(call: ToolCall) -> None:
        ran.append(call.name)

    definition = ToolDefinition(name="late", description="Late.", parameters={"type": "object"}, execute=body)
    agent = Scope("agent")
    with anyio.fail_after(10):
        async with running(tools, around("ponder", lambda ctx: ctx.on(event, ponder))) as root:
            mine, told = tools_of(root, agent), results(root)
            effect = tools_of(root).register(definition)
            mine.restrict(allow=["late"])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mine.execute, a_call("late"))
                await asked.wait()
                match what:
                    case "denied":
                        mine.restrict(deny=["l*"])
                    case "denied for all":
                        tools_of(root).restrict(deny=["late"])
                    case "scope closed":
                        await agent.close()
                    case _:
                        await effect.dispose()
                        if what == "replaced":
                            tools_of(root).register(definition)
                answer.set()
            assert ran == []
            code = ToolCode.ABORTED_BEFORE_DISPATCH if what == "replaced" else ToolCode.UNKNOWN_TOOL
            failed(told[0].outcome, code)
            assert len(told) == 1


async def test_what_is_on_offer_changes_in_one_step_and_is_told_once_a_commit() -> None:
    async with running(tools, counter(), offering("row", echo)) as root:
        told: list[RegistryChange] = []
        root.on(TOOLS_CHANGED, told.append)
        async with root.kernel.stage() as stage:
            stage.retire(of(root, "counter"))
            stage.replace(of(root, "row"))
            stage.replace(of(root, "tools"))
            await stage.settled()
            assert (told, sorted(s.name for s in tools_of(root).schemas())) == ([], ["echo", "which"])
            stage.commit()
        assert len(told) == 1
        assert [schema.name for schema in tools_of(root).schemas()] == ["echo"]


async def test_a_staged_tool_is_seen_by_nobody_and_a_discarded_one_never_was() -> None:
    async with running(tools) as root:
        told: list[RegistryChange] = []
        root.on(TOOLS_CHANGED, told.append)
        async with root.kernel.stage() as stage:
            root.plugin(offering("row", echo), stage=stage)
            await stage.settled()
            assert tools_of(root).schemas() == []
            failed(await tools_of(root).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
        assert (told, tools_of(root).schemas()) == ([], [])


async def test_without_the_row_contributors_wait_and_come_back_with_it() -> None:
    with anyio.fail_after(10):
        async with running() as root:
            waiting = root.plugin(offering("row", echo))
            service = root.plugin(tools)
            await service.settled()
            await waiting.settled()
            succeeded(await tools_of(root).execute(a_call("echo")))
            await service.dispose()
            assert root.get(TOOLS) is None
            await root.plugin(tools).settled()
            await waiting.settled()
            succeeded(await tools_of(root).execute(a_call("echo")))


@pytest.mark.parametrize("seed", range(20))
async def test_any_sequence_of_changes_under_calls_loses_no_call_and_no_contribution(seed: int) -> None:
    chance = random.Random(seed)
    agent = Scope("agent")
    gates.clear()
    begun: list[tuple[int, list[ToolOutcome]]] = []

    def set_up(ctx: Context) -> None:
        ctx.scoped(agent)[TOOLS].restrict(allow=["which", "echo"])
        ctx[TOOLS].guard(lambda call: Denial("guarded") if call.name == "echo" else None)

    with anyio.fail_after(20), capture_logs():
        async with running(tools, counter(), offering("row", echo), around("policy", set_up)) as root:
            told = results(root)

            async def call(into: list[ToolOutcome]) -> None:
                into.append(await tools_of(root, agent).execute(a_call("which", {"wait": True})))

            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    match chance.choice(["call", "call", "gate", "replace"]):
                        case "call":
                            outcomes: list[ToolOutcome] = []
                            begun.append((number_of(of(root, "counter")), outcomes))
                            waiting = len(gates)
                            tasks.start_soon(call, outcomes)
                            while len(gates) == waiting:
                                await anyio.lowlevel.checkpoint()
                        case "gate" if gates:
                            chance.choice(gates).set()
                        case _:
                            await change(root, f"replace {chance.choice(['tools', 'counter', 'row', 'policy'])}")
                    service = tools_of(root, agent)
                    assert sorted(schema.name for schema in service.schemas()) == ["echo", "which"]
                    failed(await service.execute(a_call("echo")), ToolCode.DENIED, "guarded")
                for gate in gates:
                    gate.set()
            for number, outcomes in begun:
                assert len(outcomes) == 1
                succeeded(outcomes[0], f"{number} open")
            calls: list[Any] = [each for each in told if each.call.name == "which"]
            assert len(calls) == len(begun)
            while any(fiber.draining for fiber in picture(root).fibers):
                await anyio.lowlevel.checkpoint()
            assert len(root.fiber.kids) == 4
            assert picture(root).leases == ()
