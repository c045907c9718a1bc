"""How calls are stopped, and what replacing a row does to them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
from structlog.testing import capture_logs

from dshd.capabilities.tools import (
    TOOLS,
    Denial,
    ToolCall,
    ToolCode,
    ToolOutcome,
    tool,
)
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.kernel.signal import Aborter, Signal
from dshd.testing.contracts.expect import same
from dshd.testing.kernel import running

from .rows import Mounting, a_call, around, echo, failed, offering, results, stumble, succeeded, tools_of


class EndingContract(Mounting):
    """How calls are stopped, and what replacing a row does to them."""

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
