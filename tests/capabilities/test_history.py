"""Derived history: kept as the log grows, and always what a derivation from scratch would come to."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd.capabilities.llm import EpochHeader, GenerateOptions, LlmCallConfig, ToolSchema
from dshd.capabilities.llm.stream import Finish, Stop, TextDelta
from dshd.capabilities.session import (
    AssistantChunk,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    CompactSummary,
    EndSeed,
    EventData,
    InboxSpliced,
    Replace,
    RequestContext,
    RequestHeader,
    Session,
    SessionEvent,
    SessionHeader,
    StepEnd,
    StepStart,
    SurfaceData,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    UserMessageAdded,
    derive,
    event_from_json,
)
from dshd.capabilities.values import (
    CallId,
    ContentBlock,
    Extension,
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
    UserMessage,
    session_id,
    user_message,
)

HEADER = SessionHeader(id=session_id("s"), created_at=0)


def by_the_book(events: Iterable[SessionEvent]) -> list[Message]:
    """The rules of the supplement, in the plainest words and without any of the code under test."""
    surface: list[SessionEvent] = []
    for event in events:
        if not isinstance(event.data, (UserMessageAdded, AssistantMessage, ToolResult)):
            continue
        if event.surface_op == "append":
            surface.append(event)
        else:
            assert isinstance(event.surface_op, Replace)
            seqs = [node.seq for node in surface]
            first, last = seqs.index(event.surface_op.start), seqs.index(event.surface_op.end)
            surface = [*surface[:first], event, *surface[last + 1 :]]
    messages: list[Message] = []
    for node in surface:
        match node.data:
            case UserMessageAdded(message):
                messages.append(message)
            case AssistantMessage(message=message) if message.content:
                messages.append(message)
            case ToolResult(message=message):
                messages.append(message)
    return messages


def last_snapshot(messages: Sequence[Message], plugin: str) -> Message | None:
    for message in reversed(messages):
        source = message.source
        if isinstance(source, PluginSource) and source.plugin == plugin and isinstance(source.form, Snapshot):
            return message
    return None


def asked(text: str = "?") -> UserMessageAdded:
    return UserMessageAdded(user_message(text))


def snapshot(plugin: str) -> UserMessageAdded:
    return UserMessageAdded(user_message("now", PluginSource(plugin, Snapshot((SnapshotSection("a", "b"),)))))


def answered(*content: ContentBlock, number: int = 0, **more: Any) -> AssistantMessage:
    return AssistantMessage(1, 1, Message(MessageId(f"a{number}"), "assistant", content, ModelSource("p", "m")), **more)


def resulted(call: str = "c") -> ToolResult:
    block = ToolResultBlock(CallId(call), (TextBlock("done"),))
    return ToolResult(1, 1, UserMessage(MessageId(f"r{call}"), "user", (block,), ToolSource("t")))


LOG_ONLY: list[EventData] = [
    TurnStart(1), StepStart(1, 1), AssistantChunk(1, 1, TextDelta(0, "x")), AssistantChunk(1, 1, Finish(Stop())),
    ToolCalled(1, 1, CallId("c"), "t", "{}"), RequestHeader(EpochHeader(config=LlmCallConfig()), "initial"),
    RequestContext("p", "m"), InboxSpliced("next-step", 0, 0, (user_message("waiting"),)), EndSeed(),
    CompactStart(1), CompactSummary({"summary": "s"}), CompactEnd(1), StepEnd(1, 1),
    TurnEnd(1, TurnEndReason("error", {"failure": {"message": "m"}})), Extension("llm/retry", {"attempt": 1}),
]  # fmt: skip


def test_messages_come_in_surface_order_each_as_it_was_logged() -> None:
    session = Session(HEADER)
    given: list[SurfaceData] = [asked("one"), answered(TextBlock("two")), resulted(), asked("four")]
    for data in given:
        session.append(data)
    assert [a is b.message for a, b in zip(session.derive_messages(), given, strict=True)] == [True] * 4


def test_a_message_keeps_its_id_from_the_inbox_to_the_request_and_through_a_store() -> None:
    message = user_message("hello")
    session = Session(HEADER)
    session.append(InboxSpliced("next-turn", 0, 0, (message,)))
    session.append(InboxSpliced("next-turn", 0, 1))
    session.append(UserMessageAdded(message))
    request = GenerateOptions(provider="p", model="m", messages=session.derive_messages())
    assert request.messages[0].id == message.id
    reread = [event_from_json(event.to_json()) for event in session.events]
    inbox, _, added = (event.data for event in reread)
    assert isinstance(inbox, InboxSpliced)
    assert isinstance(added, UserMessageAdded)
    assert inbox.inserted[0].id == added.message.id == message.id
    assert derive(reread)[0].id == message.id


def test_an_answer_without_content_is_on_the_surface_and_not_in_the_history() -> None:
    session = Session(HEADER)
    session.append(asked())
    session.append(answered(), source_event_seqs=())
    assert len(session.derive_messages()) == 1
    assert session.surface() == (0, 1)
    session.append(asked("sum"), surface_op=Replace(0, 1))
    assert len(session.derive_messages()) == 1


def test_an_interrupted_answer_is_in_the_history_so_that_the_next_request_has_what_the_user_saw() -> None:
    session = Session(HEADER)
    session.append(answered(TextBlock("I was ab"), interrupted=True))
    assert len(session.derive_messages()) == 1


def test_what_is_only_logged_never_enters_the_history() -> None:
    session = Session(HEADER)
    session.append(asked())
    for data in LOG_ONLY:
        session.append(data)
    assert session.derive_messages() == (session.events[0].data.message,)  # type: ignore[union-attr]
    assert session.surface() == (0,)


def test_a_replacement_shadows_a_range_and_leaves_the_log_as_it_was() -> None:
    session = Session(HEADER)
    before = [session.append(asked(str(number))) for number in range(5)]
    summary = asked("1 to 3 in short")
    session.append(summary, surface_op=Replace(1, 3), source_event_seqs=[1, 2, 3])
    texts = [message.content[0].text for message in session.derive_messages()]  # type: ignore[union-attr]
    assert texts == ["0", "1 to 3 in short", "4"]
    assert list(session.events[:5]) == before


def test_a_derived_history_does_not_change_when_the_log_grows() -> None:
    session = Session(HEADER)
    session.append(asked())
    earlier = session.derive_messages()
    assert session.derive_messages() is earlier
    session.append(asked())
    session.append(asked("s"), surface_op=Replace(0, 1))
    assert len(earlier) == 1


def test_the_latest_snapshot_of_a_plugin_is_the_last_one_still_on_the_surface() -> None:
    session = Session(HEADER)
    assert session.latest_snapshot("git") is None
    first, second, other = snapshot("git"), snapshot("git"), snapshot("clock")
    for data in (first, asked(), second, other):
        session.append(data)
    session.append(UserMessageAdded(user_message("no snapshot", PluginSource("git"))))
    assert session.latest_snapshot("git") is second.message
    assert session.latest_snapshot("clock") is other.message
    session.append(asked("sum"), surface_op=Replace(2, 3))
    assert session.latest_snapshot("git") is first.message
    assert session.latest_snapshot("clock") is None
    session.append(asked("sum"), surface_op=Replace(0, 0))
    assert session.latest_snapshot("git") is None


# -- any log

moves = st.lists(
    st.one_of(
        st.sampled_from(["user", "answer", "empty", "result", "git", "clock", "log"]).map(
            lambda kind: (kind, 0.0, 0.0)
        ),
        st.tuples(st.sampled_from(["replace", "replace-git", "replace-empty"]), st.floats(0, 1), st.floats(0, 1)),
    ),
    max_size=60,
)


def play(session: Session, steps: Sequence[tuple[str, float, float]]) -> Iterable[None]:
    for number, (kind, left, right) in enumerate(steps):
        op: Replace | None = None
        if kind.startswith("replace"):
            surface = session.surface()
            if not surface:
                continue
            first = min(int(left * len(surface)), len(surface) - 1)
            last = first + min(int(right * (len(surface) - first)), len(surface) - first - 1)
            op = Replace(surface[first], surface[last])
            kind = kind.partition("-")[2] or "user"
        match kind:
            case "log":
                session.append(LOG_ONLY[number % len(LOG_ONLY)])
                yield
                continue
            case "user":
                data: Any = asked(str(number))
            case "answer":
                data = answered(TextBlock("x"), number=number)
            case "empty":
                data = answered(number=number)
            case "result":
                data = resulted(str(number))
            case plugin:
                data = snapshot(plugin)
        session.append(data, surface_op=op)
        yield


@settings(deadline=None, max_examples=200)
@given(moves)
def test_history_kept_as_the_log_grows_equals_one_derived_from_scratch(steps: list[tuple[str, float, float]]) -> None:
    session = Session(HEADER)
    for _ in play(session, steps):
        wanted = by_the_book(session.events)
        assert list(session.derive_messages()) == wanted
        for plugin in ("git", "clock"):
            assert session.latest_snapshot(plugin) is last_snapshot(wanted, plugin)
    again = Session(HEADER, session.events)
    reread = [event_from_json(event.to_json()) for event in session.events]
    assert again.derive_messages() == derive(session.events) == derive(reread) == session.derive_messages()
    assert again.surface() == session.surface()
    for length in range(0, len(session.events), 7):
        assert derive(session.events[:length]) == session.branch(HEADER, length).derive_messages()


def test_deriving_after_one_more_message_does_not_grow_with_what_is_there_like_deriving_anew() -> None:
    def cost(length: int) -> float:
        session = Session(HEADER)
        for _ in range(length):
            session.append(asked())
        best = 1.0
        for _ in range(30):
            session.append(asked())
            begun = time.perf_counter()
            session.derive_messages()
            best = min(best, time.perf_counter() - begun)
        return best

    assert cost(10_000) < 0.001, "the figure of 50 µs is the benchmark's; this is to catch a derivation anew"


def test_appending_costs_the_same_however_long_the_surface_is() -> None:
    def cost(session: Session) -> float:
        begun = time.perf_counter()
        for _ in range(200):
            session.append(asked())
        return time.perf_counter() - begun

    short, long = Session(HEADER), Session(HEADER)
    for _ in range(10_000):
        long.append(asked())
    fresh = min(cost(short) for _ in range(5))
    grown = min(cost(long) for _ in range(5))
    assert grown < fresh * 5 + 0.002


# -- a whole conversation


def request_of(header: EpochHeader, messages: Sequence[Message]) -> tuple[Any, ...]:
    config = header.config
    return (config.provider, config.model, config.temperature, config.max_tokens, header.system, header.tools,
            tuple(messages))  # fmt: skip


def test_each_request_can_be_rebuilt_from_the_log_alone_while_it_is_compacted() -> None:
    session = Session(HEADER)
    sent: list[tuple[int, tuple[Any, ...]]] = []
    tools = (ToolSchema("search", "Finds.", {"type": "object"}),)

    def step(turn: int, number: int, header: EpochHeader, *content: ContentBlock) -> None:
        session.append(StepStart(turn, number))
        if session.request_header != header:
            session.append(RequestHeader(header, "change" if session.request_header else "initial"))
        sent.append((len(session.events), request_of(header, session.derive_messages())))
        pieces = [session.append(AssistantChunk(turn, number, TextDelta(0, text))).seq for text in ("a", "b")]
        answer = Message(MessageId(f"m{turn}.{number}"), "assistant", content, ModelSource("p", "m"))
        session.append(AssistantMessage(turn, number, answer), source_event_seqs=pieces)
        for block in content:
            if isinstance(block, ToolCallBlock):
                session.append(ToolCalled(turn, number, block.id, block.name, block.arguments))
                result = ToolResultBlock(block.id, (TextBlock("nothing"),), is_error=True)
                message = UserMessage(MessageId(f"r{block.id}"), "user", (result,), ToolSource(block.name))
                session.append(ToolResult(turn, number, message, ToolError("Empty", "TOOL_ERROR"), {"ms": 3}))
        session.append(StepEnd(turn, number))

    def compact(turn: int | None) -> None:
        session.append(CompactStart(turn))
        surface = session.surface()
        shadowed = surface[:-1]
        session.append(
            asked("what was said, in short"),
            surface_op=Replace(shadowed[0], shadowed[-1]),
            source_event_seqs=shadowed,
        )
        session.append(CompactSummary({"seqs": list(shadowed)}))
        session.append(CompactEnd(turn))

    first = EpochHeader(config=LlmCallConfig(provider="p", model="m"), system="Be kind.", tools=tools)
    second = EpochHeader(config=LlmCallConfig(provider="p", model="larger", max_tokens=99), system="Be brief.")
    for turn in range(1, 7):
        session.append(TurnStart(turn))
        session.append(asked(f"question {turn}"))
        if turn == 3:
            session.append(snapshot("git"))
        header = first if turn < 5 else second
        step(turn, 1, header, TextBlock("I look."), ToolCallBlock(CallId(f"c{turn}"), "search", "{"))
        if turn % 2 == 0:
            compact(turn)
        step(turn, 2, header, TextBlock(f"answer {turn}"))
        session.append(TurnEnd(turn, TurnEndReason("completed")))

    assert len(sent) == 12
    reread = [event_from_json(event.to_json()) for event in session.events]
    for length, request in sent:
        headers = [event.data.header for event in reread[:length] if isinstance(event.data, RequestHeader)]
        assert request_of(headers[-1], derive(reread[:length])) == request
        assert list(request[-1]) == by_the_book(reread[:length])
    resumed = Session(HEADER, reread)
    assert resumed.request_header == second
    assert resumed.derive_messages() == session.derive_messages()
    assert (resumed.last_turn, resumed.last_step, resumed.open_turn) == (6, 2, None)


def test_a_prefix_with_a_replacement_of_what_it_does_not_have_is_no_log() -> None:
    session = Session(HEADER)
    session.append(asked())
    session.append(asked(), surface_op=Replace(0, 0))
    with pytest.raises(ValueError, match="not on the surface"):
        derive(session.events[1:])
