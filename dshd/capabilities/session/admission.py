"""What may enter a log: data that reads back from JSON as it is, of kinds that are used as they were registered.

Types are checked too, for plugins may hand in anything. What is large or frequent is looked at member by member; what
is logged once a step is written and read back on trial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from dshd.capabilities.llm.counts import LARGEST_SAFE, check_count
from dshd.capabilities.llm.stream import Finish, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta
from dshd.capabilities.values.blocks import ToolResultBlock
from dshd.capabilities.values.json import FrozenDict, LossyValueError, MalformedValueError, frozen, whole
from dshd.capabilities.values.kinds import (
    BLOCK_KINDS,
    EVENT_KINDS,
    FINISH_KINDS,
    SOURCE_KINDS,
    TURN_END_KINDS,
    Extension,
    Kind,
    Kinds,
)
from dshd.capabilities.values.message import Message, UserMessage
from dshd.kernel.keys import RegistryKey

from .activity import AssistantChunk, InboxSpliced
from .boundary import TurnEnd
from .event import ANY_KIND, CLASSES, CORE, EventData
from .surface import AssistantMessage, ToolError, ToolResult, UserMessageAdded

Registered: TypeAlias = Callable[[RegistryKey[Kind]], Kinds]
"""Gives the registered kinds of a union, as `ctx.registry` does."""


def nothing_registered(_union: RegistryKey[Kind]) -> Kinds:
    """For a log that nobody's registrations reach: every kind is taken as it is."""
    return {}


def admit(data: EventData, registered: Registered = nothing_registered) -> EventData:
    """The data to log: the same, but that a character which a chunk holds in two halves is put together.

    Raises `LossyValueError` or `MalformedValueError`, naming the type of the event, for what may not enter a log.
    """
    if type(data) is AssistantChunk:
        fits = _PIECES.get(type(data.chunk))
        if fits is not None:
            if _is_count(data.turn) and _is_count(data.step) and fits(data.chunk):
                return data
            return _mended(data)
    check = _CHECKS.get(type(data))
    if check is not None:
        check(data, registered)
    elif type(data) in CLASSES:
        _try(data)
    else:
        raise MalformedValueError(f"{type(data).__name__} is no data of a session event")
    return data


def _try(data: Any) -> None:
    """Write it and read it back."""
    try:
        same = CORE[data.type](frozen(data.to_json(), data.type), ANY_KIND) == data
    except LossyValueError:
        raise
    except (ValueError, TypeError, AttributeError) as exc:
        raise MalformedValueError(f"{data.type}: {exc}") from exc
    if not same:
        raise MalformedValueError(f"{data.type}: it would not read back as it is")


def _refused(data: Any) -> MalformedValueError:
    return MalformedValueError(f"{data.type}: a member is of another type than declared")


# -- pieces of a stream, of which there are hundreds a step


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_SAFE


def _is_text(value: object) -> bool:
    return type(value) is str and (value.isascii() or whole(value) is value)


def _is_delta(chunk: Any) -> bool:
    return _is_count(chunk.index) and _is_text(chunk.text)


def _is_call_delta(chunk: Any) -> bool:
    named = (chunk.call_id is None or _is_text(chunk.call_id)) and (chunk.name is None or _is_text(chunk.name))
    return named and _is_count(chunk.index) and _is_text(chunk.arguments)


_PIECES: dict[type, Callable[[Any], bool]] = {
    TextDelta: _is_delta, ReasoningDelta: _is_delta, ToolCallDelta: _is_call_delta,
}  # fmt: skip
"""Whether the members of a piece are of their types, and read back as they are."""


def _mended(data: AssistantChunk) -> AssistantChunk:
    """The same with its text made whole, if that was all there was to it."""
    chunk: Any = data.chunk
    texts = {
        name: whole(text)
        for name in ("text", "arguments", "call_id", "name")
        if isinstance(text := getattr(chunk, name, None), str)
    }
    mended = replace(data, chunk=replace(chunk, **texts))
    if not (_is_count(data.turn) and _is_count(data.step) and _PIECES[type(chunk)](mended.chunk)):
        raise _refused(data)
    return mended


def _check_chunk(data: AssistantChunk, registered: Registered) -> None:
    _try(data)
    if isinstance(data.chunk, Finish) and isinstance(data.chunk.reason, Extension):
        _check_kind(data.chunk.reason, registered(FINISH_KINDS), data.type)


# -- messages


def _check_message(data: Any, message: Message, kind: type[Message], registered: Registered) -> None:
    Message.check(message, data.type, registered(BLOCK_KINDS), registered(SOURCE_KINDS))
    if not isinstance(message, kind):
        raise MalformedValueError(f"{data.type}: a message is no {kind.__name__}")


def _check_place(data: Any) -> None:
    check_count(f"{data.type}: the turn", data.turn)
    check_count(f"{data.type}: the step", data.step)


def _check_user_message(data: UserMessageAdded, registered: Registered) -> None:
    _check_message(data, data.message, UserMessage, registered)


def _check_answer(data: AssistantMessage, registered: Registered) -> None:
    _check_place(data)
    _check_message(data, data.message, Message, registered)
    if data.message.role != "assistant":
        raise MalformedValueError(f"{data.type}: the message has the role {data.message.role!r}")
    if type(data.usage) not in (TokenUsage, type(None)) or type(data.interrupted) is not bool:
        raise _refused(data)


def _check_result(data: ToolResult, registered: Registered) -> None:
    _check_place(data)
    _check_message(data, data.message, Message, registered)
    if [type(block) for block in data.message.content] != [ToolResultBlock]:
        raise MalformedValueError(f"{data.type}: the message does not consist of one tool-result block")
    if data.message.role != "user":
        raise MalformedValueError(f"{data.type}: the message is of the role {data.message.role!r} and not 'user'")
    error, meta = data.error, data.meta
    if error is not None and not (type(error) is ToolError and type(error.name) is str is type(error.code)):
        raise _refused(data)
    if type(meta) not in (FrozenDict, type(None)):
        raise _refused(data)


def _check_inbox(data: InboxSpliced, registered: Registered) -> None:
    for message in data.inserted:
        _check_message(data, message, UserMessage, registered)
    _try(data)


# -- kinds that plugins add


def _check_kind(extension: Extension, kinds: Kinds, what: str) -> None:
    kind = kinds.get(extension.kind)
    if kind is not None:
        kind.check(extension, what)


def _check_turn_end(data: TurnEnd, registered: Registered) -> None:
    _try(data)
    _check_kind(Extension(data.reason.kind, data.reason.data), registered(TURN_END_KINDS), data.type)


def _check_extension(data: Extension, registered: Registered) -> None:
    if data.kind in CORE:
        raise MalformedValueError(f"{data.kind!r} is a type of the core, with a class of its own")
    _check_kind(data, registered(EVENT_KINDS), data.kind)


_CHECKS: dict[type, Callable[[Any, Registered], None]] = {
    UserMessageAdded: _check_user_message,
    AssistantMessage: _check_answer,
    ToolResult: _check_result,
    AssistantChunk: _check_chunk,
    InboxSpliced: _check_inbox,
    TurnEnd: _check_turn_end,
    Extension: _check_extension,
}
