"""The `sessions` row: its contract, and that no change of the tree costs a session or an event."""

import gc
import random
from collections.abc import AsyncIterator
from types import FunctionType, ModuleType

import anyio
import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from dshd import Config, Context, Fiber, InactiveFiberError, SharedKey, Timing, plugin
from dshd.capabilities.llm.stream import TextDelta
from dshd.capabilities.session import (
    SESSION_CREATED,
    SESSION_EVENT,
    SESSIONS,
    AssistantChunk,
    EventData,
    Session,
    SessionAppended,
    SessionError,
    SessionEvent,
    Sessions,
    TurnStart,
)
from dshd.capabilities.session.live import live_sessions, open_live_sessions
from dshd.capabilities.values import EVENT_KINDS, Extension, Kind, MalformedValueError, SessionId, session_id
from dshd.kernel.errors import PluginExitError
from dshd.kernel.keys import DEFAULT_REALM, RegistryKey
from dshd.testing.contracts.sessions import A, B, Listener, SessionsContract, completed, consumer
from dshd.testing.kernel import running
from dshd_plugins.sessions import sessions

pytestmark = pytest.mark.anyio

NOTE = RegistryKey[str]("note")


class TestSessions(SessionsContract):
    plugin = sessions


def service(root: Context) -> Sessions:
    found = root.get(SESSIONS)
    assert found is not None
    return found


class Row(Config):
    text: str = "x"


# -- stages and removals


async def test_a_session_that_a_discarded_stage_created_is_gone_and_what_it_appended_elsewhere_stays() -> None:
    @plugin("candidate", config=Row, inject=[SESSIONS])
    async def candidate(ctx: Context, config: Row) -> None:
        live = ctx[SESSIONS].get(A)
        assert live is not None
        live.append(Extension("candidate/was-here", {}))
        ctx[SESSIONS].create(B).append(TurnStart(1))

    async with running(sessions) as root:
        mine, _ = await consumer(root)
        listener = Listener(root)
        session = mine.create(A)
        async with root.kernel.stage() as stage:
            root.plugin(candidate, stage=stage)
            await stage.settled()
            assert [live.id for live in mine.list()] == [A, B]
        assert mine.list() == [session]
        assert [event.type for event in session.events] == ["candidate/was-here"]
        assert listener.heard == ["created a with 0", "a 0", "created b with 0", "b 0"]


async def test_a_discarded_candidate_for_the_row_itself_changes_nothing() -> None:
    async with running() as root:
        row = root.plugin(sessions)
        await row.settled()
        mine, _ = await consumer(root)
        session = mine.create(A)
        async with root.kernel.stage() as stage:
            stage.replace(row, config={})
            await stage.settled()
            session.append(TurnStart(1))
        session.append(completed(1))
        assert service(root).get(A) is session
        assert len(session.events) == 2


async def test_a_row_that_takes_over_under_another_name_finds_the_sessions() -> None:
    async with running() as root:
        row = root.plugin(sessions)
        await row.settled()
        mine, _ = await consumer(root)
        session = mine.create(A)
        async with root.kernel.stage() as stage:
            stage.retire(row)
            root.plugin(sessions, id="other", stage=stage)
            await stage.settled()
            stage.commit()
        assert service(root).list() == [session]


async def test_who_holds_the_sessions_beside_the_row_keeps_them_while_the_row_is_away() -> None:
    async def open_agent(keeper: Context) -> AsyncIterator[Context]:
        await keeper.shared(live_sessions(DEFAULT_REALM), open_live_sessions)
        yield keeper

    @plugin("agents")
    async def agents(ctx: Context, config: Config) -> None:
        await ctx.shared(SharedKey[Context]("agent"), open_agent)

    async with running(agents) as root:
        row = root.plugin(sessions)
        await row.settled()
        listener = Listener(root)
        session = service(root).prepare(A)
        detach = service(root).enter(session)
        service(root).announce(session)
        await row.dispose()
        assert root.get(SESSIONS) is None
        session.append(TurnStart(1))
        await root.plugin(sessions, id="again").settled()
        assert service(root).list() == [session]
        session.append(completed(1))
        assert listener.heard == ["created a with 0", "a 0", "a 1"]
        detach()
        assert service(root).list() == []


async def test_without_the_row_nothing_is_kept() -> None:
    async with running() as root:
        row = root.plugin(sessions)
        await row.settled()
        left = service(root).prepare(A)
        service(root).enter(left)
        service(root).announce(left)
        listener = Listener(root)
        await row.dispose()
        await root.plugin(sessions).settled()
        assert service(root).list() == []
        service(root).create(A).append(TurnStart(1))
        with pytest.raises(SessionError, match="was detached"):
            left.append(TurnStart(1))  # of two logs of one id a store could keep neither
        assert listener.heard == ["created a with 0", "a 0"]


# -- realms


