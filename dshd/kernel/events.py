"""Typed events. The mode of dispatch is part of an event's type, and one frozen payload goes to every listener.

    mode        colour  who is asked           result
    Emit        sync    everybody, now         none; a listener's error is logged (or raised, with `veto=True`)
    Parallel    async   everybody, now         none; every listener runs to its end, errors are raised together
    Bail        sync    the asker's view       the first answer that is not `None`
    Serial      async   the asker's view       the first answer that is not `None`
    Waterfall   async   the asker's view       what the outermost listener returns; `next()` asks the inner ones

Facts go to the present, questions to the asker's view; from a stage, facts reach the stage's own listeners only. A
question marked `policy=True` is asked of everything visible now plus those leased listeners that have no successor now.
Listeners are ordered by (priority, row path, order in the body) and snapshotted per dispatch.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .effects import Scope
from .errors import EventModeError

E = TypeVar("E")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Subject: TypeAlias = "Callable[[Any], Scope | None]"
"""How an event says what its payload is about: the scope of one agent, or `None`."""


class Next(Protocol[R_co]):
    """Asks the inner listeners of a waterfall and returns their answer; callable once, without an argument."""

    def __call__(self) -> Awaitable[R_co]: ...


@dataclass(frozen=True)
class Emit(Generic[E]):
    """A fact, told synchronously. With `veto` the first exception reaches the emitter, who undoes what it announced."""

    name: str
    veto: bool = field(default=False, compare=False, kw_only=True)
    subject: Subject | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class Parallel(Generic[E]):
    """A fact whose listeners are awaited together."""

    name: str
    subject: Subject | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class Bail(Generic[E, R]):
    """A question answered synchronously by the first listener that does not abstain with `None`."""

    name: str
    policy: bool = field(default=False, compare=False, kw_only=True)
    subject: Subject | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class Serial(Generic[E, R]):
    """A question asked of one listener after another.

    With `answers=False` (declare it `Serial[E, None]`) every listener runs, and a stray answer is logged as that
    listener's fault.
    """

    name: str
    answers: bool = field(default=True, compare=False, kw_only=True)
    policy: bool = field(default=False, compare=False, kw_only=True)
    subject: Subject | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class Waterfall(Generic[E, R]):
    """A question each listener may answer itself or pass inward with `next()`; only returned values carry changes."""

    name: str
    policy: bool = field(default=False, compare=False, kw_only=True)
    subject: Subject | None = field(default=None, compare=False, kw_only=True)


Event: TypeAlias = "Emit[Any] | Parallel[Any] | Bail[Any, Any] | Serial[Any, Any] | Waterfall[Any, Any]"

_SYNC = (Emit, Bail)


def check_colour(event: Event, listener: Callable[..., Any]) -> None:
    """Raise `EventModeError` for a coroutine function listening to a synchronous event."""
    if isinstance(event, _SYNC) and inspect.iscoroutinefunction(inspect.unwrap(listener)):
        raise EventModeError(
            f"{event.name!r} is told synchronously, so {getattr(listener, '__qualname__', listener)!r} may not be "
            f"`async def`; spawn a task from a plain function instead"
        )


@dataclass(frozen=True, slots=True)
class ListenerAdded:
    """Payload of `internal/listener`: a listener was registered, by the row at `owner`."""

    event: str
    owner: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Payload of `internal/dispatch`: an event is being dispatched by the row at `sender`."""

    event: str
    mode: str
    payload: object
    sender: str
