"""The stream protocol: what an adapter emits while a model answers. A closed union; `match` on the class.

An adapter emits deltas, then usage if it knows it, then exactly one `Finish`, the last chunk. `index` names the block a
delta belongs to; the start and the end of a block may be left out. Tool arguments come as pieces of raw JSON text.
A failure is a `Finish` with `Aborted` or `Failed`, or an exception, which the service turns into one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from dshd.capabilities.values.ids import CallId
from dshd.capabilities.values.json import Json, MalformedValueError, array, frozen, make_whole, member, optional
from dshd.capabilities.values.kinds import Extension

from .counts import LARGEST_SAFE, check_count, check_optional_count
from .failure import LlmFailure

# -- why a response stopped


@dataclass(frozen=True, slots=True)
class Stop:
    """The model was done, or met a stop sequence, which is no part of the output."""

    kind: ClassVar = "stop"


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The model waits for tools."""

    kind: ClassVar = "tool-calls"


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """The output cap, or the context window, was reached; tool calls of this answer are not to be trusted."""

    kind: ClassVar = "max-tokens"


@dataclass(frozen=True, slots=True)
class Aborted:
    """The call was cancelled."""

    failure: LlmFailure
    kind: ClassVar = "aborted"


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed."""

    failure: LlmFailure
    kind: ClassVar = "error"


FinishReason: TypeAlias = Stop | ToolCalls | MaxTokens | Aborted | Failed | Extension
"""An open union: adapters may add reasons of their own."""

CORE_REASONS = frozenset({"stop", "tool-calls", "max-tokens", "aborted", "error"})
"""The kinds that an `Extension` may not take for itself."""


def finish_to_json(reason: FinishReason) -> dict[str, Json]:
    """The JSON object of a reason, `kind` first."""
    if isinstance(reason, Extension):
        return reason.to_json("kind")
    failure = {"failure": reason.failure.to_json()} if isinstance(reason, (Aborted, Failed)) else {}
    return {"kind": reason.kind, **failure}


def finish_from_json(data: Json, known: Collection[str] | None = None) -> FinishReason:
    """The reason a JSON object stands for; of another kind than the core's, an `Extension`."""
    match member(data, "kind", str, "a finish reason"):
        case "stop":
            return Stop()
        case "tool-calls":
            return ToolCalls()
        case "max-tokens":
            return MaxTokens()
        case "aborted":
            return Aborted(LlmFailure.from_json(data.get("failure")))
        case "error":
            return Failed(LlmFailure.from_json(data.get("failure")))
        case _:
            return Extension.from_json(data, "kind", "a finish reason", known)


# -- what it used


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one call. The three input counts are disjoint: billed input is their sum.

    Raises `MalformedValueError` for what is no count; an adapter corrects what its provider says before it makes one.
    """

    input_tokens: int = 0
    """Uncached input only."""
    output_tokens: int = 0
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Already counted in `output_tokens`."""

    def __post_init__(self) -> None:
        check_count("input_tokens", self.input_tokens)
        check_count("output_tokens", self.output_tokens)
        for name in _OPTIONAL_COUNTS:
            check_optional_count(name, getattr(self, name))

    @property
    def billed_input_tokens(self) -> int:
        return self.input_tokens + (self.cache_read_tokens or 0) + (self.cache_write_tokens or 0)

    def to_json(self) -> dict[str, Json]:
        extra = {name: getattr(self, name) for name in _OPTIONAL_COUNTS if getattr(self, name) is not None}
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, **extra}

    @classmethod
    def from_json(cls, data: Json) -> TokenUsage:
        """What `to_json` gave. Raises `MalformedValueError`."""
        what = "token usage"
        return cls(
            input_tokens=member(data, "input_tokens", int, what),
            output_tokens=member(data, "output_tokens", int, what),
            **{name: optional(data, name, int, what) for name in _OPTIONAL_COUNTS},
        )


_OPTIONAL_COUNTS = ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens")

# -- chunks

