"""The three events that make messages, and how they enter the *surface*: what a model sees of a log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, cast

from dshd.capabilities.llm.stream import TokenUsage
from dshd.capabilities.values.blocks import ToolResultBlock
from dshd.capabilities.values.json import Json, MalformedValueError, frozen, make_whole, member, optional
from dshd.capabilities.values.message import Message, UserMessage, message_from_json, user_message_from_json

from .boundary import count, place


@dataclass(frozen=True, slots=True)
class UserMessageAdded:
    """A message in the role of the user enters the history."""

    message: UserMessage
    type: ClassVar = "user/message"

    def to_json(self) -> dict[str, Json]:
        return self.message.to_json()

    @classmethod
    def from_json(
        cls, data: Json, blocks: Collection[str] | None = None, sources: Collection[str] | None = None
    ) -> UserMessageAdded:
        return cls(user_message_from_json(data, blocks, sources))


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A model's answer, as assembled from its chunks; one for each call that finished successfully."""

    turn: int
    step: int
    message: Message
    usage: TokenUsage | None = None
    interrupted: bool = False
    """Whether it is what had reached the user of an answer that was cancelled."""
    type: ClassVar = "assistant/message"

    def to_json(self) -> dict[str, Json]:
        usage = {} if self.usage is None else {"usage": self.usage.to_json()}
        interrupted = {"interrupted": True} if self.interrupted else {}
        return {"turn": self.turn, "step": self.step, "message": self.message.to_json(), **usage, **interrupted}

    @classmethod
    def from_json(
        cls, data: Json, blocks: Collection[str] | None = None, sources: Collection[str] | None = None
    ) -> AssistantMessage:
        turn, step = place(data, cls.type)
        usage = data.get("usage")
        message = message_from_json(data.get("message"), blocks, sources)
        if message.role != "assistant":
            raise MalformedValueError(f"the message of {cls.type} has the role {message.role!r}")
        return cls(
            turn,
            step,
            message,
            None if usage is None else TokenUsage.from_json(usage),
            optional(data, "interrupted", bool, cls.type) or False,
        )


@dataclass(frozen=True, slots=True)
class ToolError:
    """What kind of failure a tool result is."""

    name: str
    code: str

    def __post_init__(self) -> None:
        make_whole(self, "name", "code")

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "code": self.code}

    @classmethod
    def from_json(cls, data: Json) -> ToolError:
        what = "the error of a tool result"
        return cls(member(data, "name", str, what), member(data, "code", str, what))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call; one for each. The message consists of one tool-result block."""

    turn: int
    step: int
    message: Message
    error: ToolError | None = None
    meta: Mapping[str, Json] | None = None
    """What displays need beside the content."""
    type: ClassVar = "tool/result"

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", frozen(self.meta, f"{self.type}: meta"))

    @property
    def result(self) -> ToolResultBlock:
        """The one block of the message."""
        return cast(ToolResultBlock, self.message.content[0])

    def to_json(self) -> dict[str, Json]:
        error = {} if self.error is None else {"error": self.error.to_json()}
        meta = {} if self.meta is None else {"meta": self.meta}
        return {"turn": self.turn, "step": self.step, "message": self.message.to_json(), **error, **meta}

    @classmethod
    def from_json(
        cls, data: Json, blocks: Collection[str] | None = None, sources: Collection[str] | None = None
    ) -> ToolResult:
        turn, step = place(data, cls.type)
        message = message_from_json(data.get("message"), blocks, sources)
        if len(message.content) != 1 or not isinstance(message.content[0], ToolResultBlock):
            raise MalformedValueError(f"the message of {cls.type} does not consist of one tool-result block")
        if message.role != "user":
            raise MalformedValueError(f"the message of {cls.type} is of the role {message.role!r} and not 'user'")
        failed = data.get("error")
        error = None if failed is None else ToolError.from_json(failed)
        return cls(turn, step, message, error, optional(data, "meta", dict, cls.type))


SurfaceData: TypeAlias = UserMessageAdded | AssistantMessage | ToolResult

SURFACE = (UserMessageAdded, AssistantMessage, ToolResult)
"""The events that make messages."""


@dataclass(frozen=True, slots=True)
class Replace:
    """A surface operation: this node takes the place of those from seq `start` to seq `end`, both included.

    Which nodes lie between the two is a matter of their order on the surface, not of their numbers.
    """

    start: int
    end: int


SurfaceOp: TypeAlias = "Literal['append'] | Replace"


def op_to_json(op: SurfaceOp) -> Json:
    """The JSON of a surface operation."""
    return {"op": "replace", "start": op.start, "end": op.end} if isinstance(op, Replace) else op


def op_from_json(data: Json) -> SurfaceOp:
    """The surface operation that JSON stands for; without one, `append`. Raises `MalformedValueError`."""
    if data is None or data == "append":
        return "append"
    what = "a surface operation"
    if not isinstance(data, dict) or data.get("op") != "replace":
        raise MalformedValueError(f"{what} is 'append' or a replacement of a range")
    return Replace(count(data, "start", what), count(data, "end", what))
