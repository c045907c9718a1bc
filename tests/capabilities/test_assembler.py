"""Chunks become the same blocks however an adapter cuts, orders and frames them, and whatever it gets wrong."""

import gc
import json
import time
from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dshd.capabilities.llm import (
    Aborted,
    Assembled,
    BlockAssembler,
    BlockEnd,
    BlockStart,
    Failed,
    Finish,
    LlmFailure,
    MaxTokens,
    ReasoningDelta,
    ReplayEnvelope,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCalls,
    UsageReport,
    chunk_from_json,
)
from dshd.capabilities.llm.assembler import UNNAMED
from dshd.capabilities.llm.stream import BlockType, chunk_to_json
from dshd.capabilities.values import (
    CallId,
    ContentBlock,
    Extension,
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    message_from_json,
    message_id,
)

FAILURE = LlmFailure(message="it broke", code="PROVIDER_ERROR")


def assemble(*chunks: StreamChunk, prefix: str = "call", taken: set[str] | None = None) -> Assembled:
    assembler = BlockAssembler(prefix, taken or set())
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.result()


def blocks(*chunks: StreamChunk) -> list[ContentBlock]:
    return list(assemble(*chunks).content)


def delta(index: int, arguments: str = "", id: str | None = None, name: str | None = None) -> ToolCallDelta:
    return ToolCallDelta(index, arguments, None if id is None else CallId(id), name)


def call(id: str, name: str, arguments: str = "") -> ToolCallBlock:
    return ToolCallBlock(CallId(id), name, arguments)


def through_json(chunks: list[StreamChunk]) -> list[StreamChunk]:
    return [chunk_from_json(json.loads(json.dumps(chunk_to_json(chunk)))) for chunk in chunks]


# -- any legal stream

KINDS: tuple[BlockType, ...] = get_args(BlockType)
Words = st.text(alphabet=st.sampled_from('aé🌍 \n{}"\\\ud800\ud83c\udf0d'), max_size=12)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces, some of which may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=5)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[StreamChunk], list[ContentBlock]]:
    """The chunks of an answer with each block on an index of its own, and the blocks it consists of."""
    indexes = draw(st.lists(st.integers(0, 9), unique=True, max_size=5))
    parts: list[tuple[list[StreamChunk], ContentBlock | None]] = []
    for index in indexes:
        pieces = draw(Words.flatmap(cut))
        kind: BlockType = draw(st.sampled_from(KINDS))
        chunks: list[StreamChunk] = []
        block: ContentBlock | None
        if kind == "tool-call":
            id, name = f"id-{index}", draw(st.sampled_from(["read", "write"]))
            block = call(id, name, "".join(pieces))
            says_id, says_name = draw(st.integers(-1, len(pieces) - 1)), draw(st.integers(-1, len(pieces) - 1))
            started = draw(st.booleans()) or -1 in (says_id, says_name)
            if started:
                start_id, start_name = CallId(id) if says_id < 0 else None, name if says_name < 0 else None
                chunks.append(BlockStart(index, kind, start_id, start_name))
            repeats = draw(st.booleans())  # some providers say id and name in every piece
            for number, piece in enumerate(pieces):
                now_id = number == says_id or (repeats and number > says_id)
                now_name = number == says_name or (repeats and number > says_name)
                chunks.append(delta(index, piece, id if now_id else None, name if now_name else None))
        else:
            if kind == "text":
                chunks = [TextDelta(index, piece) for piece in pieces]
                block = TextBlock("".join(pieces)) if any(pieces) else None
            else:
                chunks = [ReasoningDelta(index, piece) for piece in pieces]
                block = ReasoningBlock("".join(pieces)) if any(pieces) else None
            if draw(st.booleans()):
                chunks.insert(0, BlockStart(index, kind))
        if draw(st.booleans()):
            chunks.append(BlockEnd(index))
            late: list[StreamChunk] = [TextDelta(index, "x"), delta(index, "x"), BlockEnd(index)]
            chunks += draw(st.lists(st.sampled_from(late), max_size=3))
        parts.append((chunks, block))
    order = draw(st.permutations([number for number, (chunks, _) in enumerate(parts) for _ in chunks]))
    rest = [iter(chunks) for chunks, _ in parts]
    merged = [next(rest[number]) for number in order]
    found = [parts[number][1] for number in dict.fromkeys(order)]
    return merged, [block for block in found if block is not None]


@given(streams())
def test_any_split_and_any_interleaving_gives_the_same_blocks(stream: tuple[list[StreamChunk], Any]) -> None:
    chunks, expected = stream
    assert blocks(*chunks) == expected