BlockType: TypeAlias = Literal["text", "reasoning", "tool-call"]


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A block begins. `call_id` and `name` are those of a tool call, as far as they are known yet."""

    index: int
    block: BlockType
    call_id: CallId | None = None
    name: str | None = None
    type: ClassVar = "block-start"

    def __post_init__(self) -> None:
        make_whole(self, "call_id", "name")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More visible text."""

    index: int
    text: str
    type: ClassVar = "text-delta"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More thinking."""

    index: int
    text: str
    type: ClassVar = "reasoning-delta"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call: a piece of its raw JSON arguments, and its id and name where they become known."""

    index: int
    arguments: str = ""
    call_id: CallId | None = None
    name: str | None = None
    type: ClassVar = "tool-call-delta"


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """A block is whole; later deltas for its index do not count."""

    index: int
    type: ClassVar = "block-end"


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the call used. Of several the last one counts."""

    usage: TokenUsage
    type: ClassVar = "usage"


@dataclass(frozen=True, slots=True)
class ReplayEnvelope:
    """What the adapter needs to say this answer again to its provider: lossless JSON, its own business.

    `blocks` has one entry for each block the adapter emitted, in their order, null where there is nothing to say;
    entries of dropped blocks are dropped with them. Raises `LossyValueError`.
    """

    response: Json = None
    blocks: tuple[Json, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "response", frozen(self.response, "replay state"))
        if self.blocks is not None:
            object.__setattr__(self, "blocks", frozen(tuple(self.blocks), "replay state"))

    def to_json(self) -> dict[str, Json]:
        return {"response": self.response, **({} if self.blocks is None else {"blocks": list(self.blocks)})}

    @classmethod
    def from_json(cls, data: Json) -> ReplayEnvelope:
        blocks = array(data, "blocks", "a replay envelope")
        return cls(data.get("response"), None if data.get("blocks") is None else blocks)


@dataclass(frozen=True, slots=True)
class Finish:
    """The response is over."""

    reason: FinishReason
    replay: ReplayEnvelope | None = None
    type: ClassVar = "finish"


StreamChunk: TypeAlias = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageReport | Finish


def chunk_to_json(chunk: StreamChunk) -> dict[str, Json]:
    """The JSON object of a chunk, `type` first."""
    match chunk:
        case TextDelta(index, text) | ReasoningDelta(index, text):
            return {"type": chunk.type, "index": index, "text": text}
        case ToolCallDelta(index, arguments, call, name):
            return {"type": "tool-call-delta", "index": index, "arguments": arguments, **_call(call, name)}
        case BlockStart(index, block, call, name):
            return {"type": "block-start", "index": index, "block": block, **_call(call, name)}
        case BlockEnd(index):
            return {"type": "block-end", "index": index}
        case UsageReport(usage):
            return {"type": "usage", "usage": usage.to_json()}
        case Finish(reason, replay):
            more = {} if replay is None else {"replay": replay.to_json()}
            return {"type": "finish", "reason": finish_to_json(reason), **more}


def _call(call: CallId | None, name: str | None) -> dict[str, Json]:
    return {**({} if call is None else {"call_id": call}), **({} if name is None else {"name": name})}


def chunk_from_json(data: Json, finish_kinds: Collection[str] | None = None) -> StreamChunk:
    """The chunk a JSON object stands for. The union is closed; only the reasons of a finish are open.

    Raises `MalformedValueError`, `LossyValueError` for what JSON cannot hold, and `UnknownKindError` for a reason that
    is marked required and not among `finish_kinds`.
    """
    kind = member(data, "type", str, "a chunk")
    what = f"a {kind} chunk"
    if kind == "usage":
        return UsageReport(TokenUsage.from_json(data.get("usage")))
    if kind == "finish":
        replay = data.get("replay")
        envelope = None if replay is None else ReplayEnvelope.from_json(replay)
        return Finish(finish_from_json(data.get("reason"), finish_kinds), envelope)
    index = member(data, "index", int, what)
    call, name = optional(data, "call_id", str, what), optional(data, "name", str, what)
    match kind:
        case "text-delta":
            return TextDelta(index, member(data, "text", str, what))
        case "reasoning-delta":
            return ReasoningDelta(index, member(data, "text", str, what))
        case "tool-call-delta":
            return ToolCallDelta(
                index, member(data, "arguments", str, what), None if call is None else CallId(call), name
            )
        case "block-start":
            block = member(data, "block", str, what)
            if block not in get_args(BlockType):
                raise MalformedValueError(f"{what} is of {block!r}")
            return BlockStart(index, block, None if call is None else CallId(call), name)  # type: ignore[arg-type]
        case "block-end":
            return BlockEnd(index)
        case _:
            raise MalformedValueError(f"{kind!r} is no kind of chunk")


def check_chunk(chunk: object, what: str) -> None:
    """Raise `MalformedValueError` for what is no chunk or has members of other types than declared."""
    if type(chunk) not in _CHUNKS:
        raise MalformedValueError(f"{what}: {type(chunk).__name__} is no chunk")
    match chunk:
        case TextDelta(index, text) | ReasoningDelta(index, text):
            fine = _place(index) and type(text) is str
        case ToolCallDelta(index, arguments, call, name):
            fine = _place(index) and type(arguments) is str and _named(call, name)
        case BlockStart(index, block, call, name):
            fine = _place(index) and block in get_args(BlockType) and _named(call, name)
        case BlockEnd(index):
            fine = _place(index)
        case UsageReport(usage):
            fine = type(usage) is TokenUsage
        case Finish(reason, replay):
            fine = _is_reason(reason) and type(replay) in (ReplayEnvelope, type(None))
        case _:
            fine = False
    if not fine:
        raise MalformedValueError(f"{what}: a member of a {type(chunk).__name__} is of another type than declared")


_CHUNKS = frozenset(get_args(StreamChunk))


def _is_reason(reason: object) -> bool:
    if isinstance(reason, (Aborted, Failed)):
        failure: object = reason.failure
        return type(reason) in (Aborted, Failed) and type(failure) is LlmFailure
    if isinstance(reason, Extension):
        return type(reason) is Extension and reason.kind not in CORE_REASONS
    return type(reason) in (Stop, ToolCalls, MaxTokens)


def _named(call: object, name: object) -> bool:
    return (call is None or type(call) is str) and (name is None or type(name) is str)


def _place(index: object) -> bool:
    return type(index) is int and 0 <= index <= LARGEST_SAFE
