"""`Session`: what may enter a log, what it says of itself, and in which order it is told."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from dshd.capabilities.llm import EpochHeader, LlmCallConfig
from dshd.capabilities.llm.stream import BlockStart, Finish, Stop, TextDelta, TokenUsage, ToolCallDelta, UsageReport
from dshd.capabilities.session import (
    AssistantChunk,
    AssistantMessage,
    CompactSummary,
    EndSeed,
    EventData,
    InboxSpliced,
    Replace,
    RequestContext,
    RequestHeader,
    Session,
    SessionError,
    SessionEvent,
    SessionHeader,
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
from dshd.capabilities.session.log import MOST_NESTED
from dshd.capabilities.values import (
    BLOCK_KINDS,
    EVENT_KINDS,
    SOURCE_KINDS,
    TURN_END_KINDS,
    CallId,
    Extension,
    Kind,
    LossyValueError,
    MalformedValueError,
    Message,
    MessageId,
    ModelSource,
    TextBlock,
    ToolResultBlock,
    ToolSource,
    UserMessage,
    UserSource,
    session_id,
    user_message,
)

HEADER = SessionHeader(id=session_id("s"), created_at=0)


def new(tell: Callable[[SessionEvent], None] = lambda _: None) -> Session:
    return Session(HEADER, tell=tell, clock=lambda: 1000)


def asked(text: str = "hello") -> UserMessageAdded:
    return UserMessageAdded(user_message(text))


def answered(text: str = "hi") -> AssistantMessage:
    content = (TextBlock(text),) if text else ()
    return AssistantMessage(1, 1, Message(MessageId(f"answer {text}"), "assistant", content, ModelSource("p", "m")))


def result(call: str = "c", **more: Any) -> ToolResult:
    block = ToolResultBlock(CallId(call), (TextBlock("done"),))
    return ToolResult(1, 1, UserMessage(MessageId(f"result {call}"), "user", (block,), ToolSource("t")), **more)


def chunk(text: Any = "x", index: Any = 0) -> AssistantChunk:
    return AssistantChunk(1, 1, TextDelta(index, text))


# -- what an event is


def test_events_are_numbered_from_0_without_gaps_and_stamped_with_the_time() -> None:
    times = iter([5, 7, 7, 6])
    session = Session(HEADER, clock=lambda: next(times))
    appended = [session.append(data) for data in (TurnStart(1), asked(), chunk(), TurnEnd(1, TurnEndReason("x")))]
    assert list(session.events) == appended
    assert [(event.seq, event.time) for event in session.events] == [(0, 5), (1, 7), (2, 7), (3, 6)]


def test_without_a_clock_of_its_own_the_time_is_that_of_the_machine_in_milliseconds() -> None:
    stamp = Session(HEADER).append(TurnStart(1)).time
    assert 1_500_000_000_000 < stamp < 10_000_000_000_000


def test_the_log_is_read_only_and_live() -> None:
    session = new()
    events = session.events
    first = session.append(TurnStart(1))
    second = session.append(TurnEnd(1, TurnEndReason("completed")))
    assert len(events) == 2
    assert (events[0], events[-1], events[0:2]) == (first, second, (first, second))
    assert not hasattr(events, "append")
    with pytest.raises(TypeError):
        events[0] = second  # type: ignore[index]
    with pytest.raises(IndexError):
        events[2]


def test_an_extension_is_ignorable_unless_it_is_marked_required() -> None:
    session = new()
    assert session.append(Extension("a/b", {})).ignorable
    assert not session.append(Extension("a/b", {}, required=True)).ignorable
    marked = session.append(Extension("a/b", {"x": 1}), ignorable=False)
    assert not marked.ignorable
    assert marked.data == Extension("a/b", {"x": 1}, required=True)
    assert session.append(Extension("a/b", {}), ignorable=True).ignorable
    with pytest.raises(SessionError, match="required"):
        session.append(Extension("a/b", {}, required=True), ignorable=True)
    assert not session.append(TurnStart(1)).ignorable
    assert len(session.events) == 5


# -- what may not enter


class Colour(StrEnum):
    RED = "red"


class Impostor(UserMessage):
    pass


LYING: list[tuple[str, Any]] = [
    ("assistant/chunk", chunk(b"x")),
    ("assistant/chunk", chunk("x", -1)),
    ("assistant/chunk", chunk("x", True)),
    ("assistant/chunk", chunk("x", 2**60)),
    ("assistant/chunk", AssistantChunk("1", 1, TextDelta(0, "x"))),  # type: ignore[arg-type]
    ("assistant/chunk", AssistantChunk(1, -1, TextDelta(0, "x"))),
    ("assistant/chunk", AssistantChunk(1, 1, ToolCallDelta(0, {"a": 1}))),  # type: ignore[arg-type]
    ("assistant/chunk", AssistantChunk(1, 1, ToolCallDelta(0, "", CallId("c"), 5))),  # type: ignore[arg-type]
    ("assistant/chunk", AssistantChunk(1, 1, BlockStart(0, "image"))),  # type: ignore[arg-type]
    ("assistant/chunk", AssistantChunk(1, 1, Finish("stop"))),  # type: ignore[arg-type]
    ("assistant/chunk", AssistantChunk(1, 1, Finish(Extension("stop", {})))),
    ("assistant/chunk", AssistantChunk(1, 1, UsageReport({"input_tokens": 1}))),  # type: ignore[arg-type]
    ("assistant/chunk", AssistantChunk(1, 1, "x")),  # type: ignore[arg-type]
    ("turn/start", TurnStart(None)),  # type: ignore[arg-type]
    ("turn/start", TurnStart(1, 10**5000)),
    ("turn/start", TurnStart(1, 1.0)),  # type: ignore[arg-type]
    ("turn/end", TurnEnd(1, "completed")),  # type: ignore[arg-type]
    ("turn/end", TurnEnd(1, TurnEndReason(""))),
    ("step/start", StepStart(1, False)),
    ("user/message", UserMessageAdded("hello")),  # type: ignore[arg-type]
    ("user/message", UserMessageAdded(Impostor(MessageId("m"), "user", (), UserSource()))),
    ("user/message", UserMessageAdded(UserMessage(MessageId(""), "user", (), UserSource()))),
    ("user/message", UserMessageAdded(user_message([b"x"]))),  # type: ignore[list-item]
    ("user/message", UserMessageAdded(user_message([TextBlock(b"x")]))),  # type: ignore[arg-type]
    ("user/message", UserMessageAdded(answered().message)),  # type: ignore[arg-type]
    ("user/message", UserMessageAdded(Message(MessageId("m"), "user", (), UserSource()))),  # type: ignore[arg-type]
    ("assistant/message", AssistantMessage(1, 1, user_message("x"))),
    ("assistant/message", AssistantMessage(1, 1, answered().message, {"input_tokens": 1})),  # type: ignore[arg-type]
    ("assistant/message", AssistantMessage(1, 1, answered().message, interrupted=1)),  # type: ignore[arg-type]
    ("assistant/message", AssistantMessage(-1, 1, answered().message)),
    ("tool/result", ToolResult(1, 1, user_message("no result"))),
    ("tool/result", ToolResult(1, 1, Message(MessageId("r"), "assistant", result().message.content, ToolSource("x")))),
    ("tool/result", ToolResult(1, 1, result().message, "failed")),  # type: ignore[arg-type]
    ("tool/result", ToolResult(1, 1, result().message, ToolError("x", 5))),  # type: ignore[arg-type]
    ("tool/result", ToolResult(1, 1, result().message, None, [1])),  # type: ignore[arg-type]
    ("tool/call", ToolCalled(1, 1, CallId("c"), "t", {"a": 1})),  # type: ignore[arg-type]
    ("request/header", RequestHeader(None, "initial")),  # type: ignore[arg-type]
    ("request/header", RequestHeader(EpochHeader(config=LlmCallConfig()), "whim")),  # type: ignore[arg-type]
    ("request/context", RequestContext("p", "m", -5)),
    ("agent/inbox/spliced", InboxSpliced("somewhere", 0)),  # type: ignore[arg-type]
    ("agent/inbox/spliced", InboxSpliced("next-step", 0, 0, ("hello",))),  # type: ignore[arg-type]
    ("compact/summary", CompactSummary(["x"])),  # type: ignore[arg-type]
    ("turn/start", Extension("turn/start", {"turn": 1})),
    ("int", 5),
    ("dict", {"type": "turn/start", "turn": 1}),
]


@pytest.mark.parametrize(("type", "data"), LYING, ids=[f"{type} {number}" for number, (type, _) in enumerate(LYING)])
def test_data_with_a_bad_member_is_refused_with_its_type_named_and_the_log_is_unchanged(type: str, data: Any) -> None:
    told: list[SessionEvent] = []
    session = new(told.append)
    session.append(TurnStart(1))
    with pytest.raises(MalformedValueError, match=type):
        session.append(data)
    assert [event.seq for event in session.events] == [event.seq for event in told] == [0]
    assert session.derive_messages() == ()
    assert session.append(asked()).seq == 1


def test_what_json_cannot_hold_is_refused_as_it_is_made_with_the_type_named() -> None:
    with pytest.raises(LossyValueError, match="tool/result"):
        result(meta={"score": float("nan")})
    with pytest.raises(LossyValueError, match="x/y"):
        Extension("x/y", {"at": b"bytes"})
    with pytest.raises(LossyValueError, match="compact/summary"):
        CompactSummary({"ratio": float("inf")})


def test_lone_surrogates_and_garbage_of_any_length_are_logged_as_they_are() -> None:
    session = new()
    for text in ("\ud83d", "\x00\x1b[2J", "�" * 100_000, ""):
        event = session.append(chunk(text))
        assert event.data == chunk(text)
    session.append(ToolCalled(1, 1, CallId("\udc00"), "no such {tool}", "{not json \ud800"))
    assert len(session.events) == 5


def test_a_character_that_came_in_two_halves_is_logged_whole_because_json_would_give_it_back_so() -> None:
    session = new()
    assert session.append(chunk("\ud83d\ude00")).data == chunk("😀")
    delta = AssistantChunk(1, 1, ToolCallDelta(0, "\ud83d\ude00", CallId("c"), "t"))
    assert session.append(delta).data == AssistantChunk(1, 1, ToolCallDelta(0, "😀", CallId("c"), "t"))
    assert session.append(ToolCalled(1, 1, CallId("c"), "t", "\ud83d\ude00")).data == ToolCalled(
        1, 1, CallId("c"), "t", "😀"
    )


def test_text_of_an_enumeration_is_logged_as_plain_text() -> None:
    data = new().append(chunk(Colour.RED)).data
    assert isinstance(data, AssistantChunk)
    assert isinstance(data.chunk, TextDelta)
    assert type(data.chunk.text) is str


# -- registered kinds


class Todo(BaseModel):
    todos: list[str]


def knowing(**unions: dict[str, Kind]) -> Session:
    tables = {EVENT_KINDS: "events", BLOCK_KINDS: "blocks", SOURCE_KINDS: "sources", TURN_END_KINDS: "ends"}
    return Session(HEADER, kinds=lambda union: unions.get(tables.get(union, ""), {}))


def test_an_event_of_a_registered_kind_is_checked_by_it() -> None:
    session = knowing(events={"todo/write": Kind(model=Todo)})
    session.append(Extension("todo/write", {"todos": ["a"]}))
    session.append(Extension("memo/write", {"todos": 5}))
    with pytest.raises(MalformedValueError, match="todo/write"):
        session.append(Extension("todo/write", {"todos": 5}))
    assert len(session.events) == 2


def test_kinds_within_messages_and_turn_ends_are_checked_too() -> None:
    session = knowing(
        blocks={"todo": Kind(model=Todo)}, sources={"todo": Kind(model=Todo)}, ends={"todo": Kind(model=Todo)}
    )
    wrong, right = Extension("todo", {"todos": 5}), Extension("todo", {"todos": []})
    within = ToolResultBlock(CallId("c"), (wrong,))
    with pytest.raises(MalformedValueError, match="user/message"):
        session.append(UserMessageAdded(user_message([wrong])))
    with pytest.raises(MalformedValueError, match="tool/result"):
        session.append(ToolResult(1, 1, UserMessage(MessageId("m"), "user", (within,), ToolSource("t"))))
    with pytest.raises(MalformedValueError, match="user/message"):
        session.append(UserMessageAdded(user_message("x", wrong)))
    with pytest.raises(MalformedValueError, match="agent/inbox/spliced"):
        session.append(InboxSpliced("next-step", 0, 0, (user_message([wrong]),)))
    with pytest.raises(MalformedValueError, match="turn/end"):
        session.append(TurnEnd(1, TurnEndReason("todo", {"todos": 5})))
    assert len(session.events) == 0
    session.append(UserMessageAdded(user_message([right], right)))
    session.append(TurnEnd(1, TurnEndReason("todo", {"todos": []})))


def test_a_check_that_appends_itself_does_not_disturb_the_numbers() -> None:
    session = new()

    class Nosy(BaseModel):
        def model_post_init(self, _context: object) -> None:
            session.append(TurnStart(1))

    session._kinds = lambda union: {"x/y": Kind(model=Nosy)}
    assert session.append(Extension("x/y", {})).seq == 1
    assert [event.seq for event in session.events] == [0, 1]


# -- surface operations


def test_only_the_three_message_events_take_surface_operations_and_sources() -> None:
    session = new()
    session.append(asked())
    log_only: list[EventData] = [
        TurnStart(1), StepStart(1, 1), chunk(), ToolCalled(1, 1, CallId("c"), "t", ""), EndSeed(), Extension("a/b", {}),
        TurnEnd(1, TurnEndReason("completed")), RequestContext("p", "m"),
    ]  # fmt: skip
    for data in log_only:
        for more in ({"surface_op": "append"}, {"surface_op": Replace(0, 0)}, {"source_event_seqs": [0]}):
            with pytest.raises(SessionError, match="no surface event"):
                session.append(data, **more)
    assert len(session.events) == 1
    for surface in (asked(), answered(), result()):
        event = session.append(surface, source_event_seqs=[0])
        assert (event.surface_op, event.source_event_seqs) == ("append", (0,))
    assert session.append(asked()).source_event_seqs is None


def test_a_known_empty_stream_is_not_the_same_as_nothing_recorded() -> None:
    session = new()
    assert session.append(answered(""), source_event_seqs=()).source_event_seqs == ()
    assert session.append(answered("")).source_event_seqs is None
    for other in (asked(), result()):
        with pytest.raises(SessionError, match="only an assistant message"):
            session.append(other, source_event_seqs=[])


@pytest.mark.parametrize("sources", [[1], [-1], [0, 5], ["0"], [True], [0.0], 5, [10**5000]])
def test_sources_are_events_of_the_log(sources: Any) -> None:
    session = new()
    session.append(asked())
    with pytest.raises(SessionError, match="user/message"):
        session.append(asked(), source_event_seqs=sources)
    assert len(session.events) == 1


def test_a_replacement_names_what_is_on_the_surface_in_its_order() -> None:
    session = new()
    for number in range(6):
        session.append(asked(str(number)) if number != 2 else TurnStart(1))
    for start, end, culprit in ((2, 3, "2"), (0, 6, "6"), (0, 99, "99"), (4, 1, "before"), (-1, 1, "-1")):
        with pytest.raises(SessionError, match=culprit):
            session.append(asked(), surface_op=Replace(start, end))
    assert session.surface() == (0, 1, 3, 4, 5)
    assert session.append(asked("s"), surface_op=Replace(1, 4), source_event_seqs=[1, 3, 4]).seq == 6
    assert session.surface() == (0, 6, 5)
    with pytest.raises(SessionError, match="3 is not on the surface"):
        session.append(asked(), surface_op=Replace(3, 5))
    with pytest.raises(SessionError, match="before"):
        session.append(asked(), surface_op=Replace(5, 6))
    session.append(asked("t"), surface_op=Replace(6, 5))
    assert session.surface() == (0, 7)
    session.append(asked("u"), surface_op=Replace(0, 0))
    assert session.surface() == (8, 7)
    assert len(session.events) == 9


@pytest.mark.parametrize(
    "operation",
    ["replace", 5, {"op": "replace"}, Replace("0", 0), Replace(0, True)],  # type: ignore[arg-type]
)
def test_what_is_no_surface_operation_is_refused(operation: Any) -> None:
    session = new()
    session.append(asked())
    session.append(asked())
    with pytest.raises(SessionError, match="user/message"):
        session.append(asked(), surface_op=operation)
    assert session.surface() == (0, 1)


# -- what follows from it


def test_the_log_says_which_turn_and_step_are_open_and_which_were_last() -> None:
    session = new()

    def facts() -> tuple[int | None, int | None, int | None, int | None]:
        return session.open_turn, session.open_step, session.last_turn, session.last_step

    assert facts() == (None, None, None, None)
    expected: list[tuple[EventData, tuple[int | None, int | None, int | None, int | None]]] = [
        (TurnStart(1), (1, None, 1, None)),
        (StepStart(1, 1), (1, 1, 1, 1)),
        (chunk(), (1, 1, 1, 1)),
        (StepEnd(1, 1), (1, None, 1, 1)),
        (StepStart(1, 2), (1, 2, 1, 2)),
        (StepEnd(1, 2), (1, None, 1, 2)),
        (TurnEnd(1, TurnEndReason("completed")), (None, None, 1, 2)),
        (EndSeed(), (None, None, 1, 2)),
        (TurnStart(2), (2, None, 2, None)),
        (StepStart(2, 1), (2, 1, 2, 1)),
        (TurnEnd(2, TurnEndReason("aborted")), (None, None, 2, 1)),
    ]
    for data, wanted in expected:
        session.append(data)
        assert facts() == wanted, data
    assert Session(HEADER, session.events).last_turn == 2


def test_the_latest_logged_header_is_the_one_that_counts() -> None:
    assert new().request_header is None
    session = new()
    first, second = (EpochHeader(config=LlmCallConfig(model=model)) for model in ("a", "b"))
    session.append(RequestHeader(first, "initial"))
    session.append(RequestHeader(second, "change"))
    assert session.request_header == second
    assert Session(HEADER, session.events).request_header == second


def test_a_turn_end_says_only_its_kind_of_a_cancellation() -> None:
    data = new().append(TurnEnd(1, TurnEndReason("aborted"))).to_json()["data"]
    assert data == {"turn": 1, "reason": {"kind": "aborted"}}
    budget = TurnEndReason("budget", {"spent": 3})  # a kind that a plugin adds
    assert new().append(TurnEnd(1, budget)).to_json()["data"]["reason"] == {"kind": "budget", "spent": 3}


# -- telling


def test_each_append_is_told_at_once_with_the_log_already_changed() -> None:
    seen: list[tuple[int, int, int]] = []
    session = new(lambda event: seen.append((event.seq, len(session.events), len(session.derive_messages()))))
    session.append(asked())
    session.append(chunk())
    assert seen == [(0, 1, 1), (1, 2, 1)]


def test_what_is_appended_while_telling_is_told_after_it_to_everybody() -> None:
    heard: dict[str, list[int]] = {"first": [], "second": []}

    def tell(event: SessionEvent) -> None:
        heard["first"].append(event.seq)
        if isinstance(event.data, TurnStart):
            nested = session.append(chunk("nested"))
            assert nested.seq == len(session.events) - 1, "it is in the log at once"
            session.append(chunk("nested too"))
        heard["second"].append(event.seq)

    session = new(tell)
    session.append(TurnStart(1))
    session.append(chunk())
    assert heard == {"first": [0, 1, 2, 3], "second": [0, 1, 2, 3]}


def test_a_listener_that_answers_its_own_events_is_stopped_and_nothing_is_lost() -> None:
    told: list[int] = []
    refused: list[SessionError] = []

    def tell(event: SessionEvent) -> None:
        told.append(event.seq)
        try:
            session.append(chunk())
        except SessionError as error:
            refused.append(error)

    session = new(tell)
    session.append(TurnStart(1))
    assert told == [event.seq for event in session.events]
    assert MOST_NESTED <= len(told) <= MOST_NESTED + 2
    assert "must not answer its own events" in str(refused[0])
    session.append(TurnStart(2))
    assert told == [event.seq for event in session.events], "and the next append is as good as ever"


def test_a_teller_that_raises_does_not_cost_the_event_nor_those_that_wait() -> None:
    told: list[int] = []

    def tell(event: SessionEvent) -> None:
        told.append(event.seq)
        if event.seq == 0:
            session.append(chunk("nested"))
            raise RuntimeError("broken store")

    session = new(tell)
    with pytest.raises(RuntimeError, match="broken store"):
        session.append(TurnStart(1))
    assert len(session.events) == 2
    session.append(chunk())
    assert told == [0, 1, 2]


# -- seeds


def test_a_seed_is_copied_and_not_told() -> None:
    told: list[SessionEvent] = []
    source = new()
    for data in (TurnStart(1), asked(), answered(), TurnEnd(1, TurnEndReason("completed"))):
        source.append(data)
    seed = list(source.events)
    session = Session(HEADER, seed, tell=told.append)
    seed.clear()
    assert list(session.events) == list(source.events)
    assert session.derive_messages() == source.derive_messages()
    assert told == []
    assert session.append(asked()).seq == 4
    assert [event.seq for event in told] == [4]


# -- what is stored beside it


def test_a_header_is_read_back_as_it_was_written_without_what_it_does_not_say() -> None:
    plain = SessionHeader(id=session_id("s"), created_at=5)
    assert plain.to_json() == {"version": 1, "id": "s", "created_at": 5}
    full = SessionHeader(
        id=session_id("../\ud800"), created_at=5, cwd="/w", parent_session=session_id("p"), seed_length=0,
        origin="subagent", delegation_depth=2,
    )  # fmt: skip
    for header in (plain, full):
        assert SessionHeader.from_json(header.to_json()) == header


@pytest.mark.parametrize(
    "more",
    [
        {"id": ""}, {"id": 5}, {"id": None}, {"created_at": -1}, {"created_at": 1.5}, {"cwd": "work"}, {"cwd": "/a\0b"},
        {"cwd": 5}, {"parent_session": ""}, {"seed_length": -1}, {"seed_length": True}, {"origin": "fork"},
        {"delegation_depth": 10**5000}, {"version": 0},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_a_header_that_cannot_be_is_refused_as_it_is_made(more: dict[str, Any]) -> None:
    with pytest.raises(MalformedValueError):
        SessionHeader(**{"id": session_id("s"), "created_at": 5, **more})


def test_a_header_of_a_newer_release_is_refused_with_both_versions() -> None:
    with pytest.raises(MalformedValueError, match=r"version 2.*knows 1"):
        SessionHeader.from_json({"version": 2, "id": "s", "created_at": 5})
    things: tuple[Any, ...] = (None, [], {}, {"version": 1}, {"version": 1, "id": "s", "created_at": "x"})
    for written in things:
        with pytest.raises(MalformedValueError):
            SessionHeader.from_json(written)


# -- seeds that are none


def event(seq: Any, data: Any, **more: Any) -> SessionEvent:
    return SessionEvent(**{"seq": seq, "time": 1, "data": data, **more})


BAD_SEEDS: list[tuple[str, list[Any]]] = [
    ("at 0", [event(1, TurnStart(1))]),
    ("at 1", [event(0, TurnStart(1)), event(2, TurnStart(1))]),
    ("at 1", [event(0, TurnStart(1)), event(0, TurnStart(1))]),
    ("at 0", [event(False, TurnStart(1))]),
    ("at 0", [event(0, TurnStart(1), time="now")]),
    ("at 0", [event(0, TurnStart(1), time=-1)]),
    ("at 0", [event(0, TurnStart(1), ignorable=None)]),
    ("at 0", [TurnStart(1)]),
    ("at 0", [{"seq": 0}]),
    ("turn/start", [event(0, TurnStart("1"))]),  # type: ignore[arg-type]
    ("assistant/chunk", [event(0, chunk(b"x"))]),
    ("at 0", [event(0, chunk("\ud83d\ude00"))]),
    ("no surface event", [event(0, TurnStart(1), surface_op="append")]),
    ("not on the surface", [event(0, asked(), surface_op=Replace(0, 0))]),
    ("source", [event(0, asked(), surface_op="append", source_event_seqs=(0,))]),
    ("tuple", [event(0, asked()), event(1, asked(), source_event_seqs=[0])]),
    ("required and ignorable", [event(0, Extension("a/b", {}), ignorable=False)]),
    ("required and ignorable", [event(0, Extension("a/b", {}, required=True), ignorable=True)]),
]


@pytest.mark.parametrize(("culprit", "seed"), BAD_SEEDS, ids=[str(number) for number in range(len(BAD_SEEDS))])
def test_a_seed_that_is_no_log_is_refused_with_the_place(culprit: str, seed: list[Any]) -> None:
    with pytest.raises(SessionError, match=culprit):
        Session(HEADER, seed)


def test_a_seed_of_a_kind_that_is_checked_differently_today_is_taken_as_it_was_stored() -> None:
    source = new()
    source.append(Extension("todo/write", {"todos": 5}))
    session = Session(HEADER, source.events, kinds=lambda union: {"todo/write": Kind(model=Todo)})
    assert list(session.events) == list(source.events)


def test_a_branch_begins_as_its_trunk_and_grows_apart() -> None:
    trunk = new()
    for number in range(4):
        trunk.append(asked(str(number)))
    trunk.append(asked("summary"), surface_op=Replace(0, 2))
    branch = trunk.branch(SessionHeader(id=session_id("b"), created_at=0), 5)
    assert list(branch.events) == list(trunk.events)
    assert branch.derive_messages() == trunk.derive_messages()
    earlier = trunk.branch(SessionHeader(id=session_id("c"), created_at=0), 4)
    assert len(earlier.derive_messages()) == 4
    branch.append(TurnStart(9))
    assert (branch.last_turn, trunk.last_turn, len(trunk.events)) == (9, None, 5)


def test_a_sealed_session_takes_nothing_more_and_can_still_be_read() -> None:
    session = new()
    session.append(asked())
    session.seal()
    with pytest.raises(SessionError, match="detached"):
        session.append(asked())
    assert (len(session.events), len(session.derive_messages())) == (1, 1)


def test_usage_and_provenance_are_in_the_log() -> None:
    session = new()
    pieces = [session.append(AssistantChunk(1, 1, piece)).seq for piece in (TextDelta(0, "hi"), Finish(Stop()))]
    usage = TokenUsage(input_tokens=3)
    anchor = session.append(AssistantMessage(1, 1, answered().message, usage), source_event_seqs=pieces)
    assert anchor.source_event_seqs == (0, 1)
    assert isinstance(anchor.data, AssistantMessage)
    assert anchor.data.usage == usage
