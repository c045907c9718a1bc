"""The entries of a log: their JSON, exactly, and what comes of JSON that others wrote."""

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd.capabilities.llm import EpochHeader, LlmCallConfig, ToolSchema
from dshd.capabilities.llm.failure import LlmFailure
from dshd.capabilities.llm.stream import (
    BlockEnd,
    BlockStart,
    Failed,
    Finish,
    ReasoningDelta,
    ReplayEnvelope,
    Stop,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    UsageReport,
)
from dshd.capabilities.session import (
    AssistantChunk,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    CompactSummary,
    EndSeed,
    EventData,
    InboxSpliced,
    KnownKinds,
    Replace,
    RequestContext,
    RequestHeader,
    Session,
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
    event_from_json,
)
from dshd.capabilities.session.event import CLASSES, CORE
from dshd.capabilities.values import (
    CallId,
    ContentBlock,
    Extension,
    MalformedValueError,
    Message,
    MessageId,
    ModelSource,
    Notice,
    PluginSource,
    ReasoningBlock,
    Snapshot,
    SnapshotSection,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    UnknownKindError,
    UserMessage,
    UserSource,
    session_id,
)
from dshd.capabilities.values.json import whole

ASKED = UserMessage(MessageId("m1"), "user", (TextBlock("weather?"),), UserSource())
ANSWER = Message(
    MessageId("m2"),
    "assistant",
    (TextBlock("I look."), ToolCallBlock(CallId("c1"), "weather", '{"city": ')),
    ModelSource("deepseek", "chat"),
)
RESULT = UserMessage(
    MessageId("m3"), "user", (ToolResultBlock(CallId("c1"), (TextBlock("no such city"),), True),), ToolSource("weather")
)
ASKED_JSON = {
    "id": "m1",
    "role": "user",
    "content": [{"type": "text", "text": "weather?"}],
    "source": {"kind": "user"},
}
ANSWER_JSON = {
    "id": "m2",
    "role": "assistant",
    "content": [
        {"type": "text", "text": "I look."},
        {"type": "tool-call", "id": "c1", "name": "weather", "arguments": '{"city": '},
    ],
    "source": {"kind": "model", "provider": "deepseek", "model": "chat"},
}
RESULT_JSON = {
    "id": "m3",
    "role": "user",
    "content": [
        {
            "type": "tool-result",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "no such city"}],
            "is_error": True,
        }
    ],
    "source": {"kind": "tool", "tool": "weather"},
}
SEARCH = ToolSchema("search", "Finds.", {"type": "object"})