async def test_two_realms_have_sessions_of_their_own() -> None:
    async with running(sessions) as root:
        room = root.isolate(SESSIONS)
        await room.plugin(sessions, id="sessions in the room").settled()
        outside, _ = await consumer(root)
        inside, _ = await consumer(room, "insider")
        first, second = outside.create(A), inside.create(A)
        assert (outside.list(), inside.list()) == ([first], [second])
        with pytest.raises(SessionError, match="live already"):
            inside.enter(first)


# -- who creates


async def test_with_its_creator_a_session_loses_its_scope_before_it_leaves() -> None:
    async with running(sessions) as root:
        mine, owner = await consumer(root)
        session = mine.create(A)
        seen: list[Session | None] = []
        root.scoped(session.scope).defer(lambda: seen.append(service(root).get(A)))
        root.scoped(session.scope).registry(NOTE).add("n", "about a")
        await owner.dispose()
        assert seen == [session], "who cleans up for an agent still finds it"
        assert session.scope.closed
        assert list(root.scoped(session.scope).registry(NOTE)) == []
        with pytest.raises(SessionError, match="detached"):
            session.append(TurnStart(1))


async def test_a_cleanup_that_fails_or_hangs_does_not_keep_a_session_live() -> None:
    async with running(sessions, timing=Timing(load=5, unload=0.1, grace=0.05, slow=2)) as root:
        for cleanup in (anyio.sleep_forever, lambda: 1 / 0):
            mine, owner = await consumer(root)
            session = mine.create(A)
            helper: list[Context] = []

            @plugin("helper")
            async def helping(ctx: Context, config: Config, into: list[Context] = helper) -> None:
                into.append(ctx)

            fiber = root.plugin(helping)
            await fiber.settled()
            helper[0].scoped(session.scope).defer(cleanup)
            with capture_logs() as log, anyio.fail_after(20):
                await owner.dispose()
                await fiber.dispose()
            assert service(root).list() == []
            assert log, "and it is said whose cleanup it was"


async def test_a_session_created_for_a_scope_ends_with_it() -> None:
    async with running(sessions) as root:
        mine, _ = await consumer(root)
        parent = mine.create(A)
        contexts: list[Context] = []

        @plugin("brood", inject=[SESSIONS])
        async def brood(ctx: Context, config: Config) -> None:
            contexts.append(ctx)

        await root.plugin(brood).settled()
        contexts[0].scoped(parent.scope)[SESSIONS].create(B)
        assert len(mine.list()) == 2
        await parent.scope.close()
        assert mine.list() == [parent]


async def test_a_refused_session_leaves_no_contribution_behind() -> None:
    async with running(sessions) as root:
        mine, owner = await consumer(root)
        scopes = []

        def contribute(session: Session) -> None:
            scopes.append(session.scope)
            root.scoped(session.scope).registry(NOTE).add("n", "for it")

        def refuse(session: Session) -> None:
            raise SystemExit("no")

        root.on(SESSION_CREATED, contribute)
        root.on(SESSION_CREATED, refuse)
        effects = len(owner.effects)
        with pytest.raises(PluginExitError, match="no"):
            mine.create(A)
        assert mine.list() == []
        with anyio.fail_after(5):
            while len(owner.effects) > effects:
                await anyio.lowlevel.checkpoint()
        assert scopes[0].closed
        assert list(root.scoped(scopes[0]).registry(NOTE)) == []


async def test_who_is_closing_creates_nothing() -> None:
    raised: list[Exception] = []

    @plugin("late", inject=[SESSIONS])
    async def late(ctx: Context, config: Config) -> AsyncIterator[None]:
        yield
        try:
            ctx[SESSIONS].create(A)
        except InactiveFiberError as exc:
            raised.append(exc)

    async with running(sessions) as root:
        listener = Listener(root)
        fiber = root.plugin(late)
        await fiber.settled()
        await fiber.dispose()
        assert len(raised) == 1
        assert (service(root).list(), listener.heard) == ([], [])


# -- what a session is checked by, and holds on to


class Todo(BaseModel):
    todos: list[str]


async def test_events_are_checked_by_the_kinds_registered_now_and_kept_when_nobody_registers_them() -> None:
    @plugin("todo")
    async def todo(ctx: Context, config: Config) -> None:
        ctx.registry(EVENT_KINDS).add("todo/write", Kind(model=Todo))

    async with running(sessions) as root:
        session = (await consumer(root))[0].create(A)
        wrong = Extension("todo/write", {"todos": 5})
        session.append(wrong)
        fiber = root.plugin(todo)
        await fiber.settled()
        with pytest.raises(MalformedValueError, match="todo/write"):
            session.append(wrong)
        branch = service(root).fork(session)
        with pytest.raises(MalformedValueError, match="todo/write"):
            branch.append(wrong)
        await fiber.dispose()
        session.append(wrong)
        assert [event.data for event in session.events] == [wrong, wrong]


