"""Exact models: what the adapter that serves a route says of one of its models, and what that makes of a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dshd import Signal
from dshd.capabilities.llm import (
    FailureCode,
    LlmAdapter,
    LlmCallConfig,
    LlmError,
    ModelContext,
    ModelReasoning,
    ReasoningEffort,
    ResolvedModel,
)

from .faults import answer
from .layers import Overlaid


async def resolve(adapter: LlmAdapter, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
    """What the adapter knows of the model. Raises `LlmError`, also for an answer that contradicts itself."""
    what = f"resolving model {model!r} of route {provider!r}"
    found = await answer(what, lambda: adapter.resolve_model(provider, model, signal), signal)
    if found is None:
        return None
    wrong = _wrong(found, provider, model)
    if wrong is not None:
        raise LlmError(f"{what}: the adapter {type(adapter).__name__} says {wrong}", FailureCode.PROVIDER)
    return found


def _wrong(found: object, provider: str, model: str) -> str | None:
    """Why an answer cannot be right. (What is out of range was refused when it was made.)"""
    if not isinstance(found, ResolvedModel):
        return f"{type(found).__name__}, which is no ResolvedModel"
    if (found.provider, found.id) != (provider, model):
        return f"it is model {found.id!r} of {found.provider!r}"
    parts: dict[str, tuple[object, type]] = {
        "context": (found.context, ModelContext),
        "reasoning": (found.reasoning, ModelReasoning),
    }
    for name, (part, kind) in parts.items():
        if part is not None and not isinstance(part, kind):
            return f"its {name} is {part!r}"
    efforts: Sequence[object] = () if found.reasoning is None else found.reasoning.efforts
    ids: list[object] = [each.id if isinstance(each, ReasoningEffort) else None for each in efforts]
    if not all(isinstance(id, str) and id for id in ids):
        return f"its efforts are {_listed(efforts)}"
    return None


def complete(overlaid: Overlaid, model: ResolvedModel) -> tuple[LlmCallConfig, frozenset[str], Overlaid]:
    """The config in effect, which of its fields the adapter filled in, and the layers as far as they still count.

    Raises `LlmError` with `UNSUPPORTED_EFFORT` for an effort the model does not have: nothing is clamped.
    """
    config, changes = overlaid.config, dict[str, Any]()
    intercepted = dict(overlaid.intercepted)
    reasoning = model.reasoning or ModelReasoning(())
    efforts = [effort.id for effort in reasoning.efforts]
    if config.reasoning_effort is None:
        if reasoning.default_effort is not None:
            changes["reasoning_effort"] = reasoning.default_effort
    elif config.reasoning_effort not in efforts:
        there = f"it has {_listed(efforts)}" if efforts else "it has none to choose from"
        which = f"model {model.id!r} of route {model.provider!r}"
        message = f"{which} has no reasoning effort {config.reasoning_effort!r}; {there}"
        raise LlmError(message, FailureCode.UNSUPPORTED_EFFORT)
    # A layer is a cap: where nothing was asked for it does not widen what the adapter would have given.
    asked = "max_tokens" not in intercepted or intercepted["max_tokens"] is not None
    default = model.default_max_tokens
    if default is not None and (config.max_tokens is None or (not asked and default <= config.max_tokens)):
        changes["max_tokens"] = default
        intercepted.pop("max_tokens", None)
    return replace(config, **changes), frozenset(changes), Overlaid(overlaid.config, intercepted)


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names))