TABLE: list[tuple[EventData, str, dict[str, Any]]] = [
    (TurnStart(1), "turn/start", {"turn": 1}),
    (TurnStart(2, generation=7), "turn/start", {"turn": 2, "generation": 7}),
    (TurnEnd(2, TurnEndReason("completed")), "turn/end", {"turn": 2, "reason": {"kind": "completed"}}),
    (
        TurnEnd(2, TurnEndReason("budget", {"spent": 5, "left": None})),
        "turn/end",
        {"turn": 2, "reason": {"kind": "budget", "spent": 5, "left": None}},
    ),
    (StepStart(2, 1), "step/start", {"turn": 2, "step": 1}),
    (StepEnd(2, 1), "step/end", {"turn": 2, "step": 1}),
    (UserMessageAdded(ASKED), "user/message", ASKED_JSON),
    (
        AssistantChunk(2, 1, TextDelta(0, "I ")),
        "assistant/chunk",
        {"turn": 2, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "I "}},
    ),
    (
        AssistantMessage(2, 1, ANSWER, TokenUsage(input_tokens=3, output_tokens=4), interrupted=True),
        "assistant/message",
        {
            "turn": 2,
            "step": 1,
            "message": ANSWER_JSON,
            "usage": {"input_tokens": 3, "output_tokens": 4},
            "interrupted": True,
        },
    ),
    (AssistantMessage(2, 1, ANSWER), "assistant/message", {"turn": 2, "step": 1, "message": ANSWER_JSON}),
    (
        ToolCalled(2, 1, CallId("c1"), "weather", '{"city": '),
        "tool/call",
        {"turn": 2, "step": 1, "call_id": "c1", "name": "weather", "arguments": '{"city": '},
    ),
    (
        ToolResult(2, 1, RESULT, ToolError("NoSuchCity", "TOOL_ERROR"), {"exit": 1}),
        "tool/result",
        {
            "turn": 2,
            "step": 1,
            "message": RESULT_JSON,
            "error": {"name": "NoSuchCity", "code": "TOOL_ERROR"},
            "meta": {"exit": 1},
        },
    ),
    (ToolResult(2, 1, RESULT), "tool/result", {"turn": 2, "step": 1, "message": RESULT_JSON}),
    (ToolResult(2, 1, RESULT, meta={}), "tool/result", {"turn": 2, "step": 1, "message": RESULT_JSON, "meta": {}}),
    (
        RequestHeader(
            EpochHeader(
                config=LlmCallConfig(provider="deepseek", model="chat", max_tokens=9),
                adapter_defaults=frozenset({"max_tokens"}),
                system="Be kind.",
                tools=(SEARCH,),
            ),
            "change",
        ),
        "request/header",
        {
            "header": {
                "provider": "deepseek",
                "model": "chat",
                "max_tokens": 9,
                "adapter_defaults": {"max_tokens": True},
                "system": "Be kind.",
                "tools": [{"name": "search", "description": "Finds.", "parameters": {"type": "object"}}],
            },
            "reason": "change",
        },
    ),
    (
        RequestHeader(EpochHeader(config=LlmCallConfig()), "initial"),
        "request/header",
        {"header": {}, "reason": "initial"},
    ),
    (
        RequestContext("deepseek", "chat", 65536),
        "request/context",
        {"provider": "deepseek", "model": "chat", "context_window": 65536},
    ),
    (RequestContext("deepseek", "chat"), "request/context", {"provider": "deepseek", "model": "chat"}),
    (
        InboxSpliced("next-turn", 0, 0, (ASKED,)),
        "agent/inbox/spliced",
        {"target": "next-turn", "start": 0, "delete_count": 0, "inserted": [ASKED_JSON]},
    ),
    (
        InboxSpliced("next-step", 2, 1, outcome="canceled"),
        "agent/inbox/spliced",
        {"target": "next-step", "start": 2, "delete_count": 1, "inserted": [], "outcome": "canceled"},
    ),
    (EndSeed(), "session/end-seed", {}),
    (CompactStart(3), "compact/start", {"turn": 3}),
    (CompactStart(), "compact/start", {"turn": None}),
    (CompactSummary({"summary": "s", "seqs": [1, 2]}), "compact/summary", {"summary": "s", "seqs": [1, 2]}),
    (CompactEnd(3, "no model"), "compact/end", {"turn": 3, "error": "no model"}),
    (CompactEnd(), "compact/end", {"turn": None}),
    (Extension("todo/write", {"todos": [{"content": "a", "status": "pending"}]}), "todo/write",
     {"todos": [{"content": "a", "status": "pending"}]}),
]  # fmt: skip


def enclosed(data: EventData, seq: int = 20) -> SessionEvent:
    surface = isinstance(data, (UserMessageAdded, AssistantMessage, ToolResult))
    ignorable = isinstance(data, Extension) and not data.required
    return SessionEvent(seq, 1000, data, "append" if surface else None, None, ignorable)


def stored(event: SessionEvent) -> Any:
    """What a store that writes text would read back."""
    return json.loads(json.dumps(event.to_json()))


def test_the_table_has_every_type_of_the_core() -> None:
    assert {type for data, type, _ in TABLE if not isinstance(data, Extension)} == set(CORE)
    assert {type(data) for data, *_ in TABLE} - {Extension} == CLASSES


@pytest.mark.parametrize(("data", "type", "wanted"), TABLE, ids=[f"{type} {i}" for i, (_, type, _) in enumerate(TABLE)])
def test_each_type_is_written_as_the_table_says_and_read_back_as_it_was(
    data: EventData, type: str, wanted: dict[str, Any]
) -> None:
    event = enclosed(data)
    assert event.type == type
    written = stored(event)
    assert (written["seq"], written["time"], written["type"]) == (20, 1000, type)
    assert written["data"] == wanted
    assert event_from_json(written) == event
    assert stored(event_from_json(written)) == written


