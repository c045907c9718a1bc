"""`ctx[SESSIONS]`, the live sessions in memory, and the seam of stores that make logs durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dshd.capabilities.values.ids import SessionId
from dshd.kernel.events import Emit, Parallel
from dshd.kernel.keys import ServiceKey

from .event import SessionEvent
from .header import SessionHeader
from .log import Session


class Detach(Protocol):
    """Takes one exact session out of the store; a second call, or one for a session that is not there, does nothing.

    Nothing can be appended to it afterwards, for nobody would hear of it.
    Called while the creation of that session is being announced, it waits until that dispatch is over.
    """

    def __call__(self) -> None: ...


class Sessions(Protocol):
    """The live sessions, as one consumer sees them."""

    def create(
        self, id: SessionId | None = None, *, cwd: str | None = None, seed: Iterable[SessionEvent] = ()
    ) -> Session:
        """Prepare, enter and announce a session. With the consumer's fiber its scope is closed and it is detached.

        Everybody is told at once, also by a plugin that is not published yet: who might be discarded does it in a task.
        Raises `SessionError` for an id that is taken, and what a listener of `session/created` raises, with nothing
        left behind.
        """

    def prepare(
        self,
        id: SessionId | None = None,
        *,
        header: SessionHeader | None = None,
        cwd: str | None = None,
        seed: Iterable[SessionEvent] = (),
    ) -> Session:
        """A private session that nobody sees yet. Seed and header are validated and copied.

        A seed is a log of its own: its `seq` count from 0. Its end is marked with `session/end-seed` unless it ends in
        one. A `header`, such as that of a stored session, is given instead of `id` and `cwd`. Raises `SessionError`.
        """

    def enter(self, session: Session) -> Detach:
        """Publish a prepared session; of several with one id the first wins.

        Raises `SessionError` for the others, and for a session that was live before: what was detached is over.
        """

    def announce(self, session: Session) -> None:
        """Tell `session/created`, once; from then on each new event is told as `session/event`.

        What was appended before, also by a listener that was told earlier, is in the log when a listener hears of the
        session. Raises what a listener raises, who thereby forbids the session; the caller detaches it. Raises
        `SessionError` for one that is not live or was announced before.
        """

    def get(self, id: SessionId) -> Session | None:
        """The live session of this id, announced or not."""

    def list(self) -> list[Session]:
        """The live sessions, in the order they were entered."""

    def fork(self, session: Session, boundary: int | None = None, id: SessionId | None = None) -> Session:
        """A private session that begins with a copy of `session` up to the event `boundary`, included.

        By default up to the last event. Its header has the workspace of its parent, `parent_session` and
        `seed_length`. Raises `SessionError` for a boundary inside an open turn.
        """

    async def flush(self, session: Session) -> None:
        """Wait until everything appended so far is durable. Raises an `ExceptionGroup` of what stores raise."""


SESSIONS = ServiceKey[Sessions]("sessions")


@dataclass(frozen=True, slots=True)
class SessionAppended:
    """Payload of `session/event`."""

    session: Session
    event: SessionEvent


SESSION_CREATED = Emit[Session]("session/created", veto=True, subject=lambda session: session.scope)
SESSION_EVENT = Emit[SessionAppended]("session/event", subject=lambda appended: appended.session.scope)
"""Every append to an announced session, chunks included, in the order of the log: for displays, stores, invariants."""
SESSION_FLUSH = Parallel[Session]("session/flush", subject=lambda session: session.scope)
"""A durability checkpoint: every listener is awaited, none can veto."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as a store gives it back."""

    header: SessionHeader
    events: Sequence[SessionEvent]


class SessionPersistence(Protocol):
    """A store of logs. One implementation in a realm; `dshd.testing.contracts` has the suite each must pass."""

    async def create(self, header: SessionHeader) -> None:
        """Begin a log. It may be written with the first append. Raises `SessionError` for an id that is taken."""

    async def append(self, id: SessionId, events: Sequence[SessionEvent]) -> None:
        """Add to a log; returns when the events are durable. The first `seq` is the next one of the log.

        Raises `SessionError` for a gap, `LossyValueError` for data that cannot be stored.
        """

    async def load(self, id: SessionId) -> StoredSession:
        """A whole log, an interrupted turn closed. Raises `SessionError` for one that is missing or damaged."""

    async def list(self) -> list[SessionHeader]:
        """The headers of all logs."""


SESSION_PERSISTENCE = ServiceKey[SessionPersistence]("session_persistence")
