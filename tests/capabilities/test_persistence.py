"""The contract of stores, run against one in memory, and against some that are broken in one way each."""

import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from dshd.capabilities.session import (
    KnownKinds,
    Session,
    SessionError,
    SessionEvent,
    SessionHeader,
    StepEnd,
    StepStart,
    StoredSession,
    ToolCalled,
    ToolResult,
    TurnEnd,
    TurnStart,
    event_from_json,
)
from dshd.capabilities.session.admission import admit
from dshd.capabilities.session.recovery import closing_events
from dshd.capabilities.values import CallId, SessionId
from dshd.testing.contracts.persistence import PersistenceContract, asked, called, header, log, resulted, turn

pytestmark = pytest.mark.anyio


class Memory:
    """Logs as lines of JSON. `disk` is what a restart leaves."""

    def __init__(self, disk: dict[str, list[str]], known: Collection[str]) -> None:
        self.disk = disk
        self.known = KnownKinds(events=known)

    def written(self, event: SessionEvent) -> str:
        return json.dumps(event.to_json())

    def read(self, line: str) -> SessionEvent:
        return event_from_json(json.loads(line), self.known)

    def place(self, id: SessionId) -> str:
        return id

    def lines(self, id: SessionId) -> list[str]:
        try:
            return self.disk[self.place(id)]
        except KeyError:
            raise SessionError(f"there is no log of session {id!r}") from None

    def check(self, events: Sequence[SessionEvent], following: int) -> None:
        for wanted, event in enumerate(events, following):
            if event.seq != wanted:
                raise SessionError(f"the next event of the log is {wanted}, not {event.seq}")
            admit(event.data)

    async def create(self, header: SessionHeader) -> None:
        if self.place(header.id) in self.disk:
            raise SessionError(f"there is a log of session {header.id!r}")
        self.disk[self.place(header.id)] = [json.dumps(header.to_json())]

    async def append(self, id: SessionId, events: Sequence[SessionEvent]) -> None:
        lines = self.lines(id)
        self.check(events, len(lines) - 1)
        lines.extend([self.written(event) for event in events])

    async def load(self, id: SessionId) -> StoredSession:
        lines = self.lines(id)
        events = [self.read(line) for line in lines[1:]]
        closing = closing_events(events, time=5)
        lines.extend([self.written(event) for event in closing])
        return StoredSession(SessionHeader.from_json(json.loads(lines[0])), [*events, *closing])

    async def list(self) -> list[SessionHeader]:
        return [SessionHeader.from_json(json.loads(lines[0])) for lines in self.disk.values()]


class MemoryContract(PersistenceContract):
    kind: type[Memory] = Memory
    disk: dict[str, list[str]]

    @asynccontextmanager
    async def opened(self, known: Collection[str] = ()) -> AsyncIterator[Any]:
        self.disk = getattr(self, "disk", {})
        yield self.kind(self.disk, known)


class TestMemory(MemoryContract):
    pass


# -- a suite that cannot fail proves nothing


class TakesGaps(Memory):
    def check(self, events: Sequence[SessionEvent], following: int) -> None:
        pass


class TakesAnything(Memory):
    def check(self, events: Sequence[SessionEvent], following: int) -> None:
        for wanted, event in enumerate(events, following):
            if event.seq != wanted:
                raise SessionError(f"the next event is {wanted}, not {event.seq}")

    def written(self, event: SessionEvent) -> str:
        return json.dumps(event.to_json(), default=str)


class WritesUtf8(Memory):
    def written(self, event: SessionEvent) -> str:
        return json.dumps(event.to_json(), ensure_ascii=False).encode("utf-8", "replace").decode()


class RoundsNumbers(Memory):
    def read(self, line: str) -> SessionEvent:
        return event_from_json(json.loads(line, parse_int=lambda text: int(float(text[:300]))), self.known)


class SkipsUnknown(Memory):
    async def load(self, id: SessionId) -> StoredSession:
        loaded = await super().load(id)
        return StoredSession(loaded.header, [event for event in loaded.events if "/write" not in event.type])


class AcceptsUnknown(Memory):
    def read(self, line: str) -> SessionEvent:
        return event_from_json(json.loads(line))


class FoldsCase(Memory):
    def place(self, id: SessionId) -> str:
        return id.lower()


class UsesPaths(Memory):
    def place(self, id: SessionId) -> str:
        return id.replace("/", "%2F")


class Invents(Memory):
    def lines(self, id: SessionId) -> list[str]:
        return self.disk.setdefault(id, [json.dumps(header(id).to_json())])


class Overwrites(Memory):
    async def create(self, header: SessionHeader) -> None:
        self.disk[header.id] = [json.dumps(header.to_json())]


class ForgetsTheHeader(Memory):
    async def create(self, header: SessionHeader) -> None:
        await super().create(SessionHeader(id=header.id, created_at=header.created_at))


class ForgetsTheSurface(Memory):
    def read(self, line: str) -> SessionEvent:
        written = json.loads(line)
        written.pop("surface_op", None)
        return event_from_json(written, self.known)


