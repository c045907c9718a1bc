"""One call, from its name to its outcome: the order in which everybody is asked, and what becomes of their faults.

Whatever is there to say no fails closed: a listener or a guard that raises denies, and where one raises that looks at
results, the result is withheld.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from dshd import Aborted, Context, errors, is_fault, leashed
from dshd.capabilities.tools import (
    GUARD,
    POST_EXECUTE,
    PRE_EXECUTE,
    TOOL_EXECUTE,
    TOOL_RESULT,
    AfterExecution,
    Allow,
    Ask,
    Denial,
    Deny,
    InvalidArgumentsError,
    PostDecision,
    PreDecision,
    ToolCall,
    ToolCode,
    ToolDefinition,
    ToolFailure,
    ToolOutcome,
    ToolSuccess,
)

from . import body
from .arguments import parsed
from .content import UnreadableResultError, checked, outcome_of
from .faults import before_dispatch, failure, report, stopped
from .raw import schema_check
from .visible import find, unknown

_ALLOWED = Allow()
_ACCEPTED = PostDecision()


async def execute(consumer: Context, call: ToolCall, grace: float) -> ToolOutcome:
    """The outcome of `call`, told to `tools/result` before it is returned.

    Raises nothing but the caller's own cancellation. That cannot wait for listeners, but is told of as well.
    """
    call = replace(call, name=str(call.name), scope=consumer.scope or call.scope)
    try:
        with consumer.leased(f"tool {call.name:.64}") as view:
            return await _leased(view, call, grace)
    except errors.LeaseEndedError as exc:  # the consumer's own view is over: nobody was asked and nothing ran
        outcome = failure(ToolCode.INTERNAL, f"tool {call.name} was called too late", exc)
        consumer.emit(TOOL_RESULT, AfterExecution(call, outcome))
        return outcome


async def _leased(view: Context, call: ToolCall, grace: float) -> ToolOutcome:
    if call.scope is not None and call.scope is not view.scope:
        view = view.scoped(call.scope)
    run = _Run(view, replace(call, context=view), grace)
    try:
        outcome = await run.outcome()
    except BaseException as exc:
        if not is_fault(exc):
            view.emit(TOOL_RESULT, AfterExecution(run.call, run.cut_short()))
            raise
        report(view, call.name, "the tool pipeline failed", exc)
        outcome = failure(ToolCode.INTERNAL, f"tool {call.name} failed", exc)
    view.emit(TOOL_RESULT, AfterExecution(run.call, outcome))
    return outcome


class _Run:
    """A call on its way, with all that is known of it so far."""

    __slots__ = ("_dispatched", "_grace", "_view", "call")

    def __init__(self, view: Context, call: ToolCall, grace: float) -> None:
        self._view = view
        self._grace = grace
        self._dispatched = False
        self.call = call

    def cut_short(self) -> ToolFailure:
        """The outcome of a call whose caller was cancelled."""
        return stopped(self.call.name, "cancelled") if self._dispatched else before_dispatch()

    async def outcome(self) -> ToolOutcome:
        if self.call.signal.aborted:
            return before_dispatch()
        definition = find(self._view, self.call.name)
        if definition is None:
            return unknown(self._view, self.call.name)
        refusal = self._misfit(definition) or await self._refusal() or self._withdrawn(definition)
        if refusal is not None:
            return refusal
        return await self._finished(definition, await self._executed(definition))

    def _misfit(self, definition: ToolDefinition) -> ToolFailure | None:
        """Parse the arguments; what is wrong with them."""
        try:
            arguments = parsed(self.call.raw_arguments, definition.parameters)
            self.call = replace(self.call, arguments=arguments)
            answer: object = (definition.check or schema_check(definition))(arguments)
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise TypeError(f"the check of tool {definition.name!r} is async, so nobody heard what it says")
        except InvalidArgumentsError as exc:
            return failure(ToolCode.INVALID_ARGUMENTS, str(exc), exc)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            report(self._view, definition.name, "the check of a tool's arguments failed", exc)
            return failure(ToolCode.INTERNAL, "the arguments could not be checked", exc)
        return None

    # -- before

    async def _refusal(self) -> ToolFailure | None:
        """Why the call may not go on."""
        view, signal = self._view, self.call.signal
        try:
            decision: Any = await leashed(signal, lambda: view.waterfall(PRE_EXECUTE, self.call, _allow))
            allowed = isinstance(decision, Allow)
            denial: Any = view.bail(GUARD, self.call) if allowed else decision
            signal.check()
            return None if allowed and denial is None else _denied(denial)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if signal.aborted and isinstance(exc, Aborted):
                return before_dispatch()
            report(view, self.call.name, "a plugin that decides about calls failed, so the call is denied", exc)
            return failure(ToolCode.DENIED, "the call was denied, for it could not be checked", exc)

    def _withdrawn(self, definition: ToolDefinition) -> ToolFailure | None:
        """Why a tool that was found may not run any more: others were awaited meanwhile, and its owner or a restriction
        has taken it away."""
        now = find(self._view, definition.name)
        if now is definition:
            return None
        if now is None:
            return unknown(self._view, definition.name)
        message = f"tool {definition.name} was replaced before it ran; call it again"
        return failure(ToolCode.ABORTED_BEFORE_DISPATCH, message)

    # -- around

    async def _executed(self, definition: ToolDefinition) -> ToolOutcome:
        """What comes of the body and of those around it."""
        view, signal, grace = self._view, self.call.signal, self._grace

        async def inner(call: ToolCall) -> ToolOutcome:
            return self._withdrawn(definition) or await body.run(view, definition, call, grace)

        self._dispatched = True
        try:
            return checked(
                await leashed(
                    signal,
                    lambda: view.waterfall(TOOL_EXECUTE, self.call, inner),
                    grace if definition.cooperative else 0,
                ),
                view,
            )
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if signal.aborted and isinstance(exc, Aborted):
                return stopped(definition.name, exc.cause, exc)
            if isinstance(exc, UnreadableResultError):
                report(view, definition.name, f"tool {definition.name!r}, or a plugin around it, {exc}")
                return failure(ToolCode.INTERNAL, f"tool {definition.name} ran, but its result cannot be shown", exc)
            report(view, definition.name, "a plugin around a tool failed", exc)
            return failure(ToolCode.INTERNAL, f"tool {definition.name} failed", exc)

    # -- after

    async def _finished(self, definition: ToolDefinition, outcome: ToolOutcome) -> ToolOutcome:
        """What the listeners and the definition make of an outcome."""
        after, signal = AfterExecution(self.call, outcome), self.call.signal
        try:
            decision: Any = await leashed(
                signal, lambda: self._view.waterfall(POST_EXECUTE, after, _accept), self._grace
            )
            outcome = _decided(decision, outcome)
            if definition.finalize_content is not None:
                content: Any = definition.finalize_content(self.call, outcome)
                outcome = replace(outcome, content=_sequence(content))
            return checked(outcome, self._view)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if signal.aborted and isinstance(exc, Aborted):
                return stopped(definition.name, exc.cause, exc)
            report(self._view, definition.name, "a plugin that looks at results failed, so the result is withheld", exc)
            message = f"tool {definition.name} ran, but its result was withheld, for it could not be checked"
            return failure(ToolCode.INTERNAL, message, exc)


async def _allow(call: ToolCall) -> PreDecision:
    return _ALLOWED


async def _accept(after: AfterExecution) -> PostDecision:
    return _ACCEPTED


def _denied(decision: object) -> ToolFailure:
    """The failure of a call that was not let through. Raises `TypeError` for what is no decision."""
    match decision:
        case Deny(reason) | Denial(reason):
            return failure(ToolCode.DENIED, f"the call was denied{f': {reason}' if reason else ''}")
        case Ask(reason):
            why = f" ({reason})" if reason else ""
            return failure(ToolCode.APPROVAL_REQUIRED, f"the call needs approval{why}, and nobody can answer")
        case _:
            raise TypeError(f"{type(decision).__name__} is no decision about a call; answer Allow, Deny, Ask or Denial")


def _decided(decision: object, outcome: ToolOutcome) -> ToolOutcome:
    if not isinstance(decision, PostDecision):
        raise TypeError(f"{type(decision).__name__} is no decision about a result; answer a PostDecision")
    contexts = (*outcome.contexts, *decision.contexts)
    if decision.block is not None:
        return ToolFailure(message=decision.block, code=ToolCode.BLOCKED, contexts=contexts)
    if decision.replaces_value:
        made = outcome_of(decision.value)
        if isinstance(made, ToolSuccess) and made is not decision.value:
            concludes = isinstance(outcome, ToolSuccess) and outcome.concludes_turn
            made = replace(made, meta=outcome.meta, concludes_turn=concludes)
        return replace(made, contexts=(*contexts, *made.contexts))
    if decision.content is not None:
        outcome = replace(outcome, content=_sequence(decision.content))
    return replace(outcome, contexts=contexts) if decision.contexts else outcome


def _sequence(content: object) -> tuple[Any, ...]:
    if inspect.iscoroutine(content):
        content.close()
    if not isinstance(content, (list, tuple)):
        raise UnreadableResultError(f"gave {type(content).__name__} as content, which is a tuple of blocks")
    return tuple(content)
