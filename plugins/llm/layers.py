"""`intercept: {llm: {…}}`: call fields laid over the proposals of consumers in a subtree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from dshd import Config
from dshd.capabilities.llm import FailureCode, LlmCallConfig, LlmError
from dshd.capabilities.llm.request import LARGEST_SAFE


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


Name = Annotated[str, Field(min_length=1)]
Number = Annotated[float, BeforeValidator(_no_truth), Field(allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_no_truth), Field(gt=0, le=LARGEST_SAFE)]


class Layer(Config):
    """What a layer over `llm` may say. What is null says nothing."""

    route: Name | None = None
    """the name of a route"""
    model: Name | None = None
    """the name of a model"""
    effort: Name | None = None
    """the name of a reasoning effort"""
    temperature: Number | None = None
    """a number"""
    max_tokens: Count | None = None
    """a whole number above 0"""
    stop: tuple[Name, ...] | None = None
    """a list of texts"""


FIELDS = {"route": "provider", "effort": "reasoning_effort"}
"""Where values and headers use another word than YAML."""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """A proposal under its layers. `intercepted` has what was proposed for each field they changed."""

    config: LlmCallConfig
    intercepted: Mapping[str, Any]


def problems(layer: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with a layer: a sentence for each of its keys that is not right."""
    try:
        Layer.model_validate(dict(layer))
    except ValidationError as exc:
        wrong = [str(error["loc"][0]) for error in exc.errors(include_url=False, include_input=False)]
        return {key: _wrong(key) for key in wrong}
    return {}


def _wrong(key: str) -> str:
    known = list(Layer.model_fields)
    if key in known:
        return f"expected {Layer.model_fields[key].description}"
    near = get_close_matches(key, known, n=1)
    return f"a model call has no such setting; {f'did you mean {near[0]!r}?' if near else f'it has {_listed(known)}'}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def overlay(proposal: LlmCallConfig, layers: Sequence[Mapping[str, Any]], row: str) -> Overlaid:
    """Lay `layers` over a proposal of `row`, the innermost last; of caps the smallest holds.

    Raises `LlmError` with `INVALID_CALL_CONFIG` for a layer that is none.
    """
    changes: dict[str, Any] = {}
    for layer in layers:
        wrong = problems(layer)
        if wrong:
            said = "; ".join(f"intercept.llm.{key}: {why}" for key, why in wrong.items())
            raise LlmError(f"what is laid over model calls of row {row!r} is wrong: {said}", _CODE)
        parsed = Layer.model_validate(dict(layer))
        for name in Layer.model_fields:
            value = getattr(parsed, name)
            if value is None:
                continue
            field = FIELDS.get(name, name)
            if name == "max_tokens":
                known = changes.get(field, proposal.max_tokens)
                value = value if known is None else min(value, known)
            changes[field] = value
    config = replace(proposal, **changes)
    proposed = {name: getattr(proposal, name) for name in changes}
    return Overlaid(config, {name: value for name, value in proposed.items() if value != getattr(config, name)})


_CODE = FailureCode.INVALID_CALL_CONFIG
