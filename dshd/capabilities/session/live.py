"""The live sessions of a realm, as data: they belong to a keeper and survive whoever serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from dshd.capabilities.values.ids import SessionId
from dshd.kernel.context import Context
from dshd.kernel.keys import Realm, SharedKey

from .log import Session


@dataclass(slots=True, eq=False)
class Place:
    """One session in the store, and how far its publication has come."""

    session: Session
    announced: bool = False
    announcing: bool = False
    leaving: bool = False
    """Whether it was detached while it was announced, and leaves as soon as that is over."""


@dataclass(slots=True, eq=False)
class LiveSessions:
    """Who is live, by id, in the order of entering. Facts about sessions are told through the keeper's context."""

    keeper: Context
    places: dict[SessionId, Place] = field(default_factory=dict)


def live_sessions(realm: Realm) -> SharedKey[LiveSessions]:
    """The key under which `ctx.shared` holds them. Who keeps sessions beyond its own instance holds it as well."""
    return SharedKey("sessions", (realm,))


async def open_live_sessions(keeper: Context) -> AsyncIterator[LiveSessions]:
    """What `ctx.shared` opens. Sessions that are still live when it closes are sealed: their ids are free again."""
    live = LiveSessions(keeper)
    try:
        yield live
    finally:
        for place in live.places.values():
            place.session.seal()