def test_a_character_that_came_in_two_halves_is_one() -> None:
    assert blocks(TextDelta(0, "\ud83c"), TextDelta(0, "\udf0d")) == [TextBlock("🌍")]
    assert blocks(delta(0, '"\ud83c', "x", "f"), delta(0, '\udf0d"')) == [call("x", "f", '"🌍"')]


@given(streams(), st.data())
def test_usage_and_finish_change_no_block_and_nothing_after_the_finish_counts(
    stream: tuple[list[StreamChunk], Any], data: st.DataObject
) -> None:
    chunks, expected = stream
    first, last = TokenUsage(input_tokens=1), TokenUsage(input_tokens=2)
    places = sorted(data.draw(st.tuples(*[st.integers(0, len(chunks))] * 2)))
    told = [*chunks[: places[0]], UsageReport(first), *chunks[places[0] : places[1]], UsageReport(last)]
    told += [*chunks[places[1] :], Finish(ToolCalls()), TextDelta(99, "late"), UsageReport(first), Finish(MaxTokens())]
    assert assemble(*told) == Assembled(tuple(expected), ToolCalls(), last, None)


# -- any stream at all

Indexes = st.integers(0, 2)
Ids = st.sampled_from([None, "", "a", "b"]).map(lambda id: None if id is None else CallId(id))
Names = st.sampled_from([None, "", "read", "write"])
AnyDelta: st.SearchStrategy[StreamChunk] = st.one_of(
    st.builds(TextDelta, Indexes, Words),
    st.builds(ReasoningDelta, Indexes, Words),
    st.builds(ToolCallDelta, Indexes, Words, Ids, Names),
    st.builds(BlockStart, Indexes, st.sampled_from(KINDS), Ids, Names),
)
AnyChunk = st.one_of(AnyDelta, st.builds(BlockEnd, Indexes), st.just(UsageReport(TokenUsage(output_tokens=3))))


def units(text: str) -> "memoryview[int]":
    """The UTF-16 code units of a text: halves of a character are put together in blocks."""
    return memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")


@given(st.lists(AnyDelta, max_size=20))
def test_nothing_is_lost_from_a_stream_without_ends_whatever_shares_an_index(chunks: list[StreamChunk]) -> None:
    said: dict[type, Counter[int]] = {kind: Counter() for kind in (TextBlock, ReasoningBlock, ToolCallBlock)}
    for chunk in chunks:
        match chunk:
            case TextDelta(_, text):
                said[TextBlock].update(units(text))
            case ReasoningDelta(_, text):
                said[ReasoningBlock].update(units(text))
            case ToolCallDelta(_, arguments):
                said[ToolCallBlock].update(units(arguments))
    found: dict[type, Counter[int]] = {kind: Counter() for kind in said}
    for block in blocks(*chunks):
        found[type(block)].update(units(block.arguments if isinstance(block, ToolCallBlock) else block.text))  # type: ignore[union-attr]
    assert found == said


@given(st.lists(AnyChunk, max_size=20), st.sampled_from(["call", "turn-1"]), st.sets(st.sampled_from(["a", "call-0"])))
def test_every_call_of_any_stream_has_a_name_and_an_id_that_no_other_has(
    chunks: list[StreamChunk], prefix: str, taken: set[str]
) -> None:
    content = assemble(*chunks, prefix=prefix, taken=taken).content
    calls = [block for block in content if isinstance(block, ToolCallBlock)]
    ids = [block.id for block in calls]
    assert all(block.name for block in calls)
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert not taken & set(ids)
    assert all(isinstance(block, ToolCallBlock) or block.text for block in content)  # type: ignore[union-attr]


@given(st.lists(AnyChunk, max_size=20), st.sampled_from([Stop(), ToolCalls(), MaxTokens(), Failed(FAILURE)]))
def test_chunks_read_back_from_the_log_give_the_same_message_with_the_same_ids(
    chunks: list[StreamChunk], reason: Any
) -> None:
    chunks = [*chunks, Finish(reason, ReplayEnvelope({"id": "r-1"}, ({"n": 1}, None)))]
    again = through_json(chunks)
    assert assemble(*again, prefix="turn-3") == assemble(*chunks, prefix="turn-3")
    id = message_id()
    message = assemble(*chunks, prefix="turn-3").message("mine", "m", id)
    assert message_from_json(json.loads(json.dumps(message.to_json()))) == message
    assert assemble(*again, prefix="turn-3").message("mine", "m", id) == message


# -- where a block begins and ends


