"""Chunks back into blocks: the same chunks that are logged, in any split and order an adapter may emit them.

Providers are loose with the protocol, so this is what counts:

- Blocks stand in the order of their first chunk. One in which nothing was said is left out.
- A start begins a block whatever is open at its index. Without one, text or reasoning begins a block where the open
  one is of another kind, and a call begins one where the open call has another id, or another name without an id.
- Arguments go on with the last call at their index, though text came in between.
- An end closes its index: what still comes for it does not count, until another start.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import count, repeat

from dshd.capabilities.values.blocks import ContentBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dshd.capabilities.values.ids import CallId, MessageId, message_id
from dshd.capabilities.values.message import Message, ModelSource

from .stream import (
    Aborted,
    BlockEnd,
    BlockStart,
    BlockType,
    Failed,
    Finish,
    FinishReason,
    MaxTokens,
    ReasoningDelta,
    ReplayEnvelope,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    UsageReport,
)

UNNAMED = "unnamed_tool"
"""The name of a call to which the model gave none. Providers refuse a history with an empty name; this one runs into
the error of an unknown tool, from which the model learns what there is."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What a stream came to."""

    content: tuple[ContentBlock, ...]
    """Blocks in the order of their first chunk. After `MaxTokens` without the tool calls, which may be cut."""
    reason: FinishReason
    """Why it stopped; `Stop` for a stream that did not say."""
    usage: TokenUsage | None
    replay: ReplayEnvelope | None
    """With one entry for each block of `content`, or without entries. `None` for a call that failed."""

    def message(self, provider: str, model: str, id: MessageId | None = None) -> Message:
        """The assistant message of this answer, with the replay state in its source as plain JSON.

        The state is `{"response": …, "blocks": […]}` as in `ReplayEnvelope.to_json`, or `None`.
        """
        state = None if self.replay is None else self.replay.to_json()
        return Message(id or message_id(), "assistant", self.content, ModelSource(provider, model, state))


