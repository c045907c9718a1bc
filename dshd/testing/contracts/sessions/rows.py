"""What the suite is made of: a consumer, a listener, conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from dshd.capabilities.session import (
    SESSION_CREATED,
    SESSION_EVENT,
    SESSIONS,
    Session,
    SessionAppended,
    Sessions,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    UserMessageAdded,
)
from dshd.capabilities.values import session_id, user_message
from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.testing.kernel import running

A, B = session_id("a"), session_id("b")


async def consumer(root: Context, id: str = "consumer") -> tuple[Sessions, Fiber]:
    """The service as a row of its own sees it, and that row."""
    contexts: list[Context] = []

    @plugin(id, inject=[SESSIONS])
    async def row(ctx: Context, config: Config) -> None:
        contexts.append(ctx)

    fiber = root.plugin(row)
    await fiber.settled()
    return contexts[-1][SESSIONS], fiber


def conversation(session: Session, turns: int = 2) -> None:
    """Some turns, each of a start, a question and an end."""
    for turn in range(1, turns + 1):
        for data in (TurnStart(turn), UserMessageAdded(user_message(f"question {turn}")), completed(turn)):
            session.append(data)


def completed(turn: int) -> TurnEnd:
    return TurnEnd(turn, TurnEndReason("completed"))


class Listener:
    """Hears everything about sessions, as one line each."""

    def __init__(self, ctx: Context, name: str = "") -> None:
        self.heard: list[str] = []
        self.name = name
        ctx.on(SESSION_CREATED, self.created)
        ctx.on(SESSION_EVENT, self.appended)

    def created(self, session: Session) -> None:
        self.heard.append(f"created {session.id} with {len(session.events)}")

    def appended(self, appended: SessionAppended) -> None:
        self.heard.append(f"{appended.session.id} {appended.event.seq}")


class Opening:
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `SESSIONS` and needs no config."""

    plugin: ClassVar[Plugin[Any]]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Context, Sessions]]:
        async with running(self.plugin) as root:
            yield root, (await consumer(root))[0]
