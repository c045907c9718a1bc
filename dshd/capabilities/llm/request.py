"""One model request, the call config it follows, and the header that makes it reconstructable from the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from sys import float_info
from typing import Any, Literal, TypeAlias

from dshd.capabilities.values.ids import ReasoningEffortId, SessionId
from dshd.capabilities.values.json import (
    EMPTY,
    FrozenDict,
    Json,
    MalformedValueError,
    array,
    frozen,
    make_whole,
    member,
    optional,
    whole,
)
from dshd.capabilities.values.message import Message
from dshd.kernel.effects import Scope
from dshd.kernel.signal import Signal

from .counts import LARGEST_SAFE as LARGEST_SAFE
from .counts import check_optional_count

Purpose: TypeAlias = Literal["compaction", "session-title"]
"""What an auxiliary call is for; a conversation has none."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model sees it; `parameters` is a JSON Schema object.

    Raises `MalformedValueError` for a tool without a name and for parameters that are no object, `LossyValueError` for
    parameters JSON cannot hold.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]

    def __post_init__(self) -> None:
        _check_text("the name of a tool", self.name)
        description: object = self.description
        if not isinstance(description, str):
            raise MalformedValueError(f"the description of tool {self.name!r} is text, not {description!r}")
        make_whole(self, "name", "description")
        object.__setattr__(self, "parameters", frozen(self.parameters, f"the parameters of tool {self.name!r}"))
        if not isinstance(self.parameters, FrozenDict):
            raise MalformedValueError(f"the parameters of tool {self.name!r} are a JSON Schema object, not an array")

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @classmethod
    def from_json(cls, data: Json) -> ToolSchema:
        what = "a tool schema"
        parameters = member(data, "parameters", dict, what)
        return cls(member(data, "name", str, what), member(data, "description", str, what), parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmCallConfig:
    """Route, model and sampling of a conversation's requests; the same names as in `GenerateOptions`.

    `provider` and `model` are both needed to dispatch; a proposal may lack them. Nothing is `None`, and so is an empty
    `stop`. Raises `MalformedValueError` for an empty name or stop string, a temperature that is no finite number, and a
    cap that is no whole number above 0 within the JSON-safe range.
    """

    provider: str | None = None
    model: str | None = None
    reasoning_effort: ReasoningEffortId | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("provider", "model", "reasoning_effort"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        make_whole(self, "provider", "model", "reasoning_effort")
        check_optional_count("max_tokens", self.max_tokens, 1)
        if self.temperature is not None:
            given: object = self.temperature
            if type(given) not in (int, float) or not abs(self.temperature) <= float_info.max:
                raise MalformedValueError(f"temperature is a finite number, not {given!r}")
            object.__setattr__(self, "temperature", float(self.temperature))
        given_stop: object = self.stop
        if isinstance(given_stop, str):
            raise MalformedValueError(f"stop is a list of strings; write [{given_stop!r}] for one")
        stop = tuple(self.stop or ())
        for text in stop:
            _check_text("a stop string", text)
        object.__setattr__(self, "stop", tuple(map(whole, stop)) or None)

    def to_json(self) -> dict[str, Json]:
        members = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in members.items() if value is not None}

    @classmethod
    def from_json(cls, data: Json) -> LlmCallConfig:
        """What `to_json` gave; other members are left alone. Raises `MalformedValueError`."""
        what = "a call config"
        effort = optional(data, "reasoning_effort", str, what)
        return cls(
            provider=optional(data, "provider", str, what),
            model=optional(data, "model", str, what),
            reasoning_effort=None if effort is None else ReasoningEffortId(effort),
            temperature=optional(data, "temperature", float, what),
            max_tokens=optional(data, "max_tokens", int, what),
            stop=array(data, "stop", what),
        )


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise MalformedValueError(f"{what} is text and not empty, so it is not {value!r}")


ADAPTER_DEFAULTS = frozenset({"reasoning_effort", "max_tokens"})
"""The fields an adapter may fill in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochHeader:
    """What a session's requests have in common until it changes; logged whole by `request/header`, the latest counts.

    Header plus derived history is the request, nothing else. The marks say where effective values came from, so that
    the next proposal does not take for chosen what was only filled in. Raises `MalformedValueError` for marks of other
    fields and for an intercepted value that no proposal can have.
    """

    config: LlmCallConfig
    """What is in effect."""
    adapter_defaults: frozenset[str] = frozenset()
    """Which of `reasoning_effort` and `max_tokens` the adapter filled in."""
    intercepted: Mapping[str, Json] = EMPTY
    """Fields that an `intercept` layer changed, each with the value that had been proposed (null for none)."""
    seeds: Mapping[str, Json] = EMPTY
    """The values of the agent's definition that seeded this header; an edited one wins over the logged one."""
    system: str | None = None
    """The rendered prompt."""
    tools: tuple[ToolSchema, ...] = ()
    """In the order they were sent, which is authoritative."""

    def __post_init__(self) -> None:
        wrong = set(self.adapter_defaults) - ADAPTER_DEFAULTS
        if wrong:
            raise MalformedValueError(f"an adapter does not fill in {', '.join(sorted(map(str, wrong)))}")
        object.__setattr__(self, "adapter_defaults", frozenset(self.adapter_defaults))
        object.__setattr__(self, "intercepted", frozen(self.intercepted, "intercepted"))
        object.__setattr__(self, "seeds", frozen(self.seeds, "seeds"))
        object.__setattr__(self, "system", self.system or None)
        make_whole(self, "system")
        object.__setattr__(self, "tools", tuple(self.tools))
        self.proposal()

    def request(
        self,
        messages: Sequence[Message],
        *,
        signal: Signal | None = None,
        session_id: SessionId | None = None,
        scope: Scope | None = None,
    ) -> GenerateOptions:
        """The request that this header and the derived history `messages` make; there is nothing else in one.

        Raises `MalformedValueError` for a header without provider or model.
        """
        config = self.config
        if config.provider is None or config.model is None:
            raise MalformedValueError("a request needs a provider and a model; this header lacks one")
        return GenerateOptions(
            provider=config.provider,
            model=config.model,
            messages=messages,
            reasoning_effort=config.reasoning_effort,
            system=self.system,
            tools=self.tools,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            stop=config.stop,
            signal=signal,
            session_id=session_id,
            scope=scope,
        )

    def proposal(self) -> LlmCallConfig:
        """The config to propose next: without what the adapter filled in, and as it was before it was intercepted."""
        changes: dict[str, Any] = dict.fromkeys(self.adapter_defaults)
        known = {each.name for each in fields(LlmCallConfig)}
        changes |= {name: value for name, value in self.intercepted.items() if name in known}
        return replace(self.config, **changes)

    def to_json(self) -> dict[str, Json]:
        members: dict[str, Json] = {
            **self.config.to_json(),
            "adapter_defaults": dict.fromkeys(sorted(self.adapter_defaults), True),
            "intercepted": self.intercepted, "seeds": self.seeds, "system": self.system,
            "tools": [tool.to_json() for tool in self.tools],
        }  # fmt: skip
        return {name: value for name, value in members.items() if value is not None and value not in ({}, [])}

    @classmethod
    def from_json(cls, data: Json) -> EpochHeader:
        """What `to_json` gave. Raises `MalformedValueError`."""
        what = "a request header"
        marks = optional(data, "adapter_defaults", dict, what) or {}
        return cls(
            config=LlmCallConfig.from_json(data),
            adapter_defaults=frozenset(name for name, marked in marks.items() if marked),
            intercepted=optional(data, "intercepted", dict, what) or EMPTY,
            seeds=optional(data, "seeds", dict, what) or EMPTY,
            system=optional(data, "system", str, what),
            tools=tuple(ToolSchema.from_json(tool) for tool in array(data, "tools", what)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class GenerateOptions:
    """One model request, fully assembled and deeply immutable. Known by identity: two of them are never equal.

    Raises `MalformedValueError` for what `LlmCallConfig` refuses; an empty `system` or `stop` is none.
    """

    provider: str
    """The registered route that selects the adapter."""
    model: str
    messages: Sequence[Message]
    """As the provider sees them, after the system slot."""
    reasoning_effort: ReasoningEffortId | None = None
    system: str | None = None
    tools: Sequence[ToolSchema] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] | None = None
    """Generation halts at any of these strings, which are no part of the output."""
    signal: Signal | None = field(default=None, repr=False)
    session_id: SessionId | None = None
    """Stamped by the loop so that listeners can tell conversations apart; adapters ignore it."""
    scope: Scope | None = field(default=None, repr=False)
    """The agent whose call it is, so that listeners of that agent hear it; adapters ignore it."""
    purpose: Purpose | None = None
    """What an auxiliary call is for; adapters may map it to transport metadata or a policy."""

    def __post_init__(self) -> None:
        for name in ("provider", "model"):
            _check_text(name, getattr(self, name))
        config = self.config
        for each in fields(config):  # as a config has them: checked, and what it makes of them
            object.__setattr__(self, each.name, getattr(config, each.name))
        object.__setattr__(self, "system", self.system or None)
        make_whole(self, "system")
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "tools", tuple(self.tools))

    @property
    def config(self) -> LlmCallConfig:
        """Its call config."""
        return LlmCallConfig(
            provider=self.provider,
            model=self.model,
            reasoning_effort=self.reasoning_effort,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            stop=self.stop,  # type: ignore[arg-type]  # which makes it a tuple
        )