class BlockAssembler:
    """Takes the chunks of one stream, one after the other. Nothing counts after the finish.

    Each call gets an id that no other has: the one it came with, unless an earlier call of this answer or of `taken`
    has it; else one of `prefix` and its place in the answer. So the same chunks, `prefix` and `taken` give the same
    ids; who keeps a log derives both from what precedes the answer there, with another prefix for each answer.
    Arguments stay the raw text they are, an empty one too.
    """

    __slots__ = ("_blocks", "_calls", "_closed", "_finish", "_prefix", "_taken", "_texts", "_usage")

    def __init__(self, prefix: str = "call", taken: Container[str] = ()) -> None:
        self._prefix = prefix
        self._taken = taken
        self._blocks: list[_Block] = []
        self._texts: dict[int, _Block] = {}  # the open block of text or reasoning at an index
        self._calls: dict[int, _Block] = {}  # the open call at an index
        self._closed: set[int] = set()
        self._usage: TokenUsage | None = None
        self._finish: Finish | None = None

    # -- taking chunks

    def feed(self, chunk: StreamChunk) -> None:
        """Take the next chunk."""
        if self._finish is not None:
            return
        match chunk:
            case TextDelta(index, text):
                self._say(index, "text", text)
            case ReasoningDelta(index, text):
                self._say(index, "reasoning", text)
            case ToolCallDelta(index, arguments, call, name):
                self._call(index, arguments, call, name)
            case BlockStart(index, kind, call, name):
                self._closed.discard(index)
                self._begin(index, kind, call, name).started = True
            case BlockEnd(index):
                if self._end(index):
                    self._closed.add(index)
            case UsageReport(usage):
                self._usage = usage
            case Finish():
                self._finish = chunk

    def _say(self, index: int, kind: BlockType, text: str) -> None:
        block = self._texts.get(index)
        if block is None or block.kind != kind:
            if not self._may_begin(index, text):
                return
            block = self._begin(index, kind)
        block.pieces.append(text)

    def _call(self, index: int, arguments: str, call: str | None, name: str | None) -> None:
        block = self._calls.get(index)
        if block is None or block.differs(call, name):
            if not self._may_begin(index, arguments or call or name):
                return
            block = self._begin(index, "tool-call", call, name)
        block.call = block.call or call
        block.name = block.name or name
        block.pieces.append(arguments)

    def _may_begin(self, index: int, said: str | None) -> bool:
        """Whether a delta begins a block where none of its kind is open.

        One that says nothing does not where it would end text: providers send empty pieces of one kind beside those of
        another.
        """
        return index not in self._closed and (bool(said) or index not in self._texts)

    def _begin(self, index: int, kind: BlockType, call: str | None = None, name: str | None = None) -> _Block:
        block = _Block(kind, call, name)
        self._blocks.append(block)
        if kind == "tool-call":
            self._texts.pop(index, None)
            self._calls[index] = block
        else:
            self._texts[index] = block
        return block

    def _end(self, index: int) -> bool:
        """End what is open at an index; answers whether anything was."""
        text, call = self._texts.pop(index, None), self._calls.pop(index, None)
        return text is not None or call is not None

    # -- what they came to

    def result(self) -> Assembled:
        """What the stream came to, once it is over."""
        reason = Stop() if self._finish is None else self._finish.reason
        replay = None if self._finish is None or isinstance(reason, (Aborted, Failed)) else self._finish.replay
        emitted = [block for block in self._blocks if block.started or block.says_something]
        entries = None if replay is None or replay.blocks is None else replay.blocks
        if entries is not None and len(entries) != len(emitted):
            entries = None
        kept = [
            (block, entry)
            for block, entry in zip(emitted, entries or repeat(None), strict=False)
            if (block.says_something and not (block.kind == "tool-call" and isinstance(reason, MaxTokens)))
            # Reasoning that only the provider can read is empty here, and has to go back there.
            or (block.kind == "reasoning" and entry is not None)
        ]
        ids = self._ids([block for block, _ in kept])
        content = tuple(block.content(identity) for (block, _), identity in zip(kept, ids, strict=True))
        if replay is not None:
            pruned = None if entries is None else tuple(entry for _, entry in kept)
            replay = ReplayEnvelope(replay.response, pruned)
        return Assembled(content, reason, self._usage, replay)

    def interrupted(self) -> tuple[ContentBlock, ...]:
        """What had reached the user of a stream that was cut off: text and reasoning that are not blank, no calls."""
        return tuple(
            block.content() for block in self._blocks if block.kind != "tool-call" and "".join(block.pieces).strip()
        )

    def _ids(self, blocks: list[_Block]) -> Iterator[str]:
        """An id for each block, which no other has; those that are no calls need none."""
        given = {block.call for block in blocks}
        used: set[str] = set()
        for place, block in enumerate(blocks):
            identity = block.call or ""
            if block.kind == "tool-call" and (not identity or identity in used or identity in self._taken):
                identity, again = f"{self._prefix}-{place}", count(2)
                while identity in given or identity in self._taken:
                    identity = f"{self._prefix}-{place}-{next(again)}"
            used.add(identity)
            yield identity


class _Block:
    """One block while it grows."""

    __slots__ = ("call", "kind", "name", "pieces", "started")

    def __init__(self, kind: BlockType, call: str | None, name: str | None) -> None:
        self.kind = kind
        self.call = call if kind == "tool-call" else None
        self.name = name if kind == "tool-call" else None
        self.pieces: list[str] = []
        self.started = False
        """Whether the adapter said that it begins, so that it counts as emitted though nothing may follow."""

    @property
    def says_something(self) -> bool:
        return bool(self.call or self.name) or any(self.pieces)

    def differs(self, call: str | None, name: str | None) -> bool:
        """Whether a piece with this id and name is of another call."""
        if call and self.call:
            return call != self.call
        return bool(name and self.name and name != self.name)

    def content(self, identity: str = "") -> ContentBlock:
        text = "".join(self.pieces)
        if self.kind == "text":
            return TextBlock(text)
        if self.kind == "reasoning":
            return ReasoningBlock(text)
        return ToolCallBlock(CallId(identity), self.name or UNNAMED, text)
