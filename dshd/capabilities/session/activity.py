"""Log-only events of an agent at work: chunks as they arrive, calls of tools, headers of requests, the inbox."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from dshd.capabilities.llm.request import EpochHeader
from dshd.capabilities.llm.stream import StreamChunk, chunk_from_json, chunk_to_json
from dshd.capabilities.values.ids import CallId
from dshd.capabilities.values.json import Json, MalformedValueError, array, make_whole, member, optional
from dshd.capabilities.values.message import UserMessage, user_message_from_json

from .boundary import count, optional_count, place


@dataclass(frozen=True, slots=True)
class AssistantChunk:
    """One raw chunk of a model's answer."""

    turn: int
    step: int
    chunk: StreamChunk
    type: ClassVar = "assistant/chunk"

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn, "step": self.step, "chunk": chunk_to_json(self.chunk)}

    @classmethod
    def from_json(cls, data: Json, finishes: Collection[str] | None = None) -> AssistantChunk:
        return cls(*place(data, cls.type), chunk_from_json(data.get("chunk"), finishes))


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A tool is about to run. `arguments` is the raw text the model wrote."""

    turn: int
    step: int
    call_id: CallId
    name: str
    arguments: str
    type: ClassVar = "tool/call"

    def __post_init__(self) -> None:
        make_whole(self, "call_id", "name", "arguments")

    def to_json(self) -> dict[str, Json]:
        return {
            "turn": self.turn, "step": self.step, "call_id": self.call_id, "name": self.name,
            "arguments": self.arguments,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> ToolCalled:
        call, name = member(data, "call_id", str, cls.type), member(data, "name", str, cls.type)
        return cls(*place(data, cls.type), CallId(call), name, member(data, "arguments", str, cls.type))


HeaderReason: TypeAlias = Literal["initial", "resume", "change"]


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of the requests from here on, whole; the latest one counts. Logged in its step, before dispatch."""

    header: EpochHeader
    reason: HeaderReason
    type: ClassVar = "request/header"

    def to_json(self) -> dict[str, Json]:
        return {"header": self.header.to_json(), "reason": self.reason}

    @classmethod
    def from_json(cls, data: Json) -> RequestHeader:
        reason: Any = member(data, "reason", str, cls.type)
        if reason not in get_args(HeaderReason):
            raise MalformedValueError(f"the reason of {cls.type} is {reason!r}")
        return cls(EpochHeader.from_json(data.get("header")), reason)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the exact model can hold, when that changes. Log-only, no part of the reconstruction of a request."""

    provider: str
    model: str
    context_window: int | None = None
    type: ClassVar = "request/context"

    def __post_init__(self) -> None:
        make_whole(self, "provider", "model")

    def to_json(self) -> dict[str, Json]:
        window = {} if self.context_window is None else {"context_window": self.context_window}
        return {"provider": self.provider, "model": self.model, **window}

    @classmethod
    def from_json(cls, data: Json) -> RequestContext:
        provider, model = member(data, "provider", str, cls.type), member(data, "model", str, cls.type)
        return cls(provider, model, optional_count(data, "context_window", cls.type))


InboxTarget: TypeAlias = Literal["next-turn", "next-step"]


@dataclass(frozen=True, slots=True)
class InboxSpliced:
    """A list of the inbox is about to change: `delete_count` messages from `start` on give way to `inserted`."""

    target: InboxTarget
    start: int
    delete_count: int = 0
    inserted: tuple[UserMessage, ...] = ()
    outcome: Literal["canceled"] | None = None
    type: ClassVar = "agent/inbox/spliced"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inserted", tuple(self.inserted))

    def to_json(self) -> dict[str, Json]:
        return {
            "target": self.target, "start": self.start, "delete_count": self.delete_count,
            "inserted": [message.to_json() for message in self.inserted],
            **({} if self.outcome is None else {"outcome": self.outcome}),
        }  # fmt: skip

    @classmethod
    def from_json(
        cls, data: Json, blocks: Collection[str] | None = None, sources: Collection[str] | None = None
    ) -> InboxSpliced:
        target: Any = member(data, "target", str, cls.type)
        outcome = optional(data, "outcome", str, cls.type)
        if target not in get_args(InboxTarget) or outcome not in (None, "canceled"):
            raise MalformedValueError(f"{cls.type} has the target {target!r} and the outcome {outcome!r}")
        inserted = [user_message_from_json(part, blocks, sources) for part in array(data, "inserted", cls.type)]
        start, deleted = count(data, "start", cls.type), count(data, "delete_count", cls.type)
        return cls(target, start, deleted, tuple(inserted), "canceled" if outcome else None)
