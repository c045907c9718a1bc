"""A tool's own code, run under its timeout. Whatever it does becomes an outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio

from dshd import Aborted, Aborter, Context, is_fault, leashed
from dshd.capabilities.tools import ToolCall, ToolCode, ToolDefinition, ToolOutcome

from .content import UnreadableResultError, outcome_of
from .faults import TimedOut, broken, failure, raised, report


async def run(view: Context, definition: ToolDefinition, call: ToolCall, grace: float) -> ToolOutcome:
    """What comes of the body of `definition`. Raises nothing but the cancellation of whoever awaits it."""
    name = definition.name
    try:
        return outcome_of(await _timed(definition, call, grace))
    except BaseException as exc:  # a tool may even call sys.exit
        if not is_fault(exc):
            raise
        expected = raised(name, exc)
        if expected is not None:
            return expected
        if isinstance(exc, UnreadableResultError):
            report(view, name, f"tool {name!r} {exc}", exc.__cause__)
            return failure(ToolCode.INTERNAL, f"tool {name} ran, but its result cannot be shown", exc)
        report(view, name, "tool failed", exc)
        return broken(name, exc)


async def _timed(definition: ToolDefinition, call: ToolCall, grace: float) -> Any:
    """What the body returns within its timeout. A cooperative one is told, and has a grace to return something."""
    if definition.timeout is None:
        return await definition.execute(call)
    cause = TimedOut(definition.timeout)
    if definition.cooperative:
        return await _told(definition, call, grace, cause)
    with anyio.move_on_after(definition.timeout):
        return await definition.execute(call)
    raise Aborted(cause)


async def _told(definition: ToolDefinition, call: ToolCall, grace: float, cause: TimedOut) -> Any:
    aborter = Aborter(call.signal)
    told = replace(call, signal=aborter.signal)
    returned: Any = None
    error: BaseException | None = None

    async def expire() -> None:
        await anyio.sleep(cause.seconds)
        aborter.abort(cause)

    try:
        async with anyio.create_task_group() as timing:
            timing.start_soon(expire, name=f"timeout of tool {definition.name}")
            try:
                returned = await leashed(aborter.signal, lambda: definition.execute(told), grace)
            except BaseException as exc:  # raised outside the task group, where nothing wraps it
                if not is_fault(exc):
                    raise
                error = exc
            timing.cancel_scope.cancel()
    finally:
        aborter.detach()
    if error is not None:
        raise error
    return returned