def test_the_envelope_has_only_what_applies() -> None:
    plain = enclosed(TurnStart(1))
    assert list(plain.to_json()) == ["seq", "time", "type", "data"]
    appended = SessionEvent(20, 1, AssistantMessage(1, 1, ANSWER), "append", ())
    assert appended.to_json()["surface_op"] == "append"
    assert appended.to_json()["source_event_seqs"] == []
    replacing = SessionEvent(20, 1, UserMessageAdded(ASKED), Replace(3, 5), (3, 4, 5))
    assert replacing.to_json()["surface_op"] == {"op": "replace", "start": 3, "end": 5}
    assert replacing.to_json()["source_event_seqs"] == [3, 4, 5]
    assert enclosed(Extension("a/b", {})).to_json()["ignorable"] is True
    for event in (plain, appended, replacing):
        assert event_from_json(stored(event)) == event


def test_entries_are_immutable_down_to_their_data() -> None:
    event = enclosed(ToolResult(2, 1, RESULT, meta={"a": [1]}))
    with pytest.raises(FrozenInstanceError):
        event.seq = 3  # type: ignore[misc]
    data = event.data
    assert isinstance(data, ToolResult)
    assert data.meta is not None
    with pytest.raises(TypeError, match="immutable"):
        data.meta["a"] = 2  # type: ignore[index]
    assert data.meta["a"] == (1,)


def test_the_data_of_an_event_does_not_follow_what_it_was_made_of() -> None:
    given = {"todos": [{"content": "a"}]}
    event = enclosed(Extension("todo/write", given))
    before = stored(event)
    given["todos"][0]["content"] = "b"
    assert stored(event) == before


# -- what others wrote


def test_an_unknown_type_that_may_be_skipped_is_kept_as_it_was_written() -> None:
    written = {"seq": 4, "time": 5, "type": "todo/write", "data": {"todos": [{"x": 1.5}], "n": None}, "ignorable": True}
    event = event_from_json(written, KnownKinds(events=()))
    assert event.data == Extension("todo/write", {"todos": [{"x": 1.5}], "n": None})
    assert stored(event) == written


def test_an_unknown_type_that_may_not_be_skipped_is_refused_with_its_type_and_number() -> None:
    written = {"seq": 4, "time": 5, "type": "vault/lock", "data": {}}
    with pytest.raises(UnknownKindError, match=r"event 4 .*'vault/lock'") as refused:
        event_from_json(written, KnownKinds(events={"vault/open"}))
    assert refused.value.kind == "vault/lock"
    known = event_from_json(written, KnownKinds(events={"vault/lock"}))
    assert known.data == Extension("vault/lock", {}, required=True)
    assert stored(known) == written
    assert event_from_json(written) == known, "who does not ask what is known is refused nothing"


def test_a_required_kind_within_a_message_is_refused_in_the_same_way() -> None:
    picture = Extension("image", {"url": "u"}, required=True)
    written = stored(enclosed(UserMessageAdded(UserMessage(MessageId("m"), "user", (picture,), UserSource()))))
    assert event_from_json(written, KnownKinds(blocks={"image"})).to_json() == written
    with pytest.raises(UnknownKindError, match=r"event 20 \(user/message\).*'image'"):
        event_from_json(written, KnownKinds(blocks=()))


