"""Providers and models as adapters describe them. Catalogs are advisory: a model that is in none still routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from dshd.capabilities.values.ids import ReasoningEffortId
from dshd.capabilities.values.json import MalformedValueError
from dshd.kernel.signal import Signal

from .counts import check_count, check_optional_count
from .failure import FailureCode


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """A registered route, for selectors and diagnostics."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurableProvider:
    """A route that configuration could activate, whether or not it is registered now."""

    provider: str
    display_name: str
    settings_ns: str
    """The settings namespace whose section configures it."""
    settings_path: tuple[str, ...] = ()
    """From the root of that section to this provider's profile; empty when the section is the profile."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings_path", tuple(self.settings_path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model of a route's catalog."""

    provider: str
    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiscoveryRequest:
    """A question to an endpoint that configuration has not stored yet: the draft somebody is editing.

    The credential is for this one call and is kept nowhere.
    """

    provider: str | None = None
    """The route being edited, if there is one; an adapter that knows its models answers without asking anybody."""
    base_url: str | None = None
    api: str | None = None
    """The wire protocol the endpoint speaks, if the draft names one."""
    api_key: str | None = field(default=None, repr=False)
    signal: Signal | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredModel:
    """What an endpoint says of one of its models; most say no more than an id."""

    id: str
    name: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Capacity of one exact model."""

    context_window: int
    """The most tokens of request and response together; above 0, or `MalformedValueError` is raised."""

    def __post_init__(self) -> None:
        check_count("context_window", self.context_window, 1)


@dataclass(frozen=True, slots=True)
class ReasoningEffort:
    """One of a model's efforts, for selectors."""

    id: ReasoningEffortId
    name: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ModelReasoning:
    """The efforts one exact model offers, in the adapter's order.

    Raises `MalformedValueError` for two efforts of one id, and for a default that is none of them.
    """

    efforts: tuple[ReasoningEffort, ...]
    default_effort: ReasoningEffortId | None = None
    """Filled in where the caller gives none; without it the provider's own default holds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "efforts", tuple(self.efforts))
        ids = [effort.id for effort in self.efforts]
        if len(set(ids)) < len(ids):
            raise MalformedValueError(f"the efforts of a model differ in their ids, not {', '.join(ids)}")
        if self.default_effort is not None and self.default_effort not in ids:
            there = ", ".join(ids) or "there are none"
            raise MalformedValueError(f"the default effort {self.default_effort!r} is none of the efforts: {there}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel(ModelInfo):
    """One exact model, as the adapter that serves it says. Unknown facts are left out."""

    context: ModelContext | None = None
    default_max_tokens: int | None = None
    """The output cap filled in where the caller gives none; above 0, or `MalformedValueError` is raised."""
    reasoning: ModelReasoning | None = None

    def __post_init__(self) -> None:
        check_optional_count("default_max_tokens", self.default_max_tokens, 1)


RetryMode: TypeAlias = Literal["normal", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How failed calls of a route are tried again; captured with the registration that serves the call.

    Delays in milliseconds: the first, doubled each time up to the largest, each varied by `jitter_ratio`. Raises
    `MalformedValueError` for counts and delays below 0 and for a ratio that is not from 0 to 1.
    """

    mode: RetryMode = "normal"
    """`normal` tries `max_retries` times and only for `retryable_codes`; `always` for ever and for any code."""
    max_retries: int = 5
    retryable_codes: frozenset[str] = frozenset(
        {FailureCode.RATE_LIMITED, FailureCode.TIMEOUT, FailureCode.TRUNCATED, FailureCode.EMPTY_RESPONSE,
         FailureCode.PROVIDER}
    )  # fmt: skip
    initial_delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    jitter_ratio: float = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "retryable_codes", frozenset(self.retryable_codes))
        if self.mode not in get_args(RetryMode):
            raise MalformedValueError(
                f"a retry policy is of mode {' or '.join(get_args(RetryMode))}, not {self.mode!r}"
            )
        for name in ("max_retries", "initial_delay_ms", "max_delay_ms"):
            check_count(name, getattr(self, name))
        if not 0 <= self.jitter_ratio <= 1:
            raise MalformedValueError(f"jitter_ratio is a number from 0 to 1, not {self.jitter_ratio!r}")
