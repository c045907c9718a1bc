"""Who is told what, and what a flush waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dshd.capabilities.llm.stream import TextDelta
from dshd.capabilities.session import (
    SESSION_CREATED,
    SESSION_EVENT,
    SESSION_FLUSH,
    AssistantChunk,
    Session,
    SessionAppended,
    TurnStart,
)
from dshd.capabilities.values import Extension
from dshd.testing.contracts.expect import same

from .rows import A, B, Listener, Opening, completed


class TellingContract(Opening):
    """Who is told what, and what a flush waits for."""

    # -- telling

    async def test_every_append_is_told_once_to_everybody_in_the_order_of_the_log(self) -> None:
        async with self.opened() as (root, sessions):
            listener = Listener(root)
            session = sessions.create(A)
            other = sessions.create(B)
            session.append(TurnStart(1))
            other.append(TurnStart(1))
            session.append(AssistantChunk(1, 1, TextDelta(0, "x")))
            same(listener.heard, ["created a with 0", "created b with 0", "a 0", "b 0", "a 1"])

    async def test_what_a_listener_appends_is_told_to_all_after_what_it_was_told(self) -> None:
        async with self.opened() as (root, sessions):

            def answer(appended: SessionAppended) -> None:
                if isinstance(appended.event.data, TurnStart):
                    appended.session.append(Extension("echo", {"of": appended.event.seq}))

            early = Listener(root)
            root.on(SESSION_EVENT, answer)
            late = Listener(root)
            session = sessions.create(A)
            session.append(TurnStart(1))
            session.append(completed(1))
            same(early.heard, ["created a with 0", "a 0", "a 1", "a 2"])
            same(late.heard, early.heard)

    async def test_what_is_appended_during_the_announcement_is_told_after_it(self) -> None:
        async with self.opened() as (root, sessions):

            def begin(session: Session) -> None:
                session.append(TurnStart(1))

            root.on(SESSION_CREATED, begin)
            listener = Listener(root)
            sessions.create(A)
            same(listener.heard, ["created a with 1", "a 0"])

    async def test_a_listener_that_fails_costs_neither_the_event_nor_the_others_their_news(self) -> None:
        async with self.opened() as (root, sessions):

            def fail(_: SessionAppended) -> None:
                raise SystemExit("broken")

            root.on(SESSION_EVENT, fail)
            listener = Listener(root)
            session = sessions.create(A)
            session.append(TurnStart(1))
            same((len(session.events), listener.heard), (1, ["created a with 0", "a 0"]))

    async def test_a_listener_of_one_session_hears_of_that_session_only(self) -> None:
        async with self.opened() as (root, sessions):
            first = sessions.prepare(A)
            own = Listener(root.scoped(first.scope))
            sessions.enter(first)
            sessions.announce(first)
            sessions.create(B).append(TurnStart(1))
            first.append(TurnStart(1))
            same(own.heard, ["created a with 0", "a 0"])

    async def test_a_session_whose_scope_has_ended_goes_on_without_its_own_listeners(self) -> None:
        async with self.opened() as (root, sessions):
            session = sessions.create(A)
            own, everybody = Listener(root.scoped(session.scope)), Listener(root)
            session.append(TurnStart(1))
            await session.scope.close()
            session.append(completed(1))
            same((own.heard, everybody.heard), (["a 0"], ["a 0", "a 1"]))
            assert sessions.get(A) is session

    # -- flushing

    async def test_a_flush_waits_for_every_listener_and_raises_their_errors_together(self) -> None:
        async with self.opened() as (root, sessions):
            session = sessions.create(A)
            flushed: list[str] = []

            def store(name: str, error: Exception | None) -> Callable[[Session], Any]:
                async def flush(given: Session) -> None:
                    flushed.append(f"{name} {given.id}")
                    if error is not None:
                        raise error

                return flush

            await sessions.flush(session)
            for name, error in (("disk", OSError("full")), ("copy", None), ("cloud", ValueError("gone"))):
                root.on(SESSION_FLUSH, store(name, error))
            errors: list[str] = []
            try:
                await sessions.flush(session)
            except ExceptionGroup as group:
                errors = sorted(str(error) for error in group.exceptions)
            same((sorted(flushed), errors), (["cloud a", "copy a", "disk a"], ["full", "gone"]))