def test_deltas_for_a_closed_index_do_not_count() -> None:
    assert blocks(
        TextDelta(0, "a"), BlockEnd(0), TextDelta(0, "b"), ReasoningDelta(0, "c"), delta(0, "d", "x", "y")
    ) == [TextBlock("a")]


def test_a_start_opens_a_closed_index_again() -> None:
    chunks: list[StreamChunk] = [
        BlockStart(0, "text"),
        TextDelta(0, "a"),
        BlockEnd(0),
        BlockStart(0, "text"),
        TextDelta(0, "b"),
    ]
    assert blocks(*chunks) == [TextBlock("a"), TextBlock("b")]
    assert blocks(*chunks, ReasoningDelta(0, "c")) == [TextBlock("a"), TextBlock("b"), ReasoningBlock("c")]


def test_an_end_of_nothing_closes_nothing() -> None:
    assert blocks(BlockEnd(0), TextDelta(0, "a")) == [TextBlock("a")]


def test_a_start_ends_what_was_open_at_its_index() -> None:
    assert blocks(TextDelta(0, "a"), BlockStart(0, "text"), TextDelta(0, "b")) == [TextBlock("a"), TextBlock("b")]
    twice: list[StreamChunk] = [
        BlockStart(0, "tool-call", CallId("x"), "f"),
        delta(0, "{}"),
        BlockStart(0, "tool-call", None, "f"),
    ]
    assert blocks(*twice, delta(0, "[]")) == [call("x", "f", "{}"), call("call-1", "f", "[]")]


def test_another_kind_on_an_open_index_begins_another_block() -> None:
    chunks: list[StreamChunk] = [
        ReasoningDelta(0, "hm"),
        TextDelta(0, "a"),
        ReasoningDelta(0, "so"),
        delta(0, "{}", "x", "f"),
    ]
    assert blocks(*chunks, TextDelta(0, "b")) == [
        ReasoningBlock("hm"), TextBlock("a"), ReasoningBlock("so"), call("x", "f", "{}"), TextBlock("b"),
    ]  # fmt: skip


def test_text_in_between_does_not_tear_the_arguments_of_a_call_on_the_same_index() -> None:
    chunks: list[StreamChunk] = [
        TextDelta(0, "a"),
        delta(0, '{"p"', "x", "f"),
        TextDelta(0, "b"),
        delta(0, ":1}"),
        TextDelta(0, "c"),
    ]
    assert blocks(*chunks) == [TextBlock("a"), call("x", "f", '{"p":1}'), TextBlock("bc")]
    chunks = [delta(0, "{", "x", "f"), BlockStart(0, "text"), TextDelta(0, "a"), delta(0, "}")]
    assert blocks(*chunks) == [call("x", "f", "{}"), TextBlock("a")]


def test_empty_pieces_beside_another_kind_tear_nothing() -> None:
    chunks: list[StreamChunk] = [TextDelta(0, "a"), ReasoningDelta(0, ""), delta(0), TextDelta(0, "b")]
    assert blocks(*chunks) == [TextBlock("ab")]
    chunks = [delta(0, "{", "x", "f"), TextDelta(0, ""), delta(0, "}", "", "")]
    assert blocks(*chunks) == [call("x", "f", "{}")]


def test_two_calls_on_one_index_are_told_apart_by_their_ids_or_names() -> None:
    by_id: list[StreamChunk] = [delta(0, '{"p":1}', "A", "f"), delta(0, '{"p":', "B", "f"), delta(0, "2}")]
    assert blocks(*by_id) == [call("A", "f", '{"p":1}'), call("B", "f", '{"p":2}')]
    by_name: list[StreamChunk] = [delta(0, "{}", "A", "f"), delta(0, "[]", None, "g")]
    assert blocks(*by_name) == [call("A", "f", "{}"), call("call-1", "g", "[]")]


def test_a_call_has_the_first_name_that_came_with_its_id() -> None:
    assert blocks(delta(0, "{", "A", "f"), delta(0, "}", "A", "g")) == [call("A", "f", "{}")]
    assert blocks(delta(0, "{", "A"), delta(0, "}", None, "g")) == [call("A", "g", "{}")]


def test_a_call_that_is_named_again_with_every_piece_is_one() -> None:
    assert blocks(delta(0, "{", "A", "f"), delta(0, "}", "A", "f"), delta(0, " ", None, "f")) == [call("A", "f", "{} ")]


def test_a_block_stands_where_its_first_chunk_stood_even_an_empty_one() -> None:
    assert blocks(TextDelta(0, ""), TextDelta(1, "b"), TextDelta(0, "a")) == [TextBlock("a"), TextBlock("b")]
    assert blocks(BlockStart(0, "text"), TextDelta(1, "b"), TextDelta(0, "a")) == [TextBlock("a"), TextBlock("b")]


