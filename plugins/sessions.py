"""The live sessions in memory. They outlive this row: replacing it loses no session and no event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dshd import Config, Context, plugin
from dshd.capabilities.session import (
    SESSION_CREATED,
    SESSION_EVENT,
    SESSION_FLUSH,
    SESSIONS,
    Detach,
    EndSeed,
    Session,
    SessionAppended,
    SessionError,
    SessionEvent,
    SessionHeader,
)
from dshd.capabilities.session.live import LiveSessions, Place, live_sessions, open_live_sessions
from dshd.capabilities.values import Json, SessionId, session_id


class Store:
    """The sessions of one realm, as one consumer sees them; keeps nothing itself."""

    def __init__(self, live: LiveSessions, consumer: Context) -> None:
        self._live = live
        self._consumer = consumer

    def create(
        self, id: SessionId | None = None, *, cwd: str | None = None, seed: Iterable[SessionEvent] = ()
    ) -> Session:
        session = self.prepare(id, cwd=cwd, seed=seed)
        detach = self.enter(session)

        async def leave() -> None:
            try:
                await session.scope.close()
            finally:
                detach()

        try:
            effect = self._consumer.defer(leave, f"session {session.id}")
        except BaseException:
            detach()
            raise
        try:
            self.announce(session)
        except BaseException:
            detach()
            # Who heard of it may have contributed for it already.
            self._consumer.spawn(effect.dispose, name=f"undo session {session.id}", while_open=True)
            raise
        return session

    def prepare(
        self,
        id: SessionId | None = None,
        *,
        header: SessionHeader | None = None,
        cwd: str | None = None,
        seed: Iterable[SessionEvent] = (),
    ) -> Session:
        events = tuple(seed)
        if header is None:
            header = _header(id, cwd=cwd, seed_length=len(events) or None)
        elif id is not None or cwd is not None:
            raise SessionError("a session is prepared from a header, or from an id and a workspace, not from both")
        elif type(header) is not SessionHeader:
            raise SessionError(f"a session has a header of its own class, and no {type(header).__name__}")
        if (header.seed_length or 0) > len(events):
            raise SessionError(f"the header of session {header.id!r} tells of a longer seed than there is")
        return _marked(Session(header, events, kinds=self._live.keeper.registry))

    def enter(self, session: Session) -> Detach:
        places, id = self._live.places, session.id
        if session.sealed:
            raise SessionError(f"session {id!r} was detached; prepare another from its events")
        if session.entered:
            raise SessionError(f"session {id!r} is live already")
        if id in places:
            raise SessionError(f"there is another live session {id!r}; an id is free once that one is detached")
        place = places[id] = Place(session)
        session.entered = True

        def detach() -> None:
            if place.announcing:
                place.leaving = True
            else:
                _remove(places, place)

        return detach

    def announce(self, session: Session) -> None:
        live = self._live
        place = live.places.get(session.id)
        if place is None or place.session is not session:
            raise SessionError(f"session {session.id!r} is announced after it was entered, and before it is detached")
        if place.announced:
            raise SessionError(f"session {session.id!r} was announced before")
        place.announced = place.announcing = True
        try:
            with session.announcing(_tell(live.keeper, session)):
                live.keeper.emit(SESSION_CREATED, session)
        finally:
            place.announcing = False
            if place.leaving:
                _remove(live.places, place)

    def get(self, id: SessionId) -> Session | None:
        place = self._live.places.get(id)
        return None if place is None else place.session

    def fork(self, session: Session, boundary: int | None = None, id: SessionId | None = None) -> Session:
        last = len(session.events) - 1
        if boundary is None:
            boundary = last
        elif type(boundary) is not int or not 0 <= boundary <= last:
            raise SessionError(f"session {session.id!r} has no event {boundary!r} to fork at; its last is {last}")
        turn = session.turn_at(boundary)
        if turn is not None:
            raise SessionError(
                f"session {session.id!r} cannot be forked at event {boundary}, inside its turn {turn}; take an event "
                f"before the turn starts, or its end"
            )
        length = boundary + 1
        header = _header(id, cwd=session.header.cwd, parent_session=session.id, seed_length=length)
        return _marked(session.branch(header, length))

    async def flush(self, session: Session) -> None:
        await self._live.keeper.parallel(SESSION_FLUSH, session)

    def list(self) -> list[Session]:
        return [place.session for place in self._live.places.values()]


def _header(id: SessionId | None, **members: Json) -> SessionHeader:
    try:
        return SessionHeader(id=session_id(id), created_at=time.time_ns() // 1_000_000, **members)
    except ValueError as exc:
        raise SessionError(str(exc)) from exc


def _marked(session: Session) -> Session:
    """With the end of its seed marked, if it has one that is not."""
    if session.events and not isinstance(session.events[-1].data, EndSeed):
        session.append(EndSeed())
    return session


def _remove(places: dict[SessionId, Place], place: Place) -> None:
    session = place.session
    if places.get(session.id) is place:
        del places[session.id]
        session.seal()


def _tell(keeper: Context, session: Session) -> Callable[[SessionEvent], None]:
    # Not of the face: what a live session holds on to outlives this row and its consumers.
    return lambda event: keeper.emit(SESSION_EVENT, SessionAppended(session, event))


@plugin("sessions", provides=[SESSIONS])
async def sessions(ctx: Context, config: Config) -> None:
    live = await ctx.shared(live_sessions(ctx.realm(SESSIONS)), open_live_sessions)
    ctx.provide_each(SESSIONS, lambda consumer: Store(live, consumer))