class DoesNotRepair(Memory):
    async def load(self, id: SessionId) -> StoredSession:
        lines = self.lines(id)
        return StoredSession(SessionHeader.from_json(json.loads(lines[0])), [self.read(line) for line in lines[1:]])


class RepairsByCutting(Memory):
    async def load(self, id: SessionId) -> StoredSession:
        lines = self.lines(id)
        while len(lines) > 1 and self.read(lines[-1]).type != "turn/end":
            lines.pop()
        return await super().load(id)


class DoesNotKeepItsRepair(Memory):
    async def load(self, id: SessionId) -> StoredSession:
        before = list(self.lines(id))
        loaded = await super().load(id)
        self.disk[id][:] = before
        return loaded


class KeepsTheList(Memory):
    async def append(self, id: SessionId, events: Sequence[SessionEvent]) -> None:
        self.check(events, len(self.lines(id)) - 1)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.lines(id).extend([self.written(event) for event in events])


class WritesHalves(Memory):
    async def append(self, id: SessionId, events: Sequence[SessionEvent]) -> None:
        self.check(events, len(self.lines(id)) - 1)
        for event in list(events):
            self.lines(id).append(self.written(event))
            await anyio.lowlevel.checkpoint()


BROKEN: list[tuple[type[Memory], str]] = [
    (TakesGaps, "test_an_append_begins_with_the_next_number_and_has_no_gap"),
    (TakesAnything, "test_data_that_is_no_json_is_refused_with_its_type_and_nothing_of_the_batch_is_kept"),
    (WritesUtf8, "test_no_json_is_lost"),
    (RoundsNumbers, "test_no_json_is_lost"),
    (SkipsUnknown, "test_types_nobody_registers_any_more_are_kept_unless_they_must_be_understood"),
    (AcceptsUnknown, "test_types_nobody_registers_any_more_are_kept_unless_they_must_be_understood"),
    (FoldsCase, "test_an_id_is_only_an_id_whatever_it_looks_like"),
    (UsesPaths, "test_an_id_is_only_an_id_whatever_it_looks_like"),
    (Invents, "test_what_is_not_there_is_an_error_that_names_it"),
    (Overwrites, "test_an_id_that_is_taken_is_refused"),
    (ForgetsTheHeader, "test_the_header_is_kept_whole"),
    (ForgetsTheSurface, "test_a_log_is_read_back_as_it_was_written_also_after_a_restart"),
    (DoesNotRepair, "test_a_turn_that_broke_off_is_closed_when_it_is_loaded_and_what_was_written_stays"),
    (RepairsByCutting, "test_a_log_that_ends_with_its_turn_is_not_touched"),
    (DoesNotKeepItsRepair, "test_after_a_repair_the_log_goes_on_where_it_ended_and_is_the_same_each_time"),
    (KeepsTheList, "test_what_is_written_is_what_was_handed_over_whatever_becomes_of_the_list"),
    (WritesHalves, "test_an_append_that_is_cancelled_is_there_whole_or_not_at_all"),
]


@pytest.mark.parametrize(("kind", "test"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
async def test_a_store_that_is_broken_in_this_way_fails_the_suite(kind: type[Memory], test: str) -> None:
    suite = type("Broken", (MemoryContract,), {"kind": kind})()
    run: Callable[[], Any] = getattr(suite, test)
    with pytest.raises((AssertionError, SessionError, ValueError)):
        await run()


# -- how a log that breaks off is closed


def closed(*data: Any) -> list[Any]:
    return [event.data for event in closing_events(log(*data), time=9)]


def test_a_log_outside_a_turn_needs_no_closing() -> None:
    assert closed() == []
    assert closed(*turn(1)) == []
    assert closed(*turn(1), asked()) == []


def test_an_open_turn_is_ended_as_interrupted_with_its_step_if_one_is_open() -> None:
    assert [data.to_json() for data in closed(TurnStart(3))] == [{"turn": 3, "reason": {"kind": "interrupted"}}]
    assert closed(TurnStart(3), StepStart(3, 2))[0] == StepEnd(3, 2)
    assert len(closed(TurnStart(3), StepStart(3, 2), StepEnd(3, 2))) == 1


def test_calls_without_a_result_get_one_in_the_order_of_the_calls_and_say_whether_they_ran() -> None:
    begun = (TurnStart(1), StepStart(1, 1), called("x", "y", "z"), ToolCalled(1, 1, CallId("y"), "search", "{}"))
    added = closing_events(log(*begun, resulted("x")), time=9)
    assert [event.type for event in added] == ["tool/result", "tool/call", "tool/result", "step/end", "turn/end"]
    assert [(event.seq, event.time) for event in added] == [(5, 9), (6, 9), (7, 9), (8, 9), (9, 9)]
    errors = [event.data.error.code for event in added if isinstance(event.data, ToolResult) and event.data.error]
    assert errors == ["INTERRUPTED", "ABORTED_BEFORE_DISPATCH"]
    whole = Session(header(), [*log(*begun, resulted("x")), *added])
    assert whole.open_turn is None
    assert isinstance(whole.events[-1].data, TurnEnd)


def test_calls_of_earlier_turns_are_left_alone() -> None:
    assert closed(TurnStart(1), called("x"), *turn(2), TurnStart(3)) == closed(TurnStart(3))
