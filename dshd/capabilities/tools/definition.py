"""What every tool is: how the model sees it, what it does, and how it wants to be run."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from dshd.capabilities.llm.request import ToolSchema
from dshd.capabilities.values.blocks import ContentBlock
from dshd.capabilities.values.json import Json, frozen

from .call import ToolCall
from .outcome import ToolOutcome, ToolSuccess

ExecutionMode: TypeAlias = Literal["exclusive", "parallel"]
"""Whether nothing else of the step may run beside a call, or others that allow it may."""

Classify: TypeAlias = Callable[[Mapping[str, Json]], ExecutionMode]

Check: TypeAlias = Callable[[Mapping[str, Json]], None]
"""Raises `InvalidArgumentsError` for arguments that do not fit."""

Execute: TypeAlias = "Callable[[ToolCall], Awaitable[Any]]"
"""The body. Returns text, content blocks, a model, JSON, or a `ToolSuccess` or `ToolFailure`; or raises."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """How a call or its result is shown: a card, a title, places, and what kind of thing happens."""

    card: Literal["generic", "terminal", "diff", "search", "read", "web"] = "generic"
    title: str = ""
    locations: tuple[str, ...] = ()
    kind: Literal["read", "edit", "delete", "move", "search", "execute", "fetch", "other"] = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A registered tool. Usually made by `@tool` of a typed function; with `parameters` by hand it is a raw one.

    Raises `ValueError` for a name that providers do not take, a description that is no text, a schema that is not an
    object's or not JSON, an unknown mode, and a timeout that is no time.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON Schema of the arguments."""
    execute: Execute = field(repr=False)
    mode: ExecutionMode | Classify = "exclusive"
    timeout: float | None = None
    """Seconds the body may take; `None` for no limit."""
    cooperative: bool = False
    """Whether the body looks at the call's signal itself; any other is cancelled at once."""
    check: Check | None = field(default=None, repr=False, compare=False)
    """Checks arguments in place of the schema, before anybody is asked about the call; pure."""
    finalize_content: Callable[[ToolCall, ToolOutcome], tuple[ContentBlock, ...]] | None = field(
        default=None, repr=False
    )
    """Makes the content the model reads, the last word after all listeners; pure."""
    show_call: Callable[[Mapping[str, Json]], ToolView] | None = field(default=None, repr=False)
    """How a call is shown; pure function of its arguments."""
    show_result: Callable[[Mapping[str, Json], ToolSuccess], ToolView] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tool is named with up to 64 letters, digits, _ and -, not {self.name!r}")
        description: object = self.description
        if not isinstance(description, str):
            raise ValueError(f"the description of tool {self.name!r} is text for the model, not {description!r}")
        if self.mode not in get_args(ExecutionMode) and not callable(self.mode):
            raise ValueError(f"the mode of tool {self.name!r} is exclusive, parallel or a function, not {self.mode!r}")
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"the timeout of tool {self.name!r} is a number of seconds, not {self.timeout!r}")
        object.__setattr__(self, "parameters", frozen(self.parameters, f"the parameters of tool {self.name!r}"))
        if self.parameters.get("type") != "object":
            raise ValueError(f"the parameters of tool {self.name!r} are a JSON Schema with type: object")

    @property
    def schema(self) -> ToolSchema:
        """The tool as the model sees it."""
        return ToolSchema(self.name, self.description, self.parameters)
