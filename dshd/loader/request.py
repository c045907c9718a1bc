"""Requests: what somebody wants of the reconciler, and later the result."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count

import anyio

from .result import Result

_numbers = count()


def attempt_id() -> str:
    """Sortable, unique in this process and across restarts."""
    return f"{time.time_ns() // 1000:014x}{next(_numbers) % 4096:03x}"


@dataclass(eq=False, kw_only=True)
class Request:
    """Somebody's wish for an attempt, and later its result."""

    trigger: str
    plan_only: bool = False
    if_generation: int | None = None
    confirm_seconds: float | None = None
    allow_removals: bool = False
    rollback_to: int | None = None
    id: str = field(default_factory=attempt_id)
    followers: list[Request] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Result | None = None

    @property
    def plain(self) -> bool:
        """Whether it only asks for what the files say: then another such wish answers it as well."""
        return not self.plan_only and self.if_generation is None and self.rollback_to is None

    def join(self, other: Request) -> None:
        """Let `other`, which is answered by the same attempt, have its result too."""
        self.followers += [other, *other.followers]
        other.followers = []
        self.allow_removals = self.allow_removals or other.allow_removals
        if other.confirm_seconds is not None:
            self.confirm_seconds = other.confirm_seconds

    def finish(self, result: Result) -> None:
        """Hand the result to whoever asked."""
        for request in (self, *self.followers):
            request.result = result
            request.done.set()


class Superseded(Exception):
    """Newer inputs have arrived while an attempt was preparing."""
