"""How sessions are created, prepared, entered, announced and detached."""

from __future__ import annotations

from dshd.capabilities.session import (
    SESSION_CREATED,
    Session,
    SessionError,
    TurnStart,
)
from dshd.capabilities.values import session_id
from dshd.testing.contracts.expect import refused, same
from dshd.testing.kernel import running

from .rows import A, B, Listener, Opening, completed, consumer


class LifecycleContract(Opening):
    """How sessions are created, prepared, entered, announced and detached."""

    # -- creating

    async def test_a_created_session_is_found_by_its_id_and_listed_in_the_order_of_creation(self) -> None:
        async with self.opened() as (_, sessions):
            second, first = sessions.create(B, cwd="/work"), sessions.create(A)
            assert sessions.get(B) is second
            assert sessions.get(A) is first
            same(sessions.list(), [second, first])
            same((second.id, second.header.cwd, first.header.cwd), (B, "/work", None))
            same(sessions.get(session_id("c")), None)

    async def test_without_an_id_each_session_gets_one_of_its_own(self) -> None:
        async with self.opened() as (_, sessions):
            same(len({sessions.create().id for _ in range(20)}), 20)

    async def test_an_id_can_be_live_once_and_its_case_counts(self) -> None:
        async with self.opened() as (_, sessions):
            first = sessions.create(session_id("Agent"))
            with refused(SessionError, "Agent"):
                sessions.create(session_id("Agent"))
            assert sessions.get(session_id("Agent")) is first
            other = sessions.create(session_id("agent"))
            same(sessions.list(), [first, other])

    async def test_ids_and_workspaces_that_cannot_be_are_refused(self) -> None:
        async with self.opened() as (_, sessions):
            for bad in ("", 5, b"x"):
                with refused(SessionError):
                    sessions.create(bad)  # type: ignore[arg-type]
            for cwd in ("work", "", "./x", 5):
                with refused(SessionError, repr(cwd)):
                    sessions.create(A, cwd=cwd)  # type: ignore[arg-type]
            same(sessions.list(), [])
            odd = session_id("../\ud800/x y")
            assert sessions.create(odd).id == odd

    async def test_the_header_says_when_a_session_began(self) -> None:
        async with self.opened() as (_, sessions):
            header = sessions.create(A).header
            assert 1_500_000_000_000 < header.created_at < 10_000_000_000_000, "milliseconds since the epoch"
            same((header.parent_session, header.seed_length, header.origin), (None, None, None))

    async def test_a_session_goes_with_the_plugin_that_created_it_and_only_then(self) -> None:
        async with running(self.plugin) as root:
            mine, owner = await consumer(root, "owner")
            others, _ = await consumer(root, "other")
            session, kept = mine.create(A), others.create(B)
            assert others.get(A) is session
            await owner.dispose()
            same(others.list(), [kept])
            assert others.create(A) is not session, "the id is free again"

    # -- preparing, entering, announcing

    async def test_a_prepared_session_is_nobodys_business_before_it_is_entered_and_announced(self) -> None:
        async with self.opened() as (root, sessions):
            listener = Listener(root)
            session = sessions.prepare(A)
            session.append(TurnStart(1))
            same((sessions.list(), listener.heard), ([], []))
            sessions.enter(session)
            session.append(completed(1))
            same((sessions.list(), listener.heard), ([session], []))
            sessions.announce(session)
            session.append(TurnStart(2))
            same(listener.heard, ["created a with 2", "a 2"])

    async def test_of_several_prepared_with_one_id_the_first_to_enter_wins(self) -> None:
        async with self.opened() as (_, sessions):
            slow, quick = sessions.prepare(A), sessions.prepare(A)
            detach = sessions.enter(quick)
            with refused(SessionError, "'a'"):
                sessions.enter(slow)
            assert sessions.get(A) is quick
            detach()
            sessions.enter(slow)
            assert sessions.get(A) is slow

    async def test_a_detach_takes_out_its_own_session_once_and_never_a_later_one_of_that_id(self) -> None:
        async with self.opened() as (_, sessions):
            detach = sessions.enter(sessions.prepare(A))
            detach()
            same(sessions.get(A), None)
            later = sessions.prepare(A)
            sessions.enter(later)
            detach()
            detach()
            assert sessions.get(A) is later

    async def test_what_was_detached_takes_nothing_more_and_does_not_come_back(self) -> None:
        async with self.opened() as (_, sessions):
            session = sessions.prepare(A)
            detach = sessions.enter(session)
            sessions.announce(session)
            session.append(TurnStart(1))
            detach()
            with refused(SessionError, "detached"):
                session.append(completed(1))
            same(len(session.events), 1)
            with refused(SessionError, "detached"):
                sessions.enter(session)

    async def test_a_session_is_entered_once_and_announced_once_while_it_is_live(self) -> None:
        async with self.opened() as (root, sessions):
            listener = Listener(root)
            session = sessions.prepare(A)
            with refused(SessionError, "'a'"):
                sessions.announce(session)
            detach = sessions.enter(session)
            with refused(SessionError, "live already"):
                sessions.enter(session)
            with refused(SessionError, "'a'"):
                sessions.announce(sessions.prepare(A))
            sessions.announce(session)
            with refused(SessionError, "before"):
                sessions.announce(session)
            detach()
            with refused(SessionError, "'a'"):
                sessions.announce(session)
            same(listener.heard, ["created a with 0"])

    async def test_who_refuses_a_new_session_undoes_it_whole(self) -> None:
        async with self.opened() as (root, sessions):
            before = Listener(root)
            seen: list[Session] = []

            def refuse(session: Session) -> None:
                seen.append(session)
                session.append(TurnStart(1))
                assert sessions.get(session.id) is session, "it is entered when it is announced"
                raise PermissionError("no more sessions")

            veto = root.on(SESSION_CREATED, refuse)
            with refused(PermissionError, "no more"):
                sessions.create(A)
            same((sessions.list(), before.heard), ([], ["created a with 0"]))
            with refused(SessionError, "detached"):
                seen[0].append(TurnStart(2))
            await veto.dispose()
            assert sessions.create(A) is not seen[0]

    async def test_a_detach_during_the_announcement_waits_until_everybody_has_heard(self) -> None:
        async with self.opened() as (root, sessions):
            found: list[object] = []
            session = sessions.prepare(A)
            detach = sessions.enter(session)
            root.on(SESSION_CREATED, lambda _: detach())
            root.on(SESSION_CREATED, lambda heard: found.append(sessions.get(heard.id)))
            sessions.announce(session)
            same((found, sessions.get(A)), ([session], None))
