"""One call on its way through the pipeline, and what may be decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from dshd.capabilities.values.blocks import ContentBlock
from dshd.capabilities.values.ids import CallId, SessionId
from dshd.capabilities.values.json import EMPTY, Json
from dshd.capabilities.values.message import UserMessage
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.keys import ServiceKey
from dshd.kernel.signal import Aborter, Signal

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool. Its arguments are what was logged: nobody rewrites them."""

    id: CallId
    name: str
    raw_arguments: str
    """The JSON text the model wrote."""
    arguments: Mapping[str, Json] = EMPTY
    """The same, parsed; empty until the pipeline has done so."""
    scope: Scope | None = None
    """The agent that calls."""
    session_id: SessionId | None = None
    turn: int | None = None
    step: int | None = None
    signal: Signal = field(default_factory=lambda: Aborter().signal, repr=False)
    """Says when to stop; a tool that takes a `Signal` gets this one."""
    context: Context | None = field(default=None, repr=False)
    """The context of the agent that calls, as it was when the call began. Set by the pipeline; ends with the call."""

    def get(self, key: ServiceKey[T]) -> T | None:
        """A service as the calling agent sees it: a tool uses that agent's shell, not its own plugin's."""
        return None if self.context is None else self.context.get(key)


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may go on."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The call ends here; the model reads the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody has to be asked. Where nobody can answer it is a denial."""

    reason: str | None = None


PreDecision: TypeAlias = Allow | Deny | Ask


@dataclass(frozen=True, slots=True)
class Denial:
    """What a guard says to a call it does not let through. A guard that has nothing against it answers `None`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostDecision:
    """What is made of an outcome: accepted as it is, with other content or value, or blocked with feedback.

    `contexts` are added to the outcome's own. Raises `ValueError` for more than one of content, value and block.
    """

    content: tuple[ContentBlock, ...] | None = None
    """In place of the content the model would read."""
    value: object = None
    """In place of the value; its content is made anew."""
    replaces_value: bool = False
    block: str | None = None
    """Feedback to the model in place of the result, as an error."""
    contexts: tuple[UserMessage, ...] = ()

    def __post_init__(self) -> None:
        if sum((self.content is not None, self.replaces_value, self.block is not None)) > 1:
            raise ValueError(
                "a decision replaces the content, or the value, or blocks the result; not several of these"
            )
