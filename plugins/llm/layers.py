"""`intercept: {llm: {…}}`: call fields laid over the proposals of consumers in a subtree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from dshd import Config
from dshd.capabilities.llm import FailureCode, LlmCallConfig, LlmError

Name = Annotated[str, Field(min_length=1)]


class Layer(Config):
    """What a layer over `llm` may say."""

    route: Name | None = None
    """The route to take."""
    model: Name | None = None
    """The model to ask."""
    effort: Name | None = None
    """The reasoning effort."""
    temperature: float | None = Field(default=None, allow_inf_nan=False)
    """The sampling temperature."""
    max_tokens: int | None = Field(default=None, gt=0)
    """The largest answer; of several, and of what is asked for, the smallest holds."""
    stop: tuple[Name, ...] | None = None
    """Strings at which generation stops."""


FIELDS = {"route": "provider", "effort": "reasoning_effort"}
"""Where values and headers use another word than YAML."""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """A proposal under its layers. `intercepted` has what was proposed for each field they changed."""

    config: LlmCallConfig
    intercepted: Mapping[str, Any]


def problem(layer: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with a layer: the field, and why. `None` if nothing is."""
    try:
        Layer.model_validate(dict(layer))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            return name, f"no such field; there are {', '.join(Layer.model_fields)}"
        return name, str(first["msg"])[:1].lower() + str(first["msg"])[1:]
    return None


def overlay(proposal: LlmCallConfig, layers: Sequence[Mapping[str, Any]]) -> Overlaid:
    """Lay `layers` over a proposal, the innermost last. Raises `LlmError` for a layer that is none."""
    changes: dict[str, Any] = {}
    for layer in layers:
        wrong = problem(layer)
        if wrong is not None:
            message = f"intercept.llm.{wrong[0]}: {wrong[1]}"
            raise LlmError(message, FailureCode.INVALID_CALL_CONFIG)
        parsed = Layer.model_validate(dict(layer))
        for name in parsed.model_fields_set:
            value = getattr(parsed, name)
            field = FIELDS.get(name, name)
            if value is None:
                continue
            if name == "max_tokens":
                known = changes.get(field, proposal.max_tokens)
                value = value if known is None else min(value, known)
            changes[field] = value
    proposed = {name: getattr(proposal, name) for name, value in changes.items() if getattr(proposal, name) != value}
    return Overlaid(replace(proposal, **changes), proposed)
