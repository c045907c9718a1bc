"""How a log is closed that breaks off in the middle of a turn, because the process that wrote it was killed.

What was written stays as it is. Events are added, so that every call has its result and every turn and step its end:
then the history can be sent to a model again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dshd.capabilities.values.blocks import TextBlock, ToolCallBlock, ToolResultBlock
from dshd.capabilities.values.ids import message_id
from dshd.capabilities.values.message import ToolSource, UserMessage

from .activity import ToolCalled
from .boundary import StepEnd, StepStart, TurnEnd, TurnEndReason, TurnStart
from .event import EventData, SessionEvent
from .surface import SURFACE, AssistantMessage, ToolError, ToolResult

NEVER_RAN = ToolError("Interrupted", "ABORTED_BEFORE_DISPATCH")
CUT_OFF = ToolError("Interrupted", "INTERRUPTED")
"""Whether the call took effect is not known."""

_TEXTS = {
    NEVER_RAN: "Error: tool call aborted before dispatch",
    CUT_OFF: "Error: the process ended while this tool ran; whether it took effect is not known",
}


def closing_events(events: Sequence[SessionEvent], time: int) -> tuple[SessionEvent, ...]:
    """What closes the turn in which `events` end, if they end in one; `time` is that of the new events.

    For each call that has no result one is made, in the order of the calls, then the step and the turn end, the latter
    as `interrupted`.
    """
    return tuple(
        SessionEvent(seq, time, data, "append" if isinstance(data, SURFACE) else None)
        for seq, data in enumerate(_closing(events), len(events))
    )


def _closing(events: Sequence[SessionEvent]) -> Iterator[EventData]:
    turn, step = None, None
    calls: dict[str, tuple[ToolCalled, bool]] = {}
    for event in events:
        match event.data:
            case TurnStart(number):
                turn, step = number, None
                calls.clear()
            case TurnEnd():
                turn = None
            case StepStart(_, number):
                step = number
            case StepEnd():
                step = None
            case AssistantMessage(at, during, message):
                for block in message.content:
                    if isinstance(block, ToolCallBlock):
                        calls[block.id] = ToolCalled(at, during, block.id, block.name, block.arguments), False
            case ToolCalled() as call:
                calls[call.call_id] = call, True
            case ToolResult() as ended:
                calls.pop(ended.result.tool_call_id, None)
    if turn is None:
        return
    for call, ran in calls.values():
        if not ran:
            yield call
        yield _result(call, CUT_OFF if ran else NEVER_RAN)
    if step is not None:
        yield StepEnd(turn, step)
    yield TurnEnd(turn, TurnEndReason("interrupted"))


def _result(call: ToolCalled, error: ToolError) -> ToolResult:
    block = ToolResultBlock(call.call_id, (TextBlock(_TEXTS[error]),), is_error=True)
    return ToolResult(call.turn, call.step, UserMessage(message_id(), "user", (block,), ToolSource(call.name)), error)