def test_an_answer_in_which_nothing_was_said_has_no_content() -> None:
    assert blocks() == []
    assert blocks(TextDelta(0, ""), BlockStart(1, "reasoning"), BlockStart(2, "tool-call"), delta(3)) == []
    assert blocks(BlockStart(0, "text", CallId("x"), "f")) == []


def test_white_space_is_content() -> None:
    assert blocks(TextDelta(0, " \n")) == [TextBlock(" \n")]


# -- calls


def test_a_missing_id_is_minted_from_the_prefix_and_the_place_of_the_call() -> None:
    chunks: list[StreamChunk] = [TextDelta(0, "a"), delta(1, "{}", None, "f"), delta(2, "{}", "", "g")]
    assert assemble(*chunks, prefix="call-3-1").content[1:] == (
        call("call-3-1-1", "f", "{}"),
        call("call-3-1-2", "g", "{}"),
    )


def test_a_repeated_id_gives_way_to_one_of_its_own() -> None:
    assert blocks(delta(0, "1", "x", "f"), delta(1, "2", "x", "f")) == [call("x", "f", "1"), call("call-1", "f", "2")]


def test_an_id_that_was_taken_before_the_answer_gives_way() -> None:
    found = assemble(delta(0, "{}", "call_1", "f"), delta(1, "{}", "call_2", "f"), taken={"call_1"}).content
    assert found == (call("call-0", "f", "{}"), call("call_2", "f", "{}"))


def test_a_minted_id_is_none_that_comes_later_or_was_taken() -> None:
    found = assemble(delta(0, "", None, "f"), delta(1, "", "call-0", "f"), taken={"call-0-2"}).content
    assert found == (call("call-0-3", "f"), call("call-0", "f"))


def test_a_call_without_a_name_is_kept_under_one_that_no_tool_has() -> None:
    assert blocks(delta(0, "{}", "x")) == [call("x", UNNAMED, "{}")]
    assert blocks(delta(0, "", "x", "")) == [call("x", UNNAMED)]


@pytest.mark.parametrize("arguments", ["", "{", '{"b":1, "a" : 2.0}', "not json", "\ud800"])
def test_arguments_stay_the_raw_text_they_are(arguments: str) -> None:
    assert blocks(delta(0, arguments, "x", "f")) == [call("x", "f", arguments)]


# -- how it ended


def test_a_stream_that_does_not_say_why_it_stopped_stopped() -> None:
    assert assemble(TextDelta(0, "a")) == Assembled((TextBlock("a"),), Stop(), None, None)


def test_the_reason_is_the_one_given_whatever_the_answer_has() -> None:
    reason = Extension("refusal", {"category": "x"})
    assert assemble(delta(0, "{}", "x", "f"), Finish(reason)).reason == reason
    assert assemble(Finish(ToolCalls())) == Assembled((), ToolCalls(), None, None)


def test_max_tokens_drops_every_call_and_its_replay_entry() -> None:
    replay = ReplayEnvelope({"id": 1}, ("t", "c1", "r", "c2"))
    chunks: list[StreamChunk] = [
        TextDelta(0, "a"),
        delta(1, "{}", "x", "f"),
        ReasoningDelta(2, "b"),
        delta(3, "{", "y", "f"),
    ]
    assert assemble(*chunks, Finish(MaxTokens(), replay)) == Assembled(
        (TextBlock("a"), ReasoningBlock("b")), MaxTokens(), None, ReplayEnvelope({"id": 1}, ("t", "r"))
    )


def test_replay_entries_of_another_number_than_the_blocks_are_discarded_and_the_rest_is_kept() -> None:
    for entries in ((), ("t",), ("t", "c", "more")):
        chunks: list[StreamChunk] = [
            TextDelta(0, "a"),
            delta(1, "{}", "x", "f"),
            Finish(ToolCalls(), ReplayEnvelope("id", entries)),
        ]
        assert assemble(*chunks).replay == ReplayEnvelope("id")


def test_the_entry_of_an_empty_block_goes_with_it() -> None:
    chunks: list[StreamChunk] = [
        BlockStart(0, "text"),
        BlockEnd(0),
        TextDelta(1, "a"),
        Finish(Stop(), ReplayEnvelope(None, (None, "a"))),
    ]
    assert assemble(*chunks) == Assembled((TextBlock("a"),), Stop(), None, ReplayEnvelope(None, ("a",)))


