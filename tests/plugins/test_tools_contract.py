"""The contract of `TOOLS`: the `tools` row keeps it, and it catches one that does not."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dshd import Config, Context, Effect, plugin
from dshd.capabilities.llm import ToolSchema
from dshd.capabilities.tools import (
    TOOL_DEFINITIONS,
    TOOL_RESULT,
    TOOLS,
    AfterExecution,
    Denial,
    ExecutionMode,
    ToolCall,
    ToolDefinition,
    ToolFailure,
    ToolOutcome,
    ToolSuccess,
)
from dshd.capabilities.values import TextBlock
from dshd.testing.contracts.tools import ToolsContract
from dshd_plugins.tools import tools

pytestmark = pytest.mark.anyio


class TestTools(ToolsContract):
    plugin = tools


class Careless:
    """A service as one writes it in an afternoon: it keeps what it is given, and asks nobody."""

    def __init__(self, consumer: Context, kept: dict[str, ToolDefinition]) -> None:
        self.consumer, self.kept = consumer, kept

    def register(self, definition: ToolDefinition) -> Effect:
        self.kept[definition.name] = definition
        return self.consumer.registry(TOOL_DEFINITIONS).add(definition.name, definition)

    def restrict(self, *, allow: Sequence[str] | None = None, deny: Sequence[str] = ()) -> Effect:
        return self.consumer.defer(lambda: None)

    def guard(self, guard: Callable[[ToolCall], Denial | None]) -> Effect:
        return self.consumer.defer(lambda: None)

    def get(self, name: str) -> ToolDefinition | None:
        return self.kept.get(name)

    def schemas(self) -> list[ToolSchema]:
        return [definition.schema for definition in self.kept.values()]

    def classify(self, call: ToolCall) -> ExecutionMode:
        return "parallel"

    async def execute(self, call: ToolCall) -> ToolOutcome:
        definition = self.kept.get(call.name)
        if definition is None:
            return ToolFailure(message=f"no tool {call.name}", code="UNKNOWN_TOOL")
        value: Any = await definition.execute(call)
        outcome = ToolSuccess(content=(TextBlock(str(value)),), value=value)
        self.consumer.emit(TOOL_RESULT, AfterExecution(call, outcome))
        return outcome


@plugin("careless", provides=[TOOLS])
async def careless(ctx: Context, config: Config) -> None:
    kept: dict[str, ToolDefinition] = {}
    ctx.provide_each(TOOLS, lambda consumer: Careless(consumer, kept))


class CarelessContract(ToolsContract):
    plugin = careless
    patience = 0.3


@pytest.mark.parametrize("name", [name for name in dir(ToolsContract) if name.startswith("test_")])
async def test_the_contract_catches_a_careless_service(name: str) -> None:
    caught = False
    try:
        await getattr(CarelessContract(), name)()
    except BaseException:  # what a body raises is not contained there, so it may be anything
        caught = True
    assert caught