def test_members_that_a_newer_writer_added_are_left_out_and_change_nothing() -> None:
    written = stored(enclosed(TurnStart(1)))
    written["data"]["mood"] = "good"
    written["colour"] = "blue"
    assert event_from_json(written) == enclosed(TurnStart(1))


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("no number", {"seq": None}),
    ("a number that is none", {"seq": True}),
    ("a number below 0", {"seq": -1}),
    ("no time", {"time": "now"}),
    ("no type", {"type": 5}),
    ("an empty type", {"type": ""}),
    ("no data", {"data": None}),
    ("data of another shape", {"data": [1]}),
    ("a member of another type", {"data": {"turn": "1"}}),
    ("a member missing", {"data": {}}),
    ("a count below 0", {"data": {"turn": -1}}),
    ("a surface operation on what is not on the surface", {"surface_op": "append"}),
    ("sources on what is not on the surface", {"source_event_seqs": [1]}),
    ("an ignorable that is none", {"ignorable": "yes"}),
    ("an unknown type without an object", {"type": "a/b", "data": None, "ignorable": True}),
]
MALFORMED_MESSAGE: list[tuple[str, dict[str, Any]]] = [
    ("another role", {"data": {**ASKED_JSON, "role": "assistant"}}),
    ("no id", {"data": {**ASKED_JSON, "id": ""}}),
    ("an unknown operation", {"surface_op": {"op": "remove", "start": 1, "end": 2}}),
    ("half a range", {"surface_op": {"op": "replace", "start": 1}}),
    ("sources that are no numbers", {"source_event_seqs": ["1"]}),
    ("sources of the future", {"source_event_seqs": [20]}),
    ("an empty list of sources", {"source_event_seqs": []}),
    ("sources that are no list", {"source_event_seqs": 3}),
]


@pytest.mark.parametrize(
    ("base", "changes"),
    [(TurnStart(1), changes) for _, changes in MALFORMED]
    + [(UserMessageAdded(ASKED), changes) for _, changes in MALFORMED_MESSAGE]
    + [
        (ToolResult(1, 1, RESULT), {"data": {"turn": 1, "step": 1, "message": ASKED_JSON}}),
        (ToolResult(1, 1, RESULT), {"data": {"turn": 1, "step": 1, "message": RESULT_JSON, "error": {}}}),
        (RequestHeader(EpochHeader(config=LlmCallConfig()), "initial"), {"data": {"header": {}, "reason": "whim"}}),
        (InboxSpliced("next-step", 0), {"data": {"target": "nowhere", "start": 0, "delete_count": 0}}),
        (EndSeed(), {"seq": 10**5000}),
    ],
    ids=[name for name, _ in MALFORMED + MALFORMED_MESSAGE]
    + ["no tool result", "an empty error", "another reason", "another target", "a number nobody can write"],
)
def test_what_has_another_shape_is_refused(base: EventData, changes: dict[str, Any]) -> None:
    written = {**stored(enclosed(base)), **changes}
    with pytest.raises(MalformedValueError):
        event_from_json(written)


def test_what_is_no_object_is_refused() -> None:
    things: tuple[Any, ...] = (None, 3, "x", [], [{}])
    for written in things:
        with pytest.raises(MalformedValueError):
            event_from_json(written)


# -- any event, and any text

