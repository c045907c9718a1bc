"""One answer, fixed as a whole before its first chunk: what comes, in which pieces, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal

from dshd.capabilities.llm import (
    Aborted,
    BlockEnd,
    BlockStart,
    Failed,
    FailureCode,
    Finish,
    FinishReason,
    LlmFailure,
    MaxTokens,
    ReasoningDelta,
    ReplayEnvelope,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCalls,
    UsageReport,
)
from dshd.capabilities.values import CallId, Extension

from .config import LlmScripted
from .question import CHARACTERS_A_TOKEN, tokens
from .reply import Fail, Reply, Usage
from .routes import milliseconds
from .template import expanded

_REASONS: dict[str, FinishReason] = {"stop": Stop(), "tool-calls": ToolCalls(), "max-tokens": MaxTokens()}

Fill = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Block:
    """One block with its whole text; a tool call's are its arguments."""

    delta: type[TextDelta] | type[ReasoningDelta] | type[ToolCallDelta]
    text: str
    name: str = ""
    call: CallId | None = None

    @property
    def length(self) -> int:
        return len(self.name) + len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a stream does: the chunks of `content` in their time, and at once those of `end`.

    Then it raises `error`, or never ends if it `stalls`, or is over.
    """

    delay: float = 0
    """Seconds before anything comes."""
    pace: float = 0
    """Seconds between two deltas."""
    content: tuple[StreamChunk, ...] = ()
    end: tuple[StreamChunk, ...] = ()
    error: LlmFailure | None = None
    stalls: bool = False


def compose(
    reply: Reply,
    *,
    config: LlmScripted,
    fill: Fill,
    new_id: Callable[[int], str],
    cap: int | None,
    stop: Sequence[str],
    read: TokenUsage,
) -> Answer:
    """The answer that a reply comes to.

    `config` says how it arrives where the reply does not, `fill` completes templates, `new_id` names the call of a
    number, `cap` is in tokens, `read` is the input. A reply that is cut short fails, stalls or drops all the same.
    """
    blocks, cut = _cut(_blocks(reply, fill, new_id), cap, stop)
    pieces = _pieces(blocks, reply, reply.chunk or config.chunk)
    fail = None if reply.fail is None else _failure(reply.fail, fill)
    raised = fail if reply.fail is not None and reply.fail.raises else None
    broken = fail is not None or reply.stall or reply.drop
    end: list[StreamChunk] = []
    if reply.usage != "none" and not (broken and reply.usage is None):
        end.append(UsageReport(_usage(read, blocks, reply.usage)))
    if not broken:
        replay = None if reply.replay is None else ReplayEnvelope(reply.replay)
        end.append(Finish(cut or _reason(reply, blocks), replay))
    elif fail is not None and raised is None:
        end.append(Finish(Aborted(fail) if fail.code == FailureCode.ABORTED else Failed(fail)))
    return Answer(
        delay=config.delay if reply.delay is None else reply.delay,
        pace=config.pace if reply.pace is None else reply.pace,
        content=tuple(pieces if reply.after is None else _first(pieces, reply.after)),
        end=tuple(end),
        error=raised,
        stalls=reply.stall,
    )


# -- what is in it


def _blocks(reply: Reply, fill: Fill, new_id: Callable[[int], str]) -> list[Block]:
    blocks = [
        Block(delta, fill(text)) for delta, text in ((ReasoningDelta, reply.think), (TextDelta, reply.say)) if text
    ]
    for index, call in enumerate(reply.calls):
        arguments = json.dumps(expanded(call.arguments, fill), ensure_ascii=False)
        text = arguments if call.raw is None else fill(call.raw)
        identity = CallId(new_id(index) if call.id is None else call.id)
        blocks.append(Block(ToolCallDelta, text, fill(call.tool), identity))
    return blocks


def _cut(blocks: list[Block], cap: int | None, stop: Sequence[str]) -> tuple[list[Block], FinishReason | None]:
    """What remains before a stop sequence in visible text and within the cap, and why it ends there if it does."""
    kept: list[Block] = []
    room = None if cap is None else cap * CHARACTERS_A_TOKEN
    for block in blocks:
        text = block.text
        reason: FinishReason | None = None
        if block.delta is TextDelta:
            places = [place for each in stop if (place := text.find(each)) >= 0]
            text, reason = (text[: min(places)], Stop()) if places else (text, None)
        if room is not None and len(block.name) + len(text) > room:
            text, reason = text[: max(room - len(block.name), 0)], MaxTokens()
        fits = room is None or len(block.name) <= room
        if fits and (text or block.delta is ToolCallDelta):
            kept.append(Block(block.delta, text, block.name, block.call))
        if reason is not None:
            return kept, reason
        room = None if room is None else room - block.length
    return kept, None


def _reason(reply: Reply, blocks: list[Block]) -> FinishReason:
    if reply.finish is not None:
        return _REASONS.get(reply.finish) or Extension(reply.finish, {})
    return ToolCalls() if any(block.delta is ToolCallDelta for block in blocks) else Stop()


def _failure(fail: Fail, fill: Fill) -> LlmFailure:
    wait = None if fail.retry_after is None else milliseconds(fail.retry_after)
    return LlmFailure(
        message=fill(fail.message), code=fail.code, status=fail.status, provider_retry_after_ms=wait,
        request_id=fail.request_id,
    )  # fmt: skip


def _usage(read: TokenUsage, blocks: list[Block], given: Usage | Literal["none"] | None) -> TokenUsage:
    thought = sum(block.length for block in blocks if block.delta is ReasoningDelta)
    estimate = replace(
        read,
        output_tokens=tokens(sum(block.length for block in blocks)),
        reasoning_tokens=tokens(thought) if thought else None,
    )
    chosen: Any = dict(given) if isinstance(given, Usage) else {}
    return replace(estimate, **{f"{name}_tokens": count for name, count in chosen.items() if count is not None})


# -- in which pieces it comes


def _pieces(blocks: list[Block], reply: Reply, size: int) -> Iterator[StreamChunk]:
    parts = [list(_of_block(index, block, size, reply.bare)) for index, block in enumerate(blocks)]
    if not reply.interleave:
        return (chunk for part in parts for chunk in part)
    return (chunk for turn in zip_longest(*parts) for chunk in turn if chunk is not None)


def _of_block(index: int, block: Block, size: int, bare: bool) -> Iterator[StreamChunk]:
    texts = [block.text[start : start + size] for start in range(0, len(block.text), size)] or [""]
    if block.delta is ToolCallDelta:
        if bare:
            yield ToolCallDelta(index, texts.pop(0), block.call, block.name)
        else:
            yield BlockStart(index, "tool-call", block.call, block.name)
        yield from (ToolCallDelta(index, text) for text in texts)
    else:
        if not bare:
            yield BlockStart(index, "text" if block.delta is TextDelta else "reasoning")
        yield from (block.delta(index, text) for text in texts)
    if not bare:
        yield BlockEnd(index)


def is_delta(chunk: StreamChunk) -> bool:
    """Whether a chunk brings something, so that it counts and takes its time."""
    return isinstance(chunk, (TextDelta, ReasoningDelta, ToolCallDelta))


def _first(chunks: Iterator[StreamChunk], count: int) -> Iterator[StreamChunk]:
    """The chunks up to the delta of that number."""
    while count > 0 and (chunk := next(chunks, None)) is not None:
        yield chunk
        count -= is_delta(chunk)