def reached(start: object, stop: object) -> list[object]:
    """Everything that `start` holds on to, not looking into modules, classes and `stop`."""
    seen: dict[int, object] = {}
    waiting = [start]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or thing is stop or isinstance(thing, (type, ModuleType)):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, FunctionType):
            waiting += thing.__closure__ or ()
        else:
            waiting += gc.get_referents(thing)
    return list(seen.values())


async def test_a_live_session_holds_on_to_no_row_and_no_consumer() -> None:
    keepers: list[Context] = []

    @plugin("beside")
    async def beside(ctx: Context, config: Config) -> None:
        keepers.append((await ctx.shared(live_sessions(DEFAULT_REALM), open_live_sessions)).keeper)

    async with running(sessions, beside) as root:
        mine, _ = await consumer(root)
        session = mine.create(A)
        session.append(TurnStart(1))
        fork = mine.fork(mine.create(B))
        mine.enter(fork)
        mine.announce(fork)
        for live in (session, fork):
            held = reached(live, keepers[0])
            assert any(isinstance(thing, TurnStart) for thing in held) is (live is session)
            assert not [thing for thing in held if isinstance(thing, (Context, Fiber))]


# -- everything at once


class Recorder:
    """What a store does: takes over the log when it hears of a session, then each event once."""

    def __init__(self, ctx: Context) -> None:
        self.logs: dict[Session, list[SessionEvent]] = {}
        ctx.on(SESSION_CREATED, self.created)
        ctx.on(SESSION_EVENT, self.appended)

    def created(self, session: Session) -> None:
        assert session not in self.logs
        self.logs[session] = list(session.events)

    def appended(self, appended: SessionAppended) -> None:
        log = self.logs[appended.session]
        if appended.event.seq >= len(log):
            assert appended.event.seq == len(log), "told in the order of the log"
            log.append(appended.event)


@pytest.mark.parametrize("seed", range(12))
async def test_replacing_discarding_failing_and_appending_in_any_order_loses_nothing(seed: int) -> None:
    dice = random.Random(seed)

    @plugin("noisy", config=Row)
    async def noisy(ctx: Context, config: Row) -> None:
        def hear(appended: SessionAppended) -> None:
            if config.text == "answers" and isinstance(appended.event.data, TurnStart):
                appended.session.append(Extension("noise", {"of": appended.event.seq}))
            if config.text == "fails":
                raise RuntimeError("noise")

        ctx.on(SESSION_EVENT, hear)

    async with running(noisy) as root:
        recorder = Recorder(root)
        row = root.plugin(sessions)
        await row.settled()
        listening = next(fiber for fiber in root.fiber.kids if fiber.path == "noisy")
        owners: list[tuple[Sessions, Fiber]] = []
        model: dict[SessionId, Session] = {}
        owned: dict[SessionId, Fiber] = {}
        appended: dict[Session, list[EventData]] = {}
        busy = True

        async def talk() -> None:
            while busy:
                for session in list(model.values()):
                    data: EventData
                    for data in (TurnStart(1), AssistantChunk(1, 1, TextDelta(0, "x")), completed(1)):
                        session.append(data)
                        appended[session].append(data)
                    if dice.random() < 0.3:
                        await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()

        with capture_logs(), anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk)
                for turn in range(40):
                    match dice.choice(["create", "create", "create", "dispose", "replace", "discard", "noise", "veto"]):
                        case "create":
                            if not owners or dice.random() < 0.5:
                                owners.append(await consumer(root, f"owner {turn}"))
                            mine, owner = dice.choice(owners)
                            identity = session_id(f"s{dice.randrange(6)}")
                            if identity in model:
                                with pytest.raises(SessionError):
                                    mine.create(identity)
                            else:
                                model[identity] = mine.create(identity)
                                owned[identity], appended[model[identity]] = owner, []
                        case "dispose" if owners:
                            _, owner = owners.pop(dice.randrange(len(owners)))
                            for identity in [name for name, fiber in owned.items() if fiber is owner]:
                                del model[identity], owned[identity]
                            await owner.dispose()
                        case "replace":
                            row = await row.update({})
                        case "discard":
                            async with root.kernel.stage() as stage:
                                stage.replace(row, config={})
                                await stage.settled()
                                await anyio.lowlevel.checkpoint()
                        case "noise":
                            text = dice.choice(["answers", "fails", "quiet"])
                            listening = await listening.update({"text": text})
                        case "veto":

                            def refuse(session: Session) -> None:
                                raise PermissionError

                            mine = service(root)
                            veto = root.on(SESSION_CREATED, refuse)
                            session = mine.prepare(session_id("never"))
                            detach = mine.enter(session)
                            with pytest.raises(PermissionError):
                                mine.announce(session)
                            detach()
                            await veto.dispose()
                            recorder.logs.pop(session, None)
                    assert service(root).list() == list(model.values())
                busy = False
        assert sum(map(len, appended.values())) > 50
        for session, data_of in appended.items():
            assert [event.data for event in session.events if event.type != "noise"] == data_of
            assert [event.seq for event in session.events] == list(range(len(session.events)))
            assert recorder.logs[session] == list(session.events)