def test_empty_reasoning_with_a_replay_entry_is_kept_for_its_provider() -> None:
    sealed = ReplayEnvelope(None, ({"encrypted": "…"}, None))
    chunks: list[StreamChunk] = [BlockStart(0, "reasoning"), BlockEnd(0), TextDelta(1, "a"), Finish(Stop(), sealed)]
    assert assemble(*chunks) == Assembled((ReasoningBlock(""), TextBlock("a")), Stop(), None, sealed)


def test_empty_text_is_left_out_though_it_has_a_replay_entry() -> None:
    """Providers refuse empty text, and there is nothing in it that anybody could need."""
    chunks: list[StreamChunk] = [
        BlockStart(0, "text"),
        TextDelta(1, "a"),
        Finish(Stop(), ReplayEnvelope(None, ({"n": 0}, {"n": 1}))),
    ]
    assert assemble(*chunks) == Assembled((TextBlock("a"),), Stop(), None, ReplayEnvelope(None, ({"n": 1},)))


def test_entries_count_blocks_that_were_begun_or_say_something() -> None:
    """An empty piece, which providers send as noise, begins none that an adapter would count."""
    chunks: list[StreamChunk] = [TextDelta(0, ""), TextDelta(1, "a"), Finish(Stop(), ReplayEnvelope(None, ("a",)))]
    assert assemble(*chunks).replay == ReplayEnvelope(None, ("a",))


@pytest.mark.parametrize("reason", [Failed(FAILURE), Aborted(FAILURE)])
def test_a_failed_call_has_nothing_to_replay(reason: Failed | Aborted) -> None:
    assembled = assemble(TextDelta(0, "a"), Finish(reason, ReplayEnvelope("x", ("y",))))
    assert assembled == Assembled((TextBlock("a"),), reason, None, None)


def test_an_interrupted_stream_keeps_text_and_reasoning_that_are_not_blank_and_no_call() -> None:
    assembler = BlockAssembler()
    assert assembler.interrupted() == ()
    for chunk in (ReasoningDelta(0, " "), TextDelta(1, "Hel"), delta(2, '{"a', "x", "f"), ReasoningDelta(3, "hm ")):
        assembler.feed(chunk)
    assert assembler.interrupted() == (TextBlock("Hel"), ReasoningBlock("hm "))


def test_looking_at_a_stream_does_not_end_it() -> None:
    assembler = BlockAssembler()
    assembler.feed(TextDelta(0, "a"))
    assert assembler.interrupted() == assembler.result().content == (TextBlock("a"),)
    assembler.feed(TextDelta(0, "b"))
    assert assembler.result().content == (TextBlock("ab"),)


# -- the message


def test_the_message_has_the_replay_state_in_its_source_as_plain_json() -> None:
    replay = ReplayEnvelope({"id": "r-1"}, ({"signature": "s"},))
    assembled = assemble(TextDelta(0, "a"), Finish(Stop(), replay))
    state = {"response": {"id": "r-1"}, "blocks": ({"signature": "s"},)}
    id = message_id()
    expected = Message(id, "assistant", (TextBlock("a"),), ModelSource("mine", "m", state))
    assert assembled.message("mine", "m", id) == expected
    assert json.loads(json.dumps(expected.to_json()))["source"]["replay_state"] == {
        "response": {"id": "r-1"}, "blocks": [{"signature": "s"}],
    }  # fmt: skip


def test_a_message_without_replay_state_has_none_and_an_id_of_its_own() -> None:
    assembled = assemble(TextDelta(0, "a"), Finish(Stop()))
    one, other = assembled.message("mine", "m"), assembled.message("mine", "m")
    assert one.source == ModelSource("mine", "m", None)
    assert one.id != other.id


# -- cost


def test_the_time_to_assemble_grows_with_the_number_of_chunks() -> None:
    """A hundred thousand chunks, of interleaved blocks and of calls that all have one id; quadratic would be 16×."""

    def seconds(count: int) -> float:
        three: tuple[StreamChunk, ...] = (TextDelta(0, "a"), delta(1, "b", "x", "f"), ReasoningDelta(2, "c"))
        chunks = [three[number % 3] for number in range(count)]
        calls = [BlockStart(0, "tool-call", CallId("x"), "f") for _ in range(count // 10)]
        gc.collect()
        begun = time.perf_counter()
        assemble(*chunks)
        assemble(*calls)
        return time.perf_counter() - begun

    ratios = (min(seconds(100_000) for _ in range(3)) / min(seconds(25_000) for _ in range(3)) for _ in range(4))
    assert any(ratio < 6 for ratio in ratios)
