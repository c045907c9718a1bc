"""Messages: identity, role, source and form; one immutable value that reads back as it was written."""

import copy
import dataclasses
import json
import pickle
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd.capabilities.values import (
    CallId,
    Catalog,
    ContextForm,
    Extension,
    FrozenDict,
    Instructions,
    LossyValueError,
    MalformedValueError,
    Message,
    MessageId,
    MessageSource,
    ModelSource,
    Notice,
    OtherForm,
    PluginSource,
    ReasoningBlock,
    Recall,
    Relay,
    Role,
    Snapshot,
    SnapshotSection,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    UserMessage,
    UserSource,
    message_from_json,
    message_id,
    source_from_json,
    user_message,
    user_message_from_json,
)
from dshd.capabilities.values.message import FORMS, SOURCES, check_source, source_to_json

TEXT = st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from(["a", "\ud83d", "\ude00", "\n"]))
NAMES = TEXT.filter(bool)
OPAQUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
DATA = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name not in ("kind", "type", "plugin", "form", "required")),
    OPAQUE,
    max_size=3,
)
PLAIN: list[ContextForm] = [Instructions(), Catalog(), Relay(), Recall()]
FORM: st.SearchStrategy[ContextForm] = (
    st.sampled_from(PLAIN)
    | st.lists(st.builds(SnapshotSection, TEXT, TEXT), max_size=3).map(lambda parts: Snapshot(tuple(parts)))
    | st.builds(Notice, TEXT.filter(lambda text: bool(text.strip()) and text.splitlines() == [text]))
    | st.builds(OtherForm, TEXT.filter(lambda form: form not in FORMS), DATA)
)
SOURCE: st.SearchStrategy[MessageSource] = (
    st.just(UserSource())
    | st.builds(PluginSource, TEXT, st.none() | FORM)
    | st.builds(ModelSource, TEXT, TEXT, OPAQUE)
    | st.builds(ToolSource, TEXT)
    | st.builds(Extension, NAMES.filter(lambda kind: kind not in SOURCES), DATA, st.booleans())
)
BLOCK = (
    st.builds(TextBlock, TEXT)
    | st.builds(ReasoningBlock, TEXT)
    | st.builds(ToolCallBlock, NAMES.map(CallId), NAMES, TEXT)
    | st.builds(ToolResultBlock, NAMES.map(CallId), st.lists(st.builds(TextBlock, TEXT), max_size=2).map(tuple))
    | st.builds(Extension, st.sampled_from(["image", "x/y"]), DATA, st.booleans())
)
MESSAGE = st.builds(
    Message,
    NAMES.map(MessageId),
    st.sampled_from(get_args(Role)),
    st.lists(BLOCK, max_size=3).map(tuple),
    SOURCE,
)
checked = settings(max_examples=150, deadline=None, derandomize=True)

HELLO = (TextBlock("hello"),)


def reread(message: Message) -> Message:
    return message_from_json(json.loads(json.dumps(message.to_json(), allow_nan=False)))


def from_plugin(form: ContextForm | None) -> UserMessage:
    return user_message("hello", PluginSource("clock", form))


# -- the message


@checked
@given(MESSAGE)
def test_any_message_reads_back_equal_after_it_was_written(message: Message) -> None:
    message.check("a test")
    again = reread(message)
    assert again == message
    assert hash(again) == hash(message)
    assert again.to_json() == message.to_json()
    assert type(again) is (UserMessage if message.role == "user" else Message)


def test_a_message_is_written_with_its_four_members() -> None:
    message = Message(MessageId("m1"), "assistant", HELLO, ModelSource("p", "m"))
    assert message.to_json() == {
        "id": "m1",
        "role": "assistant",
        "content": [{"type": "text", "text": "hello"}],
        "source": {"kind": "model", "provider": "p", "model": "m"},
    }


def test_a_message_keeps_its_id_through_every_copy() -> None:
    message = user_message("hello")
    again = reread(message)
    changed = dataclasses.replace(again, content=(TextBlock("bye"),))
    assert message.id == again.id == changed.id == copy.deepcopy(message).id == pickle.loads(pickle.dumps(message)).id
    assert user_message("hello").id != message.id
    assert user_message("hello", id=message.id).id == message.id


