"""The one result type of an attempt, the same for CLI, API, log and plugins."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .issues import Issue
from .plan import Plan


class Outcome(Enum):
    """How an attempt ended."""

    COMMITTED = "committed"
    NOOP = "noop"
    REJECTED = "rejected"
    HELD = "held"
    CONFLICT = "conflict"
    SUPERSEDED = "superseded"
    PREPARE_FAILED = "prepare_failed"
    ROLLED_BACK = "rolled_back"
    TIMED_OUT = "timed_out"

    @property
    def exit_status(self) -> int:
        """What a client verb exits with."""
        return _EXITS[self]

    @property
    def http_status(self) -> int:
        if self in (Outcome.COMMITTED, Outcome.NOOP):
            return 200
        return 409 if self in (Outcome.HELD, Outcome.CONFLICT) else 422


_EXITS = {
    Outcome.COMMITTED: 0, Outcome.NOOP: 0, Outcome.REJECTED: 3, Outcome.HELD: 4, Outcome.CONFLICT: 4,
    Outcome.SUPERSEDED: 0, Outcome.PREPARE_FAILED: 5, Outcome.ROLLED_BACK: 6, Outcome.TIMED_OUT: 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one attempt did, with every finding, every action and timings in milliseconds."""

    attempt: str
    """Sortable id."""
    trigger: str
    """`start watch signal api cli credential rollback confirm retry plugin`."""
    result: Outcome
    generation: int
    """The generation that runs after the attempt."""
    digest: str
    plan: Plan
    issues: tuple[Issue, ...] = ()
    phases_ms: dict[str, float] = field(default_factory=dict)
    commit_ms: float | None = None
    loop_stall_ms: float | None = None
    pending_restart: tuple[str, ...] = ()
    held_reason: str | None = None
    draining: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    degraded: str | None = None
    """Why what runs is not what the files say, if so."""
    confirm_by: str | None = None
    """ISO time until which `dshd confirm` must arrive, if it must."""
    time: str = ""
    """ISO time of the end."""

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt, "trigger": self.trigger, "result": self.result.value,
            "generation": self.generation, "digest": self.digest, "plan": self.plan.as_json(),
            "issues": [issue.as_json() for issue in self.issues], "phases_ms": self.phases_ms,
            "commit_ms": self.commit_ms, "loop_stall_ms": self.loop_stall_ms,
            "pending_restart": list(self.pending_restart), "held_reason": self.held_reason,
            "draining": list(self.draining), "leaks": list(self.leaks), "degraded": self.degraded,
            "confirm_by": self.confirm_by, "time": self.time,
        }  # fmt: skip
