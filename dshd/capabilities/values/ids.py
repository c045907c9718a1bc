"""Identifiers that cross packages: distinct types for the checker, plain strings for JSON, logs and comparison.

Each type has one factory, in the package that mints its ids. Without an argument those that are minted mint one; with
text they check it.
"""

from __future__ import annotations

from typing import NewType
from uuid import uuid4

from .json import whole

MessageId = NewType("MessageId", str)
"""One message, the same in inbox, log, derived history and model request."""

CallId = NewType("CallId", str)
"""Ties a tool call to its result."""

SessionId = NewType("SessionId", str)
"""The one identity of a live agent and its durable session."""

ReasoningEffortId = NewType("ReasoningEffortId", str)
"""An adapter's name for one of a model's reasoning efforts."""


def message_id(text: str | None = None) -> MessageId:
    """A message's id, minted if none is given. Raises `ValueError` for an empty one."""
    return MessageId(uuid4().hex if text is None else checked_id("message", text))


def call_id(text: str | None = None) -> CallId:
    """A tool call's id, minted if none is given. Raises `ValueError` for an empty one."""
    return CallId(f"call-{uuid4().hex}" if text is None else checked_id("call", text))


def session_id(text: str | None = None, label: str | None = None) -> SessionId:
    """A session's id; if none is given one is minted, with `label` in front. Raises `ValueError` for an empty one."""
    if text is not None:
        return SessionId(checked_id("session", text))
    prefix = "" if label is None else f"{checked_id('session', label)}-"
    return SessionId(f"{prefix}session-{uuid4()}")


def reasoning_effort_id(text: str) -> ReasoningEffortId:
    """An adapter-owned effort id. Raises `ValueError` for an empty one."""
    return ReasoningEffortId(checked_id("reasoning effort", text))


def checked_id(kind: str, text: object) -> str:
    """The text of an id, for a factory. Raises `ValueError` for what is no text or empty; `kind` says which id."""
    if not isinstance(text, str):
        raise ValueError(f"a {kind} id is text, so it is no {type(text).__name__}")
    if not text:
        raise ValueError(f"a {kind} id is not empty")
    return whole(text)
