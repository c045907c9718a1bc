"""Events that bracket others: turns, steps, seeds, compactions. Log-only: none of them makes a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dshd.capabilities.llm.counts import check_count
from dshd.capabilities.values.json import (
    EMPTY,
    FrozenDict,
    Json,
    MalformedValueError,
    frozen,
    make_whole,
    member,
    optional,
)

# -- turns and steps


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn opens, before its input is claimed. `generation` is the loader's number of the tree it begins under."""

    turn: int
    generation: int | None = None
    type: ClassVar = "turn/start"

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn, **({} if self.generation is None else {"generation": self.generation})}

    @classmethod
    def from_json(cls, data: Json) -> TurnStart:
        return cls(count(data, "turn", cls.type), optional_count(data, "generation", cls.type))


@dataclass(frozen=True, slots=True)
class TurnEndReason:
    """Why a turn ended. An open union by `kind`: `completed rejected aborted disposed error interrupted`, and those
    that plugins add; `data` has the kind's further members."""

    kind: str
    data: Mapping[str, Json] = EMPTY

    def __post_init__(self) -> None:
        make_whole(self, "kind")
        object.__setattr__(self, "data", frozen(self.data, f"turn end {self.kind!r}"))
        if "kind" in self.data:
            raise MalformedValueError("the data of a turn-end reason may not have a member 'kind'")

    def to_json(self) -> dict[str, Json]:
        return {"kind": self.kind, **self.data}

    @classmethod
    def from_json(cls, data: Json) -> TurnEndReason:
        kind = member(data, "kind", str, "a turn-end reason")
        if not kind:
            raise MalformedValueError("the kind of a turn-end reason is empty")
        return cls(kind, FrozenDict({name: value for name, value in data.items() if name != "kind"}))


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn closes."""

    turn: int
    reason: TurnEndReason
    type: ClassVar = "turn/end"

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn, "reason": self.reason.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> TurnEnd:
        return cls(count(data, "turn", cls.type), TurnEndReason.from_json(data.get("reason")))


@dataclass(frozen=True, slots=True)
class StepStart:
    """One model request, and the tools it asks for, begins."""

    turn: int
    step: int
    type: ClassVar = "step/start"

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn, "step": self.step}

    @classmethod
    def from_json(cls, data: Json) -> StepStart:
        return cls(*place(data, cls.type))


@dataclass(frozen=True, slots=True)
class StepEnd:
    """It is over."""

    turn: int
    step: int
    type: ClassVar = "step/end"

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn, "step": self.step}

    @classmethod
    def from_json(cls, data: Json) -> StepEnd:
        return cls(*place(data, cls.type))


# -- seeds and compaction


@dataclass(frozen=True, slots=True)
class EndSeed:
    """Here ends history that came from elsewhere."""

    type: ClassVar = "session/end-seed"

    def to_json(self) -> dict[str, Json]:
        return {}

    @classmethod
    def from_json(cls, data: Json) -> EndSeed:
        return cls()


@dataclass(frozen=True, slots=True)
class CompactStart:
    """A compaction begins; until its end nobody else may begin one."""

    turn: int | None = None
    type: ClassVar = "compact/start"

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn}

    @classmethod
    def from_json(cls, data: Json) -> CompactStart:
        return cls(optional_count(data, "turn", cls.type))


@dataclass(frozen=True, slots=True)
class CompactSummary:
    """Facts about a compaction: `data` has the summary, the shadowed range and its seqs, estimates, the model call."""

    data: Mapping[str, Json]
    type: ClassVar = "compact/summary"

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", frozen(self.data, self.type))

    def to_json(self) -> Mapping[str, Json]:
        return self.data

    @classmethod
    def from_json(cls, data: Json) -> CompactSummary:
        if not isinstance(data, dict):
            raise MalformedValueError(f"the data of {cls.type} is {type(data).__name__}, not an object")
        return cls(FrozenDict(data))


@dataclass(frozen=True, slots=True)
class CompactEnd:
    """It is over; `error` says why it failed, if it did."""

    turn: int | None = None
    error: str | None = None
    type: ClassVar = "compact/end"

    def __post_init__(self) -> None:
        make_whole(self, "error")

    def to_json(self) -> dict[str, Json]:
        return {"turn": self.turn, **({} if self.error is None else {"error": self.error})}

    @classmethod
    def from_json(cls, data: Json) -> CompactEnd:
        return cls(optional_count(data, "turn", cls.type), optional(data, "error", str, cls.type))


# -- reading numbers


def count(data: Json, name: str, what: str) -> int:
    """The member `name`, a count. Raises `MalformedValueError`."""
    value = member(data, name, int, what)
    check_count(f"{name!r} of {what}", value)
    return value


def optional_count(data: Json, name: str, what: str) -> int | None:
    """The same for a member that may be absent or null."""
    return None if optional(data, name, int, what) is None else count(data, name, what)


def place(data: Json, what: str) -> tuple[int, int]:
    """The turn and the step that an event belongs to."""
    return count(data, "turn", what), count(data, "step", what)