texts = st.lists(st.characters() | st.sampled_from(["\ud83d\ude00", "\ud800", "é", "\x00"]), max_size=8).map("".join)
lines = texts.filter(lambda text: bool(text) and "\n" not in text)
counts = st.integers(0, 2**53 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts.filter(lambda name: name not in ("kind", "type", "required")), json_values, max_size=3)
kinds = st.sampled_from(["x/one", "x/two", "ünïcode/\ud800"])
extensions = st.builds(Extension, kinds, objects, st.booleans())
flat_blocks = (
    st.builds(TextBlock, texts)
    | st.builds(ReasoningBlock, texts)
    | st.builds(ToolCallBlock, lines.map(CallId), lines, texts)
    | extensions
)
blocks: st.SearchStrategy[ContentBlock] = flat_blocks | st.builds(
    ToolResultBlock, lines.map(CallId), st.lists(flat_blocks, max_size=2).map(tuple), st.none() | st.booleans()
)
sources = (
    st.just(UserSource())
    | st.builds(ToolSource, lines)
    | st.builds(ModelSource, lines, lines, json_values)
    | st.builds(PluginSource, lines, st.none() | st.builds(Notice, st.sampled_from(["a job ended", "ü\ud800"])))
    | st.builds(
        PluginSource,
        lines,
        st.builds(Snapshot, st.lists(st.builds(SnapshotSection, lines, texts), max_size=2).map(tuple)),
    )
    | extensions
)
identities = texts.filter(bool).map(MessageId)
contents = st.lists(blocks, max_size=3).map(tuple)
user_messages = st.builds(UserMessage, identities, st.just("user"), contents, sources)
answers = st.builds(Message, identities, st.just("assistant"), contents, sources)
results = st.builds(
    UserMessage,
    identities,
    st.just("user"),
    st.builds(ToolResultBlock, lines.map(CallId), st.lists(flat_blocks, max_size=2).map(tuple)).map(
        lambda block: (block,)
    ),
    sources,
)
usages = st.builds(TokenUsage, input_tokens=counts, output_tokens=counts, cache_read_tokens=st.none() | counts)
ends = (
    st.just(Stop())
    | st.builds(Failed, st.builds(LlmFailure, message=texts.map(whole), code=lines.map(whole)))
    | extensions
)
chunks = (
    st.builds(TextDelta, counts, texts)
    | st.builds(ReasoningDelta, counts, texts)
    | st.builds(ToolCallDelta, counts, texts, st.none() | lines.map(CallId), st.none() | lines)
    | st.builds(BlockStart, counts, st.sampled_from(["text", "reasoning", "tool-call"]))
    | st.builds(BlockEnd, counts)
    | st.builds(UsageReport, usages)
    | st.builds(
        Finish, ends, st.none() | st.builds(ReplayEnvelope, json_values, st.none() | st.lists(json_values, max_size=2))
    )
)
headers = st.builds(
    EpochHeader,
    config=st.builds(LlmCallConfig, provider=st.none() | lines.map(whole), temperature=st.none() | st.floats(0, 2)),
    system=st.none() | texts.map(whole),
    tools=st.lists(st.builds(ToolSchema, lines.map(whole), texts.map(whole), objects), max_size=2).map(tuple),
    seeds=objects,
)
event_data: st.SearchStrategy[Any] = st.one_of(
    st.builds(TurnStart, counts, st.none() | counts),
    st.builds(TurnEnd, counts, st.builds(TurnEndReason, lines, objects)),
    st.builds(StepStart, counts, counts),
    st.builds(UserMessageAdded, user_messages),
    st.builds(AssistantChunk, counts, counts, chunks),
    st.builds(AssistantMessage, counts, counts, answers, st.none() | usages, st.booleans()),
    st.builds(ToolCalled, counts, counts, lines.map(CallId), lines, texts),
    st.builds(ToolResult, counts, counts, results, st.none() | st.builds(ToolError, lines, lines), st.none() | objects),
    st.builds(RequestHeader, headers, st.sampled_from(["initial", "resume", "change"])),
    st.builds(RequestContext, lines, lines, st.none() | counts),
    st.builds(InboxSpliced, st.just("next-step"), counts, counts, st.lists(user_messages, max_size=2).map(tuple)),
    st.builds(CompactSummary, objects),
    st.builds(CompactEnd, st.none() | counts, st.none() | texts),
    extensions,
)


@settings(deadline=None)
@given(event_data)
def test_whatever_enters_a_log_is_read_back_from_text_as_it_was(data: EventData) -> None:
    session = Session(SessionHeader(id=session_id("s"), created_at=0))
    event = session.append(data)
    assert event_from_json(stored(event)) == event
    assert json.loads(json.dumps(event_from_json(stored(event)).to_json())) == stored(event)


broken = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {"seq": json_values | counts, "time": json_values | counts, "type": st.sampled_from([*CORE, "x/one"])},
        optional={
            "data": json_values
            | st.dictionaries(
                st.sampled_from(["turn", "step", "message", "chunk", "header", "reason", "inserted", "content"]),
                json_values | st.just(ASKED_JSON),
            ),
            "surface_op": json_values,
            "source_event_seqs": json_values,
            "ignorable": json_values,
        },
    ),
)


@settings(deadline=None)
@given(broken)
def test_garbage_is_refused_with_one_of_two_errors_or_read(written: Any) -> None:
    try:
        event = event_from_json(written, KnownKinds((), (), (), ()))
    except (MalformedValueError, UnknownKindError):
        return
    assert event_from_json(event.to_json()) == event
