"""Content blocks: what a message consists of. An open union; new kinds are `Extension`s (see `kinds`).

The text of a block is made `whole`, for models send characters in pieces. Everything else about it is believed until
`check_block` looks, which whoever makes a record durable calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from .ids import CallId
from .json import Json, MalformedValueError, array, make_whole, member, optional
from .kinds import Extension, Kinds

DEEPEST_BLOCK = 50
"""Levels of tool results within tool results."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Visible text."""

    text: str
    type: ClassVar = "text"

    def __post_init__(self) -> None:
        make_whole(self, "text")

    def to_json(self) -> dict[str, Json]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    """Thinking, kept apart from visible text."""

    text: str
    type: ClassVar = "reasoning"

    def __post_init__(self) -> None:
        make_whole(self, "text")

    def to_json(self) -> dict[str, Json]:
        return {"type": "reasoning", "text": self.text}


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """The model asks for a tool. `arguments` is the raw JSON text it wrote, which need not be valid."""

    id: CallId
    name: str
    arguments: str
    type: ClassVar = "tool-call"

    def __post_init__(self) -> None:
        make_whole(self, "id", "name", "arguments")

    def to_json(self) -> dict[str, Json]:
        return {"type": "tool-call", "id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    """What came of a tool call, for the model."""

    tool_call_id: CallId
    content: tuple[ContentBlock, ...]
    is_error: bool | None = None
    type: ClassVar = "tool-result"

    def __post_init__(self) -> None:
        make_whole(self, "tool_call_id")
        object.__setattr__(self, "content", tuple(self.content))

    def to_json(self) -> dict[str, Json]:
        error = {} if self.is_error is None else {"is_error": self.is_error}
        content = [block_to_json(block) for block in self.content]
        return {"type": "tool-result", "tool_call_id": self.tool_call_id, "content": content, **error}


ContentBlock: TypeAlias = "TextBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock | Extension"

_CORE = (TextBlock, ReasoningBlock, ToolCallBlock, ToolResultBlock)
_CLASSES = frozenset({*_CORE, Extension})

BLOCKS = frozenset(each.type for each in _CORE)
"""The kinds that have classes."""


def block_to_json(block: ContentBlock) -> dict[str, Json]:
    """The JSON object of a block, `type` first."""
    return block.to_json("type") if isinstance(block, Extension) else block.to_json()


def block_from_json(data: Json, known: Collection[str] | None = None, *, depth: int = 0) -> ContentBlock:
    """The block a JSON object stands for; of another kind than the core's, an `Extension`.

    Raises `MalformedValueError`, and `UnknownKindError` for a required kind that is not among `known`. `depth` is how
    many tool results it stands in.
    """
    kind = member(data, "type", str, "a content block")
    what = f"a {kind} block"
    match kind:
        case "text":
            return TextBlock(member(data, "text", str, what))
        case "reasoning":
            return ReasoningBlock(member(data, "text", str, what))
        case "tool-call":
            return ToolCallBlock(
                CallId(member(data, "id", str, what)),
                member(data, "name", str, what),
                member(data, "arguments", str, what),
            )
        case "tool-result":
            if depth >= DEEPEST_BLOCK:
                raise MalformedValueError(f"tool results are nested deeper than {DEEPEST_BLOCK} levels")
            content = [
                block_from_json(part, known, depth=depth + 1) for part in array(data, "content", what, required=True)
            ]
            identity = CallId(member(data, "tool_call_id", str, what))
            return ToolResultBlock(identity, tuple(content), optional(data, "is_error", bool, what))
        case _:
            return Extension.from_json(data, "type", "a content block", known)


def check_block(block: object, what: str, kinds: Kinds | None = None, *, depth: int = 0) -> None:
    """Raise `MalformedValueError`, beginning with `what`, for anything that would not be read back from a record.

    That is what is no block, has members of other types than declared, or that one of the registered `kinds` refuses;
    also within tool results.
    """
    if type(block) not in _CLASSES:
        raise MalformedValueError(f"{what}: {type(block).__name__} is no content block")
    match block:
        case TextBlock(text) | ReasoningBlock(text):
            fine = type(text) is str
        case ToolCallBlock(identity, name, arguments):
            fine = type(identity) is str and type(name) is str and type(arguments) is str
        case ToolResultBlock(identity, content, is_error):
            if depth >= DEEPEST_BLOCK:
                raise MalformedValueError(f"{what}: tool results are nested deeper than {DEEPEST_BLOCK} levels")
            for part in content:
                check_block(part, what, kinds, depth=depth + 1)
            fine = type(identity) is str and (is_error is None or type(is_error) is bool)
        case Extension():
            block.check(what, "type", BLOCKS, kinds)
            fine = True
        case _:
            fine = False
    if not fine:
        raise MalformedValueError(f"{what}: a member of a {type(block).__name__} is of another type than declared")


def text_of(content: Iterable[ContentBlock]) -> str:
    """The visible text of some blocks, one after the other; reasoning, calls and results are left out."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))
