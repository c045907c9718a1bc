"""`ctx[TOOLS]` as one consumer sees it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from dshd import Context, Effect, errors, is_fault
from dshd.capabilities.llm import ToolSchema
from dshd.capabilities.tools import (
    GUARD,
    RESTRICTIONS,
    TOOL_DEFINITIONS,
    Denial,
    ExecutionMode,
    InvalidArgumentsError,
    Restriction,
    ToolCall,
    ToolDefinition,
    ToolOutcome,
)

from . import pipeline
from .arguments import parsed
from .faults import report
from .raw import schema_check
from .visible import find, visible


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The service: it has no state, all that is registered lives in the kernel."""

    consumer: Context
    grace: float
    """Seconds that code which takes the signal may go on after it was told to stop."""

    def register(self, definition: ToolDefinition) -> Effect:
        if not isinstance(definition, ToolDefinition):
            raise errors.PluginDefinitionError(
                f"{getattr(definition, '__name__', definition)!r} is no tool; decorate an `async def` with @tool"
            )
        # A copy: so a scope's tool is not taken for the one it inherits, if both were registered as one definition.
        own = replace(definition, check=definition.check or schema_check(definition))
        return self.consumer.registry(TOOL_DEFINITIONS).add(own.name, own)

    def restrict(self, *, allow: Sequence[str] | None = None, deny: Sequence[str] = ()) -> Effect:
        for patterns in (allow or (), deny):
            if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
                raise ValueError(f"a restriction is a list of patterns of tool names, not {patterns!r}")
        if allow is not None and self.consumer.scope is None:
            raise ValueError("what an agent may see is said for that agent, through ctx.scoped(…); deny works for all")
        restriction = Restriction(None if allow is None else tuple(allow), tuple(deny))
        return self.consumer.registry(RESTRICTIONS).add(uuid4().hex, restriction)

    def guard(self, guard: Callable[[ToolCall], Denial | None]) -> Effect:
        return self.consumer.on(GUARD, guard)

    def get(self, name: str) -> ToolDefinition | None:
        return find(self.consumer, name)

    def schemas(self) -> list[ToolSchema]:
        return [definition.schema for definition in visible(self.consumer)]

    def classify(self, call: ToolCall) -> ExecutionMode:
        view = self.consumer
        if call.scope is not None and view.scope is None:
            view = view.scoped(call.scope)
        try:
            definition = find(view, call.name)
        except errors.LeaseEndedError:
            return "exclusive"
        if definition is None:
            return "exclusive"
        if not callable(definition.mode):
            return definition.mode
        try:
            answer: object = definition.mode(parsed(call.raw_arguments, definition.parameters))
        except InvalidArgumentsError:
            return "exclusive"
        except BaseException as exc:
            if not is_fault(exc):
                raise
            report(view, call.name, "the classifier of a tool failed", exc)
            return "exclusive"
        if inspect.iscoroutine(answer):
            answer.close()
        return "parallel" if answer == "parallel" else "exclusive"

    async def execute(self, call: ToolCall) -> ToolOutcome:
        return await pipeline.execute(self.consumer, call, self.grace)