def test_a_message_cannot_be_changed_however_deep() -> None:
    state: dict[str, Any] = {"signature": ["a"]}
    content: list[Any] = [Extension("image", {"sizes": [1]}), ToolResultBlock(CallId("c"), (TextBlock("a"),))]
    message = Message(MessageId("m"), "assistant", content, ModelSource("p", "m", state))  # type: ignore[arg-type]
    state["signature"].append("b")
    content.clear()
    assert message.source == ModelSource("p", "m", {"signature": ["a"]})
    assert len(message.content) == 2
    for target in (message, message.source, *message.content):
        for field in dataclasses.fields(target):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(target, field.name, None)
    first: Any = message.content[0]
    with pytest.raises(TypeError):
        first.data["sizes"] = []
    with pytest.raises(AttributeError):
        first.data["sizes"].append(2)
    with pytest.raises(TypeError):
        message.source.replay_state["signature"] = []


def test_messages_are_equal_when_all_they_say_is_whatever_type_the_checker_knows_them_by() -> None:
    one, two = (kind(MessageId("m"), "user", HELLO, UserSource()) for kind in (Message, UserMessage))
    assert one == two
    assert two == one
    assert hash(one) == hash(two)
    assert reread(one) == one, "it reads back as a user message"
    for other in (
        dataclasses.replace(two, id=MessageId("n")),
        dataclasses.replace(two, content=()),
        dataclasses.replace(two, source=ToolSource("t")),
        Message(MessageId("m"), "system", HELLO, UserSource()),
    ):
        assert other != one
    assert one != "m"


@pytest.mark.parametrize("kind", [Message, UserMessage])
def test_the_source_and_every_other_member_of_a_message_must_be_given(kind: type[Message]) -> None:
    with pytest.raises(TypeError, match="source"):
        kind(MessageId("m"), "user", HELLO)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["id", "role", "content", "source"])
def test_a_stored_message_without_one_of_its_members_is_malformed(name: str) -> None:
    data = user_message("hello").to_json()
    del data[name]
    with pytest.raises(MalformedValueError):
        message_from_json(data)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""}, {"id": 3}, {"id": None}, {"role": "tool"}, {"role": "User"}, {"role": 3}, {"content": "hello"},
        {"content": ["hello"]}, {"content": {}}, {"source": "user"}, {"source": {}}, {"source": {"kind": 3}},
        {"source": {"kind": ""}},
    ],
    ids=repr,
)  # fmt: skip
def test_a_stored_message_of_another_shape_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedValueError):
        message_from_json({**user_message("hello").to_json(), **change})
    with pytest.raises(MalformedValueError):
        message_from_json(change)


# -- user messages


def test_a_user_message_has_the_role_of_the_user_and_any_source() -> None:
    for source in (UserSource(), PluginSource("clock"), ToolSource("t"), Extension("webhook", {})):
        message = UserMessage(message_id(), "user", HELLO, source)
        message.check("inbox")
        assert reread(message) == message
    for role in ("assistant", "system", "", None):
        with pytest.raises(ValueError, match="'user'"):
            UserMessage(message_id(), role, HELLO, UserSource())  # type: ignore[arg-type]


def test_where_only_a_user_message_can_stand_no_other_is_read() -> None:
    assert type(user_message_from_json(user_message("hello").to_json())) is UserMessage
    for role in ("assistant", "system"):
        with pytest.raises(MalformedValueError, match=role):
            user_message_from_json({**user_message("hello").to_json(), "role": role})


def test_a_user_message_is_made_of_text_or_blocks() -> None:
    assert user_message("hello").content == user_message(iter(HELLO)).content == HELLO
    assert user_message("hello").source == UserSource()
    assert user_message("", PluginSource("p")).source == PluginSource("p")
    assert user_message([]).content == ()


# -- sources


@pytest.mark.parametrize(
    ("source", "data"),
    [
        (UserSource(), {"kind": "user"}),
        (PluginSource("clock"), {"kind": "plugin", "plugin": "clock"}),
        (PluginSource("agents_md", Instructions()), {"kind": "plugin", "plugin": "agents_md", "form": "instructions"}),
        (PluginSource("skills", Catalog()), {"kind": "plugin", "plugin": "skills", "form": "catalog"}),
        (
            PluginSource("context", Snapshot((SnapshotSection("git", "clean\n"), SnapshotSection("cwd", "/")))),
            {
                "kind": "plugin",
                "plugin": "context",
                "form": "snapshot",
                "sections": [{"name": "git", "text": "clean\n"}, {"name": "cwd", "text": "/"}],
            },
        ),
        (
            PluginSource("jobs", Notice("a job ended")),
            {"kind": "plugin", "plugin": "jobs", "form": "notice", "summary": "a job ended"},
        ),
        (PluginSource("agents", Relay()), {"kind": "plugin", "plugin": "agents", "form": "relay"}),
        (PluginSource("memory", Recall()), {"kind": "plugin", "plugin": "memory", "form": "recall"}),
        (ModelSource("p", "m"), {"kind": "model", "provider": "p", "model": "m"}),
        (
            ModelSource("p", "m", {"response": {"id": 1}, "blocks": [None]}),
            {"kind": "model", "provider": "p", "model": "m", "replay_state": {"response": {"id": 1}, "blocks": [None]}},
        ),
        (ToolSource("shell"), {"kind": "tool", "tool": "shell"}),
        (Extension("webhook", {"url": "x"}), {"kind": "webhook", "url": "x"}),
    ],
    ids=lambda value: f"{value!r:.50}",
)
def test_a_source_says_who_produced_a_message_and_reads_back(source: MessageSource, data: dict[str, Any]) -> None:
    assert json.loads(json.dumps(source_to_json(source))) == data
    assert next(iter(source_to_json(source))) == "kind"
    assert source_from_json(data) == source
    check_source(source, "a test")


