"""The suite for whoever provides `SESSIONS`.

class TestMine(SessionsContract):
    plugin = my_sessions
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

from dshd.capabilities.llm.stream import TextDelta
from dshd.capabilities.session import (
    SESSION_CREATED,
    SESSION_EVENT,
    SESSION_FLUSH,
    SESSIONS,
    AssistantChunk,
    EndSeed,
    Replace,
    Session,
    SessionAppended,
    SessionError,
    SessionEvent,
    SessionHeader,
    Sessions,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    UserMessageAdded,
)
from dshd.capabilities.values import Extension, SessionId, session_id, user_message
from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.testing.kernel import running

A, B = session_id("a"), session_id("b")


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """The block raises an error of this kind that has all these words."""
    error: Exception | None = None
    try:
        yield
    except kind as exc:
        error = exc
    assert error is not None, f"nothing raised {kind.__name__}"
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{error} does not name {missing}"


def same(found: object, wanted: object) -> None:
    """What came is what is wanted, which the name of the test says; if not, both are shown."""
    assert found == wanted, f"wanted {wanted!r}, but this came: {found!r}"


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


class SessionsContract:
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `SESSIONS` and needs no config."""

    plugin: ClassVar[Plugin[Any]]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Context, Sessions]]:
        async with running(self.plugin) as root:
            yield root, (await consumer(root))[0]

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
