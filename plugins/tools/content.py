"""What a tool returned, as something the model can read."""

from __future__ import annotations

import inspect
import json

from pydantic_core import to_jsonable_python

from dshd import Context
from dshd.capabilities.tools import ToolFailure, ToolOutcome, ToolSuccess
from dshd.capabilities.values import (
    BLOCK_KINDS,
    SOURCE_KINDS,
    ContentBlock,
    Extension,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMessage,
)
from dshd.capabilities.values.blocks import check_block

BLOCKS = (TextBlock, ReasoningBlock, ToolCallBlock, ToolResultBlock, Extension)


class UnreadableResultError(Exception):
    """A tool, or a plugin around it, gave something that is no result; the message is for its author."""


def outcome_of(value: object) -> ToolOutcome:
    """Text and blocks as they are, nothing as no content, and anything else as JSON. Outcomes are taken as they are.

    Raises `UnreadableResultError` for what JSON cannot hold.
    """
    if isinstance(value, (ToolSuccess, ToolFailure)):
        return value
    return ToolSuccess(content=_content(value), value=value)


def _content(value: object) -> tuple[ContentBlock, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (TextBlock(str.__str__(value)),)
    if isinstance(value, BLOCKS):
        return (value,)
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, BLOCKS) for part in value):
        return tuple(value)
    if inspect.iscoroutine(value):
        value.close()
        raise UnreadableResultError("returned a coroutine, which somebody forgot to await")
    try:
        return (TextBlock(json.dumps(to_jsonable_python(value), ensure_ascii=False)),)
    except Exception as exc:  # the value's own code runs here
        raise UnreadableResultError(
            f"returned {type(value).__name__}, which is no text, block, model or JSON; return one of these"
        ) from exc


def checked(outcome: object, view: Context) -> ToolOutcome:
    """`outcome`, if it is one in all its parts, so that it can be logged. Raises `UnreadableResultError`."""
    if not isinstance(outcome, (ToolSuccess, ToolFailure)):
        raise UnreadableResultError(f"gave {type(outcome).__name__} in place of an outcome")
    if isinstance(outcome, ToolFailure):
        fine = all(isinstance(text, str) for text in (outcome.message, outcome.code)) and bool(outcome.code)
    else:
        fine = isinstance(outcome.concludes_turn, bool)
    if not fine:
        raise UnreadableResultError(f"gave a {type(outcome).__name__} with a member of another type than declared")
    blocks, sources = view.registry(BLOCK_KINDS), view.registry(SOURCE_KINDS)
    try:
        for block in outcome.content:
            check_block(block, "the content of a result", blocks)
        for message in outcome.contexts:
            if not isinstance(message, UserMessage):
                raise UnreadableResultError(f"gave {type(message).__name__} as a context, which is a UserMessage")
            message.check("a context of a result", blocks, sources)
    except ValueError as exc:
        raise UnreadableResultError(str(exc)) from None
    return outcome