@pytest.mark.parametrize("state", [0, False, "", [], {}, {"deep": [[{"a": None}]]}, "text", 2**80], ids=repr)
def test_replay_state_is_kept_whatever_json_it_is(state: Any) -> None:
    again = source_from_json(json.loads(json.dumps(source_to_json(ModelSource("p", "m", state)))))
    assert again == ModelSource("p", "m", state)
    assert repr(again) == repr(ModelSource("p", "m", state))


def test_replay_state_that_json_cannot_hold_is_refused() -> None:
    for state in ({"at": {1}}, {"at": float("nan")}, b"x", object()):
        with pytest.raises(LossyValueError, match="replay state"):
            ModelSource("p", "m", state)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "plugin"},
        {"kind": "plugin", "plugin": 3},
        {"kind": "plugin", "plugin": "p", "form": 3},
        {"kind": "plugin", "plugin": "p", "form": "snapshot"},
        {"kind": "plugin", "plugin": "p", "form": "snapshot", "sections": "git"},
        {"kind": "plugin", "plugin": "p", "form": "snapshot", "sections": [{"name": "git"}]},
        {"kind": "plugin", "plugin": "p", "form": "notice"},
        {"kind": "plugin", "plugin": "p", "form": "notice", "summary": "two\nlines"},
        {"kind": "model", "provider": "p"},
        {"kind": "model", "model": "m"},
        {"kind": "tool"},
        None,
        [],
    ],
    ids=repr,
)
def test_a_stored_source_without_the_facts_of_its_kind_or_form_is_malformed(data: Any) -> None:
    with pytest.raises(MalformedValueError):
        source_from_json(data)


# -- forms


def test_a_snapshot_carries_its_sections_in_order_with_their_exact_text() -> None:
    sections = [SnapshotSection("b", " two \n"), SnapshotSection("a", ""), SnapshotSection("b", "again")]
    form = Snapshot(sections)  # type: ignore[arg-type]
    sections.clear()
    assert [(each.name, each.text) for each in form.sections] == [("b", " two \n"), ("a", ""), ("b", "again")]
    assert reread(from_plugin(form)).source == PluginSource("clock", form)
    with pytest.raises(TypeError):
        Snapshot()  # type: ignore[call-arg]


@pytest.mark.parametrize("summary", ["", " ", "\t", "a\nb", "a\n", "\na", "a\r\nb", "a\x85b", "a\u2028b", "a\x0bb"])
def test_a_notice_carries_one_line_that_says_something(summary: str) -> None:
    with pytest.raises(MalformedValueError, match="one line"):
        Notice(summary)
    assert Notice("job 3 ended").summary == "job 3 ended"
    with pytest.raises(TypeError):
        Notice()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "members", [{}, {"form": None}, {"form": "weather", "sky": {"clouds": [1]}}, {"form": "Notice"}, {"form": ""}]
)
def test_an_absent_or_unknown_form_is_legal_and_kept_as_it_was(members: dict[str, Any]) -> None:
    stored = {"kind": "plugin", "plugin": "p", **members}
    source = source_from_json(stored)
    check_source(source, "a test")
    written = json.loads(json.dumps(source_to_json(source)))
    assert written == {name: value for name, value in stored.items() if value is not None}


def test_any_producer_may_use_any_form_and_several_of_them() -> None:
    forms: list[ContextForm | None] = [None, Instructions(), Snapshot(()), Notice("x"), OtherForm("new", FrozenDict())]
    for form in forms:
        assert reread(from_plugin(form)).source == PluginSource("clock", form)


def test_a_form_that_has_a_class_is_not_made_without_it() -> None:
    assert {"snapshot", "notice", "instructions", "catalog", "relay", "recall"} == FORMS
    for form in FORMS:
        with pytest.raises(MalformedValueError, match="class of its own"):
            OtherForm(form, FrozenDict())


