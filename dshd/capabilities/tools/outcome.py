"""What comes of a tool call: a success or a failure, both for the model to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dshd.capabilities.values.blocks import ContentBlock, TextBlock
from dshd.capabilities.values.json import Json, frozen
from dshd.capabilities.values.message import UserMessage


class ToolCode:
    """The codes the pipeline itself gives failures. Tools may use others."""

    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    DENIED = "DENIED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    BLOCKED = "BLOCKED"
    TIMEOUT = "TIMEOUT"
    ABORTED = "ABORTED"
    ABORTED_BEFORE_DISPATCH = "ABORTED_BEFORE_DISPATCH"
    TOOL_ERROR = "TOOL_ERROR"
    """The tool says that it could not do what was asked."""
    INTERNAL = "INTERNAL"
    """The tool, or a plugin around it, is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSuccess:
    """The tool did what was asked. Only `content` and `meta` are durable."""

    content: tuple[ContentBlock, ...]
    """What the model reads."""
    value: object = None
    """What the tool returned, for plugins that look at results."""
    meta: Mapping[str, Json] | None = None
    """What displays need beside the content; JSON."""
    contexts: tuple[UserMessage, ...] = ()
    """Messages for the next request."""
    concludes_turn: bool = False
    """Whether the turn may end with this step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", tuple(self.content))
        object.__setattr__(self, "contexts", tuple(self.contexts))
        object.__setattr__(self, "meta", frozen(self.meta, "meta of a tool result"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFailure:
    """It did not. The model reads `content`, by default the message."""

    message: str
    code: str
    content: tuple[ContentBlock, ...] = ()
    meta: Mapping[str, Json] | None = None
    contexts: tuple[UserMessage, ...] = ()
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """What was raised, for those who observe results; never stored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", tuple(self.content) or (TextBlock(f"Error: {self.message}"),))
        object.__setattr__(self, "contexts", tuple(self.contexts))
        object.__setattr__(self, "meta", frozen(self.meta, "meta of a tool result"))


ToolOutcome: TypeAlias = ToolSuccess | ToolFailure
