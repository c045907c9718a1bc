"""What one request asks: who spoke last, which tool results came in, how long it all is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dshd.capabilities.llm import GenerateOptions, TokenUsage
from dshd.capabilities.values import (
    Catalog,
    ContentBlock,
    Extension,
    Instructions,
    Message,
    ModelSource,
    PluginSource,
    ReasoningBlock,
    Recall,
    Snapshot,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    text_of,
)

CHARACTERS_A_TOKEN = 4
"""The whole estimate."""

_CONTEXT = (Instructions, Catalog, Snapshot, Recall)
"""Forms of what stands in the history for the model to know, without anybody having spoken."""


def tokens(characters: int) -> int:
    """The estimate for so many characters, rounded up."""
    return -(-characters // CHARACTERS_A_TOKEN)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What came of one tool call."""

    tool: str
    text: str
    error: bool


class Question:
    """One request, read once. `highest` says whether its effort is the highest its model has."""

    def __init__(self, request: GenerateOptions, highest: bool = False) -> None:
        self.request = request
        self.highest = highest
        self.conversation = (str(request.session_id or ""), str(request.purpose or ""))
        """Whose counts it goes by: its session's, auxiliary calls by themselves."""

        self.user = ""
        """What was said last."""
        self.spoken = False
        """Whether somebody has spoken since the model did."""
        results: list[Message] = []
        open_turn, found = True, False
        for message in reversed(request.messages):
            if message.role == "assistant":
                open_turn = False
            elif any(isinstance(block, ToolResultBlock) for block in message.content):
                if open_turn:
                    results.append(message)
            elif not found and _speaks(message):
                self.user, self.spoken, found = text_of(message.content), open_turn, True
            if found and not open_turn:
                break
        self.results = tuple(answer for message in reversed(results) for answer in self._answers(message))
        """The tool results that came in since the model last spoke."""

    def _answers(self, message: Message) -> Iterator[ToolAnswer]:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                source = message.source
                tool = source.tool if isinstance(source, ToolSource) else self._called(block.tool_call_id)
                yield ToolAnswer(tool, text_of(block.content), bool(block.is_error))

    def _called(self, call: str) -> str:
        for message in reversed(self.request.messages):
            for block in message.content:
                if isinstance(block, ToolCallBlock) and block.id == call:
                    return block.name
        return ""

    @cached_property
    def turn(self) -> int:
        """How many times somebody has spoken; words that follow each other are one time."""
        count, open_turn = 0, False
        for message in self.request.messages:
            if message.role == "assistant":
                open_turn = False
            elif not open_turn and _speaks(message):
                count, open_turn = count + 1, True
        return count

    @property
    def replay(self) -> str:
        """The replay state of the last answer as JSON, empty where the adapter is not shown any."""
        for message in reversed(self.request.messages):
            if isinstance(message.source, ModelSource):
                state = message.source.replay_state
                return json.dumps(state.get("response")) if isinstance(state, Mapping) else ""
        return ""

    # -- how long it is

    @cached_property
    def _frame(self) -> int:
        """Characters of the system prompt and of the tools."""
        tools = (len(tool.name) + len(tool.description) + len(repr(tool.parameters)) for tool in self.request.tools)
        return len(self.request.system or "") + sum(tools)

    @cached_property
    def _lengths(self) -> list[int]:
        """Characters of each message."""
        return [sum(map(_length, message.content)) for message in self.request.messages]

    @cached_property
    def tokens(self) -> int:
        """The estimate for the whole request."""
        return tokens(self._frame + sum(self._lengths))

    def read(self, counts: dict[str, int]) -> TokenUsage:
        """The input of this request. `counts` are its conversation's, which remember it for the next one.

        What the request before it had sent counts as read from a cache, if nothing in that has changed.
        """
        messages = self.request.messages
        length, mark = counts.get("read", 0), counts.get("mark")
        cached = 0
        if 0 < length <= len(messages) and self._mark(length) == mark:
            cached = (self._frame + sum(self._lengths[:length])) // CHARACTERS_A_TOKEN
        counts["read"], counts["mark"] = len(messages), self._mark(len(messages))
        return TokenUsage(input_tokens=self.tokens - cached, cache_read_tokens=cached)

    def _mark(self, length: int) -> int:
        ids = tuple(message.id for message in self.request.messages[:length])
        tools = tuple(tool.name for tool in self.request.tools)
        return hash((self.request.model, self.request.system, tools, self._frame, ids))


def _speaks(message: Message) -> bool:
    """Whether a message in the role of the user is somebody's words, and no tool result and no context."""
    if message.role != "user" or isinstance(message.source, (ToolSource, ModelSource)):
        return False
    return not (isinstance(message.source, PluginSource) and isinstance(message.source.form, _CONTEXT))


def _length(block: ContentBlock) -> int:
    if type(block) is TextBlock:  # most are, and histories are long
        return len(block.text)
    match block:
        case TextBlock(text) | ReasoningBlock(text):
            return len(text)
        case ToolCallBlock(_, name, arguments):
            return len(name) + len(arguments)
        case ToolResultBlock(_, content):
            return sum(_length(part) for part in content)
        case Extension():
            return len(repr(block.data))
