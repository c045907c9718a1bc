"""Seeds, forks, and the replacement of the provider."""

from __future__ import annotations

from dshd.capabilities.session import (
    SESSIONS,
    EndSeed,
    Replace,
    SessionError,
    SessionEvent,
    SessionHeader,
    TurnStart,
    UserMessageAdded,
)
from dshd.capabilities.values import SessionId, session_id, user_message
from dshd.testing.contracts.expect import refused, same
from dshd.testing.kernel import running

from .rows import A, B, Listener, Opening, completed, consumer, conversation


class SeedsContract(Opening):
    """Seeds, forks, and the replacement of the provider."""

    # -- seeds

    async def test_a_seed_is_copied_and_its_end_is_marked_once(self) -> None:
        async with self.opened() as (root, sessions):
            listener = Listener(root)
            source = sessions.create(A)
            conversation(source)
            seed = list(source.events)
            session = sessions.create(B, seed=seed)
            seed.clear()
            same(list(session.events[:-1]), list(source.events))
            same((session.events[-1].data, session.header.seed_length), (EndSeed(), 6))
            same(session.derive_messages(), source.derive_messages())
            assert "created b with 7" in listener.heard
            assert "b 0" not in listener.heard, "a seed is no news"
            again = sessions.prepare(seed=session.events)
            same([event.data for event in again.events].count(EndSeed()), 1)

    async def test_a_session_without_a_seed_has_no_mark(self) -> None:
        async with self.opened() as (_, sessions):
            same(len(sessions.create(A).events), 0)

    async def test_a_seed_that_is_no_log_leaves_nothing_behind(self) -> None:
        async with self.opened() as (_, sessions):
            question = UserMessageAdded(user_message("?"))
            bad: list[tuple[str, SessionEvent]] = [
                ("1", SessionEvent(1, 0, TurnStart(1))),
                ("turn/start", SessionEvent(0, 0, TurnStart("1"))),  # type: ignore[arg-type]
                ("surface", SessionEvent(0, 0, question, Replace(0, 0))),
            ]
            for word, event in bad:
                with refused(SessionError, word):
                    sessions.create(A, seed=[event])
            with refused(SessionError):
                sessions.create(A, seed=[TurnStart(1)])  # type: ignore[list-item]
            same(sessions.list(), [])

    async def test_a_stored_session_is_prepared_under_its_own_header(self) -> None:
        async with self.opened() as (_, sessions):
            source = sessions.prepare(B)
            conversation(source)
            header = SessionHeader(id=A, created_at=5, cwd="/w", parent_session=B, seed_length=3, delegation_depth=2)
            session = sessions.prepare(header=header, seed=source.events)
            same((session.header, len(session.events)), (header, 7))
            for more in ({"id": A}, {"cwd": "/w"}):
                with refused(SessionError, "not from both"):
                    sessions.prepare(header=header, seed=source.events, **more)
            with refused(SessionError, "seed"):
                sessions.prepare(header=header)

    # -- forks

    async def test_a_fork_begins_with_a_copy_and_grows_apart(self) -> None:
        async with self.opened() as (root, sessions):
            listener = Listener(root)
            trunk = sessions.create(A, cwd="/work")
            conversation(trunk)
            fork = sessions.fork(trunk)
            same(list(fork.events), [*trunk.events, fork.events[6]])
            same(fork.events[6].data, EndSeed())
            header = fork.header
            same((header.parent_session, header.seed_length, header.cwd), (A, 6, "/work"))
            assert fork.id != A
            same(fork.derive_messages(), trunk.derive_messages())
            same(sessions.list(), [trunk])
            trunk.append(TurnStart(3))
            fork.append(TurnStart(9))
            same((len(trunk.events), len(fork.events)), (7, 8))
            sessions.enter(fork)
            sessions.announce(fork)
            assert f"created {fork.id} with 8" in listener.heard

    async def test_what_a_fork_begins_with_is_no_news(self) -> None:
        async with self.opened() as (root, sessions):
            trunk = sessions.create(A, seed=[SessionEvent(0, 1, TurnStart(1)), SessionEvent(1, 1, completed(1))])
            listener = Listener(root)
            for boundary in (1, None):  # before the mark that ends the seed, and with it
                fork = sessions.fork(trunk, boundary, session_id(f"fork {boundary}"))
                sessions.enter(fork)
                sessions.announce(fork)
                same(len(fork.events), 3)
            same(listener.heard, ["created fork 1 with 3", "created fork None with 3"])

    async def test_a_fork_is_made_at_a_boundary_outside_any_turn(self) -> None:
        async with self.opened() as (_, sessions):
            trunk = sessions.create(A)
            conversation(trunk)
            same(len(sessions.fork(trunk, 2, session_id("f")).events), 4)
            same(sessions.fork(trunk, 2, session_id("f")).header.seed_length, 3)
            for boundary in (0, 1, 3, 4):
                with refused(SessionError, "turn", str(boundary)):
                    sessions.fork(trunk, boundary)
            trunk.append(TurnStart(3))
            with refused(SessionError, "turn 3"):
                sessions.fork(trunk)
            same(len(sessions.fork(trunk, 5).events), 7)
            for nowhere in (-1, 7, True, "5"):
                with refused(SessionError, repr(nowhere)):
                    sessions.fork(trunk, nowhere)  # type: ignore[arg-type]
            with refused(SessionError):
                sessions.fork(trunk, 5, SessionId(""))

    async def test_a_fork_of_an_empty_session_is_empty(self) -> None:
        async with self.opened() as (_, sessions):
            fork = sessions.fork(sessions.create(A))
            same((len(fork.events), fork.header.seed_length, fork.header.parent_session), (0, 0, A))

    # -- replacing the provider

    async def test_a_replaced_provider_keeps_every_session_and_every_event(self) -> None:
        async with running() as root:
            provider = root.plugin(self.plugin)
            await provider.settled()
            sessions, fiber = await consumer(root)
            listener = Listener(root)
            session = sessions.create(A)
            prepared = sessions.prepare(B)
            session.append(TurnStart(1))
            await provider.update({})
            session.append(completed(1))
            now = root.get(SESSIONS)
            assert now is not None
            assert now.get(A) is session
            now.enter(prepared)
            now.announce(prepared)
            prepared.append(TurnStart(1))
            same(now.list(), [session, prepared])
            same(listener.heard, ["created a with 0", "a 0", "a 1", "created b with 0", "b 0"])
            await fiber.dispose()
            same(now.list(), [prepared])
