"""The suite for whoever implements `SessionPersistence`.

class TestMine(PersistenceContract):
    @pytest.fixture(autouse=True)
    def where(self, tmp_path: Path) -> None:
        self.path = tmp_path

    @asynccontextmanager
    async def opened(self, known: Collection[str] = ()) -> AsyncIterator[SessionPersistence]:
        async with open_my_store(self.path, known) as store:
            yield store
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any

import anyio

from dshd.capabilities.llm import EpochHeader, LlmCallConfig
from dshd.capabilities.llm.stream import TextDelta, TokenUsage, ToolCallDelta
from dshd.capabilities.session import (
    AssistantChunk,
    AssistantMessage,
    EventData,
    InboxSpliced,
    Replace,
    RequestHeader,
    Session,
    SessionError,
    SessionEvent,
    SessionHeader,
    SessionPersistence,
    StepEnd,
    StepStart,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    UserMessageAdded,
)
from dshd.capabilities.values import (
    CallId,
    Extension,
    MalformedValueError,
    Message,
    MessageId,
    ModelSource,
    PluginSource,
    Snapshot,
    SnapshotSection,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    UnknownKindError,
    UserMessage,
    session_id,
    user_message,
)

from .expect import refused, same

ODD_IDS = (
    "plain", "Plain", "PLAIN", "../x", "..", ".", "a/b", "a%2Fb", "/etc/passwd", "a\\b", "C:con", "a\0b", "a\nb", " ",
    "*", "-rf", "~", "x.jsonl", "x.jsonl.gz", "naïve", "nai\u0308ve", "🦑", "\ud800", "x" * 300, "x" * 301,
)  # fmt: skip
"""Ids that tempt a store to leave its place, or to take two for one."""

HARD_VALUES: dict[str, Any] = {
    "surrogates": ["\ud83d", "x\udc00", "\udfff\ud800"],
    "text": ["", "\0\x1b\x7f\u2028\ufeff", "é🦑\U0010ffff", '"\\\n\r\t/', "x" * 100_000],
    "integers": [0, -1, 2**53 + 1, -(2**64), 10**2500 + 7],
    "floats": [0.1, -0.0, 1e308, 5e-324, 1.0],
    "plain": [None, True, False, [], {}, [[[[]]]]],
    "": {"\ud800": 1, "a.b": 2, "$ref": 3, "__proto__": 4},
}
"""JSON that writers and readers like to lose."""

A, B = session_id("a"), session_id("b")


def header(id: str = A, **more: Any) -> SessionHeader:
    return SessionHeader(id=session_id(id), created_at=1000, **more)


def log(*data: EventData, start: int = 0) -> list[SessionEvent]:
    """Events with these data, numbered from `start`."""
    surface = (UserMessageAdded, AssistantMessage, ToolResult)
    return [
        SessionEvent(seq, 1000 + seq, each, "append" if isinstance(each, surface) else None, None,
                     isinstance(each, Extension) and not each.required)
        for seq, each in zip(count(start), data, strict=False)
    ]  # fmt: skip


def asked(text: str = "?") -> UserMessageAdded:
    return UserMessageAdded(user_message(text))


def turn(number: int = 1) -> tuple[EventData, ...]:
    return TurnStart(number), asked(f"question {number}"), TurnEnd(number, TurnEndReason("completed"))


def called(*calls: str) -> AssistantMessage:
    blocks = tuple(ToolCallBlock(CallId(call), "search", "{}") for call in calls)
    return AssistantMessage(1, 1, Message(MessageId("m"), "assistant", blocks, ModelSource("p", "m")))


def resulted(call: str) -> ToolResult:
    block = ToolResultBlock(CallId(call), (TextBlock("found"),))
    return ToolResult(1, 1, UserMessage(MessageId(f"r{call}"), "user", (block,), ToolSource("search")))


class PersistenceContract(ABC):
    """Subclass it under a name that begins with `Test`, in a module whose tests are marked `anyio`."""

    @abstractmethod
    def opened(self, known: Collection[str] = ()) -> AbstractAsyncContextManager[SessionPersistence]:
        """The store of this test, where event types in `known` are registered.

        The first time it is empty. Opened again in one test it has what it had, as after a restart.
        """

    async def stored(self, *data: EventData, id: str = A) -> None:
        """A log with these data is in the store, which is closed again."""
        async with self.opened() as store:
            await store.create(header(id))
            await store.append(session_id(id), log(*data))

    async def reread(self, id: str = A, known: Collection[str] = ()) -> Sequence[SessionEvent]:
        """What the store gives back after a restart."""
        async with self.opened(known) as store:
            return list((await store.load(session_id(id))).events)

    # -- what is kept

    async def test_a_log_is_read_back_as_it_was_written_also_after_a_restart(self) -> None:
        session = Session(header())
        session.append(TurnStart(1, 7))
        session.append(asked())
        session.append(StepStart(1, 1))
        session.append(RequestHeader(EpochHeader(config=LlmCallConfig(model="m"), system="Be kind."), "initial"))
        pieces = [
            session.append(AssistantChunk(1, 1, piece)).seq
            for piece in (TextDelta(0, "I "), ToolCallDelta(1, "{}", CallId("c"), "search"))
        ]
        answer = called("c").message
        session.append(AssistantMessage(1, 1, answer, TokenUsage(input_tokens=3)), source_event_seqs=pieces)
        session.append(ToolCalled(1, 1, CallId("c"), "search", "{}"))
        session.append(ToolResult(1, 1, resulted("c").message, ToolError("x", "Y"), {"ms": 1.5}))
        session.append(InboxSpliced("next-step", 0, 1, (user_message("steer"),)))
        session.append(StepEnd(1, 1))
        session.append(TurnEnd(1, TurnEndReason("budget", {"spent": 3})))
        snapshot = PluginSource("git", Snapshot((SnapshotSection("status", "clean"),)))
        session.append(UserMessageAdded(user_message("status", snapshot)))
        session.append(asked("in short"), surface_op=Replace(1, 6), source_event_seqs=[1, 6])
        async with self.opened() as store:
            await store.create(session.header)
            await store.append(A, session.events)
            loaded = await store.load(A)
            same((loaded.header, list(loaded.events)), (session.header, list(session.events)))
        reread = await self.reread()
        same(reread, list(session.events))
        same(Session(header(), reread).derive_messages(), session.derive_messages())

    async def test_a_log_grows_by_appends_of_any_size_and_over_restarts(self) -> None:
        data = [piece for number in range(1, 8) for piece in turn(number)]
        events = log(*data)
        async with self.opened() as store:
            await store.create(header())
            await store.append(A, events[:1])
            await store.append(A, [])
            await store.append(A, events[1:9])
        async with self.opened() as store:
            same(list((await store.load(A)).events), events[:9])
            await store.append(A, events[9:20])
            await store.append(A, events[20:])
        same(await self.reread(), events)

    async def test_the_header_is_kept_whole(self) -> None:
        full = header(cwd="/srv/\ud800", parent_session=B, seed_length=2, origin="subagent", delegation_depth=3)
        async with self.opened() as store:
            await store.create(full)
            await store.append(A, log(*turn()))
        async with self.opened() as store:
            same((await store.load(A)).header, full)
            same(await store.list(), [full])

    async def test_no_json_is_lost(self) -> None:
        deep: Any = "bottom"
        for _ in range(100):
            deep = [deep]
        data = (Extension("x/hard", {**HARD_VALUES, "deep": deep}), asked("\ud83d alone"), Extension("x/é\udc80", {}))
        await self.stored(*data)
        reread = await self.reread()
        same([event.data for event in reread], list(data))
        same(str(reread[0].data.data["floats"]), "(0.1, -0.0, 1e+308, 5e-324, 1.0)")  # type: ignore[union-attr]

    async def test_types_nobody_registers_any_more_are_kept_unless_they_must_be_understood(self) -> None:
        free, strict = Extension("memo/write", {"text": "x"}), Extension("vault/lock", {"key": 1}, required=True)
        await self.stored(free, strict, *turn())
        same([event.data for event in await self.reread(known={"vault/lock"})][:2], [free, strict])
        with refused(UnknownKindError, "vault/lock", "1"):
            await self.reread(known={"memo/write"})
        same(len(await self.reread(known={"vault/lock"})), 5)

    async def test_what_is_written_is_what_was_handed_over_whatever_becomes_of_the_list(self) -> None:
        events = log(*turn())
        given = list(events)
        async with self.opened() as store:
            await store.create(header())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.append, A, given)
                await anyio.lowlevel.checkpoint()
                given.reverse()
                given.pop()
            given.clear()
            same(list((await store.load(A)).events), events)
        same(await self.reread(), events)

    # -- which sessions

    async def test_all_logs_are_listed_each_once(self) -> None:
        async with self.opened() as store:
            same(await store.list(), [])
            for id in ("a", "b", "c"):
                await store.create(header(id, cwd=f"/{id}"))
                await store.append(session_id(id), log(*turn()))
            same(sorted(each.id for each in await store.list()), ["a", "b", "c"])
        async with self.opened() as store:
            same(sorted(each.cwd or "" for each in await store.list()), ["/a", "/b", "/c"])

    async def test_an_id_is_only_an_id_whatever_it_looks_like(self) -> None:
        async with self.opened() as store:
            for id in ODD_IDS:
                await store.create(header(id))
                await store.append(session_id(id), log(asked(id)))
        async with self.opened() as store:
            same(sorted(each.id for each in await store.list()), sorted(ODD_IDS))
            for id in ODD_IDS:
                loaded = await store.load(session_id(id))
                same((loaded.header.id, len(loaded.events)), (id, 1))
                found = loaded.events[0].data
                assert isinstance(found, UserMessageAdded), f"{id!r} has another log"
                same(found.message.content, (TextBlock(id),))

    async def test_an_id_that_is_taken_is_refused(self) -> None:
        async with self.opened() as store:
            await store.create(header())
            with refused(SessionError, "'a'"):
                await store.create(header(cwd="/other"))
            await store.append(A, log(*turn()))
        async with self.opened() as store:
            with refused(SessionError, "'a'"):
                await store.create(header())
        same(len(await self.reread()), 3)

    async def test_what_is_not_there_is_an_error_that_names_it(self) -> None:
        async with self.opened() as store:
            for id in ("b", "../b"):
                with refused(SessionError, repr(id)):
                    await store.load(session_id(id))
                with refused(SessionError, repr(id)):
                    await store.append(session_id(id), log(*turn()))
            same(await store.list(), [])

    async def test_many_logs_grow_at_once_without_mixing(self) -> None:
        ids = [session_id(f"s{number}") for number in range(8)]
        async with self.opened() as store:

            async def grow(number: int) -> None:
                await store.create(header(ids[number]))
                for start in range(0, 12, 3):
                    await store.append(ids[number], log(*turn(number), start=start))

            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(grow, number)
        for number, id in enumerate(ids):
            events = await self.reread(id)
            same([event.seq for event in events], list(range(12)))
            same({event.data.turn for event in events if isinstance(event.data, TurnStart)}, {number})

    # -- what is refused

    async def test_an_append_begins_with_the_next_number_and_has_no_gap(self) -> None:
        async with self.opened() as store:
            await store.create(header())
            with refused(SessionError, "1"):
                await store.append(A, log(*turn(), start=1))
            await store.append(A, log(*turn()))
            for start in (0, 2, 4, 99):
                with refused(SessionError, str(start)):
                    await store.append(A, log(*turn(2), start=start))
            following = log(*turn(2), start=3)
            for broken in (following[:1] + following[2:], following[::-1], following[:1] * 2):
                with refused(SessionError):
                    await store.append(A, broken)
            same(len((await store.load(A)).events), 3)
            await store.append(A, following)
        same([event.seq for event in await self.reread()], [0, 1, 2, 3, 4, 5])

    async def test_data_that_is_no_json_is_refused_with_its_type_and_nothing_of_the_batch_is_kept(self) -> None:
        async with self.opened() as store:
            await store.create(header())
            await store.append(A, log(*turn()))
            for bad in (TextDelta(0, b"x"), TextDelta(0, float("nan")), object()):  # type: ignore[arg-type]
                batch = log(TurnStart(2), AssistantChunk(2, 1, bad), start=3)  # type: ignore[arg-type]
                with refused(MalformedValueError, "assistant/chunk"):
                    await store.append(A, batch)
            same(len((await store.load(A)).events), 3)
            await store.append(A, log(*turn(2), start=3))
        same([event.seq for event in await self.reread()], [0, 1, 2, 3, 4, 5])

    async def test_an_append_that_is_cancelled_is_there_whole_or_not_at_all(self) -> None:
        async with self.opened() as store:
            await store.create(header())
            await store.append(A, log(*turn()))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.append(A, log(*turn(2), start=3))
        length = len(await self.reread())
        assert length in (3, 6), f"{length - 3} of 3 events were kept"
        async with self.opened() as store:
            await store.load(A)
            await store.append(A, log(*turn(3), start=length))
        same([event.seq for event in await self.reread()], list(range(length + 3)))

    # -- what broke off

    async def test_a_turn_that_broke_off_is_closed_when_it_is_loaded_and_what_was_written_stays(self) -> None:
        written = (
            *turn(1), TurnStart(2), asked(), StepStart(2, 1), called("x", "y", "z"), ToolCalled(1, 1, CallId("x"),
            "search", "{}"), resulted("x"), ToolCalled(1, 1, CallId("y"), "search", "{}"),
        )  # fmt: skip
        await self.stored(*written)
        events = await self.reread()
        same([event.seq for event in events], list(range(len(events))))
        same([event.data for event in events[: len(written)]], list(written))
        closing = events[len(written) :]
        results = [event.data for event in closing if isinstance(event.data, ToolResult)]
        same([result.result.tool_call_id for result in results], ["y", "z"])
        assert all(result.error and result.result.is_error for result in results), "they are errors"
        same([event.type for event in closing[-2:]], ["step/end", "turn/end"])
        same((closing[-2].data, closing[-1].data), (StepEnd(2, 1), TurnEnd(2, TurnEndReason("interrupted"))))
        resumed = Session(header(), events)
        same((resumed.open_turn, resumed.last_turn), (None, 2))

    async def test_after_a_repair_the_log_goes_on_where_it_ended_and_is_the_same_each_time(self) -> None:
        await self.stored(TurnStart(1), asked(), StepStart(1, 1), called("x"))
        async with self.opened() as store:
            first = list((await store.load(A)).events)
            await store.append(A, log(*turn(2), start=len(first)))
        again = await self.reread()
        same([event.seq for event in again], list(range(len(first) + 3)))
        same(again[: len(first)], first)

    async def test_a_log_that_ends_with_its_turn_is_not_touched(self) -> None:
        await self.stored(*turn(1), *turn(2), asked("between turns"))
        same(len(await self.reread()), 7)
        same(len(await self.reread()), 7)
