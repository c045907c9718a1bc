"""What one tool call costs through the whole pipeline. A part of `vocabulary.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.kernel import RUNS, Row, at_most
from dshd import Aborter, Config, Context, Scope, plugin
from dshd.capabilities.tools import TOOLS, Denial, ToolCall, ToolDefinition, tool
from dshd.capabilities.values import CallId
from dshd.testing.kernel import running
from dshd_plugins.tools import tools

NEVER = float("inf")


@plugin("bench", inject=[TOOLS])
async def offering(ctx: Context, config: Config) -> None:
    @tool
    async def weather(city: str, days: int = 1) -> str:
        """The forecast for a city."""
        return f"{days} sunny days in {city}"

    async def forecast(call: ToolCall) -> str:
        return f"{call.arguments['days']} sunny days in {call.arguments['city']}"

    raw = ToolDefinition(
        name="forecast",
        description="The forecast for a city.",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        execute=forecast,
    )
    for definition in (weather, raw):
        ctx[TOOLS].register(definition)


@plugin("guarding", inject=[TOOLS])
async def guarding(ctx: Context, config: Config) -> None:
    def guard(call: ToolCall) -> Denial | None:
        return Denial("no") if call.name == "dynamite" else None

    for _ in range(3):
        ctx[TOOLS].guard(guard)


async def microseconds(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """The time of one, in each run."""
    found = []
    for run in range(RUNS + 1):
        begun = time.perf_counter()
        for _ in range(count):
            await work()
        if run:
            found.append((time.perf_counter() - begun) / count * 1e6)
    return found


async def measurements() -> list[Row]:
    rows = []
    signal = Aborter().signal
    agent = Scope("agent")
    async with running(tools, offering, guarding) as root:
        own = root.scoped(agent)
        given, mine = root.get(TOOLS), own.get(TOOLS)
        assert given is not None
        assert mine is not None
        mine.restrict(allow=["w*"])
        arguments = '{"city": "Ulm", "days": 3}'
        called = [
            ("tool call, typed, three guards", given, "weather", 150),
            ("the same for an agent, restricted", mine, "weather", 150),
            ("the same with a JSON Schema by hand", given, "forecast", 150),
            ("a call of a tool that is not there", given, "nowhere", NEVER),
        ]
        for what, service, name, goal in called:
            call = ToolCall(id=CallId("call"), name=name, raw_arguments=arguments, signal=signal)
            outcome = await service.execute(call)
            assert name == "nowhere" or "sunny" in str(outcome.content)
            figures = await microseconds(partial(service.execute, call), 1000)
            rows.append(at_most(what, "µs", figures, goal, "–"))
    return rows
