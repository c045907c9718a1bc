"""`ctx[TOOLS]`: what is on offer, and the pipeline every call goes through.

    pre-execute  →  guards  →  execute  →  post-execute  →  finalize_content  →  result
    allow, deny     deny       around      accept, re-      the definition's      observed
    or ask          only       the body    place or block   last word

A call that is denied skips everything up to the result: nothing later can lift a denial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dshd.capabilities.llm.request import ToolSchema
from dshd.kernel.effects import Effect
from dshd.kernel.events import Bail, Emit, Waterfall
from dshd.kernel.keys import RegistryKey, ServiceKey
from dshd.kernel.registry import RegistryChange

from .call import Denial, PostDecision, PreDecision, ToolCall
from .definition import ExecutionMode, ToolDefinition
from .outcome import ToolOutcome
from .restrict import Restriction


class Tools(Protocol):
    """The service, as one consumer sees it.

    Through a scoped context it is an agent's: it sees what the scope registered and those global tools that its
    restrictions permit, none unless one names them. A tool that is hidden is not told from one that does not exist.
    """

    def register(self, definition: ToolDefinition) -> Effect:
        """Offer a tool for the life of the consumer.

        Raises `EntryConflictError` for a name that is taken, `PluginDefinitionError` for a schema that is not valid.
        """

    def restrict(self, *, allow: Sequence[str] | None = None, deny: Sequence[str] = ()) -> Effect:
        """Narrow what this scope inherits, by patterns of names; at once, also for calls of a step in progress.

        Without a scope it is for every agent, and may only deny. Raises `ValueError` for an `allow` there.
        """

    def guard(self, guard: Callable[[ToolCall], Denial | None]) -> Effect:
        """Policy that can only tighten: a denial no later listener can lift. One that raises denies."""

    def get(self, name: str) -> ToolDefinition | None:
        """The tool of this name, if it is visible."""

    def schemas(self) -> list[ToolSchema]:
        """The visible tools as the model sees them, in no order that means anything."""

    def classify(self, call: ToolCall) -> ExecutionMode:
        """Whether a call may run beside others. What cannot be told is exclusive."""

    async def execute(self, call: ToolCall) -> ToolOutcome:
        """Run one call through the pipeline. Raises nothing but the caller's own cancellation.

        `tools/result` is told exactly once in any case. If the caller is cancelled nobody can be waited for any more,
        so it is told that the call was aborted, before or after it had begun. A scope calls in its own name only.
        """


TOOLS = ServiceKey[Tools]("tools")

TOOLS_CHANGED = Emit[RegistryChange]("tools/change")
TOOL_DEFINITIONS = RegistryKey[ToolDefinition]("tool", of=TOOLS, changed=TOOLS_CHANGED)
RESTRICTIONS = RegistryKey[Restriction]("tool restriction", of=TOOLS, changed=TOOLS_CHANGED)


@dataclass(frozen=True, slots=True)
class AfterExecution:
    """Payload of `tools/post-execute` and `tools/result`."""

    call: ToolCall
    outcome: ToolOutcome


PRE_EXECUTE = Waterfall[ToolCall, PreDecision]("tools/pre-execute", policy=True, subject=lambda call: call.scope)
"""May the call go on? Arguments cannot be changed: they are logged already."""
GUARD = Bail[ToolCall, Denial]("tools/guard", policy=True, subject=lambda call: call.scope)
TOOL_EXECUTE = Waterfall[ToolCall, ToolOutcome]("tools/execute", subject=lambda call: call.scope)
"""Around the body."""
POST_EXECUTE = Waterfall[AfterExecution, PostDecision](
    "tools/post-execute", policy=True, subject=lambda after: after.call.scope
)
"""What is made of an outcome, also of a failed one."""
TOOL_RESULT = Emit[AfterExecution]("tools/result", subject=lambda after: after.call.scope)
"""The final outcome, to look at."""