@pytest.mark.parametrize("name", ["kind", "plugin", "form"])
def test_the_data_of_a_form_cannot_pass_for_another_source(name: str) -> None:
    with pytest.raises(MalformedValueError, match=name):
        OtherForm("weather", FrozenDict({name: "user"}))
    odd: list[Any] = [[], None, "text"]
    for data in odd:
        with pytest.raises(MalformedValueError, match="not an object"):
            OtherForm("weather", data)
    with pytest.raises(LossyValueError):
        OtherForm("weather", {"at": {1}})  # type: ignore[arg-type]


def test_a_form_says_what_content_is_and_nothing_of_how_it_looks() -> None:
    members = {
        kind: {field.name for field in dataclasses.fields(kind)}
        for kind in (Instructions, Catalog, Snapshot, Notice, Relay, Recall)
    }
    assert members == {
        Instructions: set(), Catalog: set(), Relay: set(), Recall: set(),
        Snapshot: {"sections"}, Notice: {"summary"},
    }  # fmt: skip


# -- what plugins may hand in


class Odd(UserMessage):
    pass


class OddSource(UserSource):
    pass


class OddSnapshot(Snapshot):
    pass


BAD_SOURCES: list[Any] = [
    None,
    "user",
    {"kind": "user"},
    OddSource(),
    PluginSource(3),  # type: ignore[arg-type]
    PluginSource("p", "notice"),  # type: ignore[arg-type]
    PluginSource("p", {"form": "notice"}),  # type: ignore[arg-type]
    PluginSource("p", OddSnapshot(())),
    PluginSource("p", Snapshot("git")),  # type: ignore[arg-type]
    PluginSource("p", Snapshot((SnapshotSection("git", None),))),  # type: ignore[arg-type]
    PluginSource("p", Snapshot((SnapshotSection(3, "x"),))),  # type: ignore[arg-type]
    PluginSource("p", Snapshot(({"name": "git", "text": "x"},))),  # type: ignore[arg-type]
    PluginSource("p", OtherForm(3, FrozenDict())),  # type: ignore[arg-type]
    ModelSource(None, "m"),  # type: ignore[arg-type]
    ModelSource("p", 3),  # type: ignore[arg-type]
    ToolSource(None),  # type: ignore[arg-type]
    Extension("user", {}),
    Extension("model", {}),
    Extension("webhook", {"kind": "user"}),
]


@pytest.mark.parametrize("source", BAD_SOURCES, ids=lambda source: f"{source!r:.50}")
def test_a_source_that_would_not_read_back_is_refused_with_the_event_named(source: Any) -> None:
    with pytest.raises(MalformedValueError, match=r"^user/message: "):
        UserMessage(message_id(), "user", HELLO, source).check("user/message")


@pytest.mark.parametrize(
    "message",
    [
        Message("", "user", HELLO, UserSource()),  # type: ignore[arg-type]
        Message(3, "user", HELLO, UserSource()),  # type: ignore[arg-type]
        Message(10**5000, "user", HELLO, UserSource()),  # type: ignore[arg-type]
        Message(MessageId("m"), "tool", HELLO, UserSource()),  # type: ignore[arg-type]
        Message(MessageId("m"), None, HELLO, UserSource()),  # type: ignore[arg-type]
        Message(MessageId("m"), ["user"], HELLO, UserSource()),  # type: ignore[arg-type]
        Message(MessageId("m"), "user", "hello", UserSource()),  # type: ignore[arg-type]
        Message(MessageId("m"), "user", (None,), UserSource()),  # type: ignore[arg-type]
        Odd(MessageId("m"), "user", HELLO, UserSource()),
    ],
    ids=range(9),
)
def test_a_message_that_would_not_read_back_is_refused_with_the_event_named(message: Message) -> None:
    with pytest.raises(MalformedValueError, match=r"^user/message: "):
        message.check("user/message")


def test_text_cut_within_a_character_is_whole_again_in_every_member() -> None:
    cut = "\ud83d\ude00"
    sources: list[MessageSource] = [
        PluginSource(cut, Snapshot((SnapshotSection(cut, cut),))), PluginSource(cut, Notice(cut)),
        PluginSource(cut, OtherForm(cut, FrozenDict({cut: cut}))), ModelSource(cut, cut, {cut: cut}), ToolSource(cut),
    ]  # fmt: skip
    for source in sources:
        message = user_message(cut, source, MessageId(cut))
        assert reread(message) == message
        assert cut not in json.dumps(message.to_json(), ensure_ascii=False)
