"""What went wrong, as a failure: the model reads what helps it, the log has what helps the author."""

from __future__ import annotations

import anyio

from dshd import Aborted, Context, errors
from dshd.capabilities.tools import (
    TOOL_DEFINITIONS,
    InvalidArgumentsError,
    ToolCode,
    ToolError,
    ToolFailure,
)

LONGEST = 500


class TimedOut:
    """The cause of an abort by a tool's own timeout."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __str__(self) -> str:
        return f"it took longer than {self.seconds:g} s"


def failure(code: str, message: str, error: BaseException | None = None) -> ToolFailure:
    return ToolFailure(message=message, code=code, error=error)


def stopped(tool: str, cause: object, error: BaseException | None = None) -> ToolFailure:
    """A call that was told to stop while it ran."""
    code = ToolCode.TIMEOUT if isinstance(cause, TimedOut) else ToolCode.ABORTED
    return failure(code, f"tool {tool} was stopped: {_words(cause)}", error)


def before_dispatch() -> ToolFailure:
    return failure(ToolCode.ABORTED_BEFORE_DISPATCH, "tool call aborted before dispatch")


def raised(tool: str, error: BaseException) -> ToolFailure | None:
    """The failure for what a body raised on purpose, also out of a task group; `None` if it is a fault."""
    leaves = errors.leaves(error)
    expected = [leaf for leaf in leaves if isinstance(leaf, (ToolError, InvalidArgumentsError, Aborted))]
    if len(expected) < len(leaves):
        return None
    first = expected[0]
    if isinstance(first, ToolError):
        return failure(str(first.code), str(first.message), error)
    if isinstance(first, InvalidArgumentsError):
        return failure(ToolCode.INVALID_ARGUMENTS, str(first), error)
    return stopped(tool, first.cause, error)


def broken(tool: str, error: BaseException) -> ToolFailure:
    """The failure for a body that is at fault: the model reads what the error says, not what it is."""
    leaves = errors.leaves(error)
    said = "" if isinstance(leaves[0], (*errors.EXITS, anyio.get_cancelled_exc_class())) else _words(leaves[0])
    return failure(ToolCode.INTERNAL, f"tool {tool} failed{f': {said}' if said else ''}", error)


def report(view: Context, tool: str, what: str, error: BaseException | None = None, **more: object) -> None:
    """Log a fault around a call of `tool`, with the row the tool is of."""
    more["of"] = view.registry(TOOL_DEFINITIONS).owner(tool)
    view.log.error(what, tool=tool, exc_info=error, **more)


def _words(said: object) -> str:
    try:
        text = " ".join(str(said).split())
    except Exception:  # it is somebody else's object, and so are its words
        return ""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
