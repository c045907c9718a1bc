"""Routes and models: what is on offer, as far as configuration says, and what is known of one exact model."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import model_validator

from dshd import Config, Duration
from dshd.capabilities.llm import (
    DiscoveredModel,
    ModelContext,
    ModelInfo,
    ModelReasoning,
    ReasoningEffort,
    ResolvedModel,
    RetryPolicy,
)
from dshd.capabilities.values import reasoning_effort_id

from .mistakes import Mistakes
from .reply import Count, Name, Positive, Share


class Model(Config):
    """What one model can do. `*` in its id makes it the description of all models that fit and are not listed."""

    name: str | None = None
    """How it is shown; by default its id."""
    description: str | None = None
    """A sentence for whoever chooses a model."""
    context_window: Positive | None = 128_000
    """The most tokens of request and answer together; a request that has no room fails as a provider's would."""
    max_tokens: Positive | None = None
    """The output cap where the caller gives none."""
    efforts: tuple[Name, ...] = ("low", "medium", "high")
    """Reasoning efforts, the highest last."""
    default_effort: str | None = None
    """The effort where the caller gives none."""

    @model_validator(mode="after")
    def _efforts_fit(self) -> Model:
        mistakes = Mistakes()
        if len(set(self.efforts)) < len(self.efforts):
            mistakes.add(("efforts",), "names an effort twice")
        if self.default_effort is not None and self.default_effort not in self.efforts:
            known = ", ".join(self.efforts) or "none"
            mistakes.add(("default_effort",), f"{self.default_effort!r} is none of the efforts, which are: {known}")
        mistakes.report(self)
        return self

    def info(self, route: str, id: str) -> ModelInfo:
        """Its entry in the catalog."""
        return ModelInfo(provider=route, id=id, name=self.name or id, description=self.description)

    def discovered(self, id: str) -> DiscoveredModel:
        """Its entry in the answer to a draft."""
        return DiscoveredModel(
            id=id, name=self.name or id, context_window=self.context_window, max_tokens=self.max_tokens
        )

    def resolved(self, route: str, id: str) -> ResolvedModel:
        """All that is known of it."""
        efforts = tuple(ReasoningEffort(reasoning_effort_id(effort), effort) for effort in self.efforts)
        default = None if self.default_effort is None else reasoning_effort_id(self.default_effort)
        return ResolvedModel(
            provider=route,
            id=id,
            name=self.name or id,
            description=self.description,
            context=None if self.context_window is None else ModelContext(self.context_window),
            default_max_tokens=self.max_tokens,
            reasoning=ModelReasoning(efforts, default) if efforts else None,
        )


def listed(models: Mapping[str, Model]) -> dict[str, Model]:
    """Those that are no pattern."""
    return {id: model for id, model in models.items() if "*" not in id}


def model_for(models: Mapping[str, Model], id: str) -> Model:
    """The model of this id: as listed, or as the longest pattern says that fits, or one without fields."""
    if id in models:
        return models[id]
    patterns = [pattern for pattern in models if "*" in pattern and fnmatchcase(id, pattern)]
    return models[max(patterns, key=lambda pattern: (len(pattern), pattern))] if patterns else Model()


class Route(Config):
    """A route to the same rules, under a name of its own."""

    name: str | None = None
    """How it is shown; by default its id."""
    models: dict[Name, Model] | None = None
    """Its models; by default those of the row."""


class Retry(Config):
    """How failed calls are to be tried again; it is whoever retries that does so."""

    mode: Literal["normal", "always"] = "normal"
    """`normal` for a number of times and the usual codes, `always` for ever and any code."""
    max_retries: Count = 5
    """How often, in mode `normal`."""
    initial_delay: Duration = 1.0
    """The first pause; it doubles each time."""
    max_delay: Duration = 60.0
    """The longest pause."""
    jitter: Share = 0.2
    """The share by which each pause varies."""

    @property
    def policy(self) -> RetryPolicy:
        """The same as the service takes it."""
        return RetryPolicy(
            mode=self.mode,
            max_retries=self.max_retries,
            initial_delay_ms=milliseconds(self.initial_delay),
            max_delay_ms=milliseconds(self.max_delay),
            jitter_ratio=self.jitter,
        )


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
