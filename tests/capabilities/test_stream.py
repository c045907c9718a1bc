"""Chunks, finish reasons, usage and failures: what an adapter says, as values that a log can hold."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dshd.capabilities.llm import (
    Aborted,
    BlockEnd,
    BlockStart,
    Failed,
    FailureCode,
    Finish,
    LlmError,
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
from dshd.capabilities.llm.counts import LARGEST_SAFE
from dshd.capabilities.llm.stream import BlockType, check_chunk, chunk_to_json, finish_from_json, finish_to_json
from dshd.capabilities.values import CallId, Extension, LossyValueError, MalformedValueError, UnknownKindError
from dshd.capabilities.values.json import whole


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


# -- any chunk

Counts = st.integers(0, LARGEST_SAFE)
MaybeCounts = st.none() | Counts
Characters = st.characters(exclude_categories=()) | st.sampled_from("\ud83c\udf0d")  # halves of 🌍 too
Words = st.text(alphabet=Characters, max_size=20)
Pieces = Words.map(whole)
"""Text of deltas, which stays as the adapter cut it; a log puts a character together that came in two halves."""
Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | Words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Words, inner, max_size=3),
    max_leaves=8,
)
Failures = st.builds(
    LlmFailure,
    message=Words,
    code=st.sampled_from(["TIMEOUT", "MINE"]),
    status=MaybeCounts,
    provider_retry_after_ms=MaybeCounts,
    request_id=st.none() | Words,
)
Usages = st.builds(
    TokenUsage,
    input_tokens=Counts,
    output_tokens=Counts,
    cache_read_tokens=MaybeCounts,
    cache_write_tokens=MaybeCounts,
    reasoning_tokens=MaybeCounts,
)
Members = st.dictionaries(st.sampled_from(["category", "detail", "n"]), Json)
Reasons = st.one_of(
    st.sampled_from([Stop(), ToolCalls(), MaxTokens()]),
    st.builds(Aborted, Failures),
    st.builds(Failed, Failures),
    st.builds(Extension, st.sampled_from(["refusal", "pause"]), Members, st.booleans()),
)
Envelopes = st.builds(ReplayEnvelope, Json, st.none() | st.lists(Json, max_size=3).map(tuple))
Ids = st.none() | Pieces.map(CallId)
Indexes = Counts
Chunks: st.SearchStrategy[StreamChunk] = st.one_of(
    st.builds(BlockStart, Indexes, st.sampled_from(get_args(BlockType)), Ids, st.none() | Words),
    st.builds(TextDelta, Indexes, Pieces),
    st.builds(ReasoningDelta, Indexes, Pieces),
    st.builds(ToolCallDelta, Indexes, Pieces, Ids, st.none() | Pieces),
    st.builds(BlockEnd, Indexes),
    st.builds(UsageReport, Usages),
    st.builds(Finish, Reasons, st.none() | Envelopes),
)


@given(Chunks)
def test_every_chunk_comes_back_from_its_json_as_it_was(chunk: StreamChunk) -> None:
    check_chunk(chunk, "a chunk")
    written = chunk_to_json(chunk)
    assert next(iter(written)) == "type"
    assert chunk_from_json(through_json(written)) == chunk
    assert chunk_from_json(written) == chunk
    check_chunk(chunk_from_json(through_json(written)), "a chunk")


@given(Json | st.dictionaries(st.sampled_from(["type", "index", "text", "reason", "usage", "replay"]), Json))
def test_anything_else_is_refused_by_name_and_not_by_accident(data: Any) -> None:
    try:
        chunk_from_json(data)
    except MalformedValueError:
        return
    pytest.fail(f"{data} is no chunk")


def test_the_kinds_of_chunks_are_seven() -> None:
    kinds = {kind.type for kind in get_args(StreamChunk)}
    assert kinds == {
        "block-start", "text-delta", "reasoning-delta", "tool-call-delta", "block-end", "usage", "finish",
    }  # fmt: skip


def test_the_json_of_a_chunk_has_the_names_of_the_protocol_and_leaves_out_what_is_not_there() -> None:
    assert chunk_to_json(TextDelta(0, "a")) == {"type": "text-delta", "index": 0, "text": "a"}
    assert chunk_to_json(ToolCallDelta(1, "{")) == {"type": "tool-call-delta", "index": 1, "arguments": "{"}
    assert chunk_to_json(BlockStart(1, "tool-call", CallId("x"), "f")) == {
        "type": "block-start", "index": 1, "block": "tool-call", "call_id": "x", "name": "f",
    }  # fmt: skip
    assert chunk_to_json(Finish(Stop())) == {"type": "finish", "reason": {"kind": "stop"}}


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text-delta",
        {},
        {"type": "text"},
        {"type": "text-delta", "index": 0},
        {"type": "text-delta", "index": "0", "text": ""},
        {"type": "text-delta", "index": True, "text": ""},
        {"type": "text-delta", "index": 0, "text": 5},
        {"type": "tool-call-delta", "index": 0, "arguments": {}},
        {"type": "tool-call-delta", "index": 0, "arguments": "", "call_id": 1},
        {"type": "block-start", "index": 0, "block": "image"},
        {"type": "usage"},
        {"type": "usage", "usage": {"input_tokens": -1, "output_tokens": 0}},
        {"type": "usage", "usage": {"input_tokens": 1.5, "output_tokens": 0}},
        {"type": "usage", "usage": {"input_tokens": 2**53, "output_tokens": 0}},
        {"type": "finish"},
        {"type": "finish", "reason": {"kind": "error"}},
        {"type": "finish", "reason": {"kind": "aborted", "failure": []}},
        {"type": "finish", "reason": {"kind": "error", "failure": {"message": "m"}}},
        {"type": "finish", "reason": {"kind": ""}},
        {"type": "finish", "reason": {"kind": "stop"}, "replay": []},
        {"type": "finish", "reason": {"kind": "stop"}, "replay": {"blocks": "x"}},
    ],
)
def test_json_of_another_shape_is_malformed(data: Any) -> None:
    with pytest.raises(MalformedValueError):
        chunk_from_json(data)


class LookAlike(Stop):
    """Equal to no reason that is read from a log."""


BAD: list[Any] = [
    None,
    {"type": "text-delta", "index": 0, "text": "a"},
    TextDelta(0, b"a"),  # type: ignore[arg-type]
    TextDelta("0", "a"),  # type: ignore[arg-type]
    TextDelta(True, "a"),
    TextDelta(-1, "a"),
    BlockEnd(2**53),
    ReasoningDelta(0, None),  # type: ignore[arg-type]
    ToolCallDelta(0, {}),  # type: ignore[arg-type]
    ToolCallDelta(0, "", 5),  # type: ignore[arg-type]
    ToolCallDelta(0, "", None, 5),  # type: ignore[arg-type]
    BlockStart(0, "image"),  # type: ignore[arg-type]
    BlockEnd(None),  # type: ignore[arg-type]
    UsageReport({"input_tokens": 1}),  # type: ignore[arg-type]
    Finish("stop"),  # type: ignore[arg-type]
    Finish(Stop(), {"response": 1}),  # type: ignore[arg-type]
    Finish(Extension("stop", {})),
    Finish(Extension("error", {"failure": "x"})),
    Finish(Failed(None)),  # type: ignore[arg-type]
    Finish(Aborted("the user")),  # type: ignore[arg-type]
    Finish(LookAlike()),
    type("OwnDelta", (TextDelta,), {})(0, "a"),
    type("OwnFinish", (Finish,), {})(Stop()),
    UsageReport(type("OwnUsage", (TokenUsage,), {})()),
]


@pytest.mark.parametrize("chunk", BAD)
def test_a_chunk_that_would_be_another_one_in_the_log_is_found(chunk: Any) -> None:
    with pytest.raises(MalformedValueError, match="from an adapter"):
        check_chunk(chunk, "from an adapter")


def test_chunks_cannot_be_changed() -> None:
    chunk = Finish(Stop(), ReplayEnvelope({"items": [{"id": 1}]}, ({"s": [1]},)))
    assert chunk.replay is not None
    with pytest.raises(AttributeError):
        TextDelta(0, "a").text = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        chunk.replay.blocks = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        chunk.replay.response["items"][0]["id"] = 2
    with pytest.raises(AttributeError):
        chunk.replay.response["items"].append(3)
    with pytest.raises(TypeError):
        chunk.replay.blocks[0]["s"] = []  # type: ignore[index]


# -- why it stopped


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        (Stop(), {"kind": "stop"}),
        (ToolCalls(), {"kind": "tool-calls"}),
        (MaxTokens(), {"kind": "max-tokens"}),
        (
            Aborted(LlmFailure(message="m", code="ABORTED")),
            {"kind": "aborted", "failure": {"message": "m", "code": "ABORTED"}},
        ),
        (
            Failed(LlmFailure(message="m", code="AUTH", status=401)),
            {"kind": "error", "failure": {"message": "m", "code": "AUTH", "status": 401}},
        ),
        (Extension("refusal", {"category": "x"}), {"kind": "refusal", "category": "x"}),
    ],
)
def test_a_reason_has_its_kind_and_a_failed_one_its_failure(reason: Any, written: dict[str, Any]) -> None:
    assert finish_to_json(reason) == written
    assert finish_from_json(through_json(written)) == reason


def test_a_reason_of_an_adapter_is_kept_unless_it_is_required_and_nobody_knows_it() -> None:
    written = chunk_to_json(Finish(Extension("refusal", {}, required=True)))
    assert chunk_from_json(written) == Finish(Extension("refusal", {}, required=True))
    assert chunk_from_json(written, {"refusal"}) == Finish(Extension("refusal", {}, required=True))
    with pytest.raises(UnknownKindError, match="refusal"):
        chunk_from_json(written, {"pause"})
    with pytest.raises(UnknownKindError, match="refusal"):
        chunk_from_json(written, frozenset())


# -- what it used


def test_billed_input_is_the_sum_of_three_disjoint_counts() -> None:
    usage = TokenUsage(
        input_tokens=10, output_tokens=5, cache_read_tokens=200, cache_write_tokens=30, reasoning_tokens=4
    )
    assert usage.billed_input_tokens == 240
    assert TokenUsage(input_tokens=10, output_tokens=5).billed_input_tokens == 10


def test_counts_that_are_not_known_are_left_out_and_zero_is_known() -> None:
    assert TokenUsage(input_tokens=1).to_json() == {"input_tokens": 1, "output_tokens": 0}
    known = TokenUsage(input_tokens=1, output_tokens=2, cache_read_tokens=0)
    assert known.to_json() == {"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 0}
    assert TokenUsage.from_json(through_json(known.to_json())) == known


@pytest.mark.parametrize("count", [-1, 1.0, True, "1", float("nan"), 2**53, pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize(
    "name", ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"]
)
def test_what_is_no_count_is_refused_with_its_name(name: str, count: Any) -> None:
    with pytest.raises(MalformedValueError, match=name):
        TokenUsage(**{name: count})


# -- what went wrong


def test_a_failure_carries_message_code_and_facts_of_the_provider() -> None:
    failure = LlmFailure(
        message="slow down", code=FailureCode.RATE_LIMITED, status=429, provider_retry_after_ms=1500, request_id="r-1"
    )
    assert failure.to_json() == {
        "message": "slow down", "code": "RATE_LIMITED", "status": 429, "provider_retry_after_ms": 1500,
        "request_id": "r-1",
    }  # fmt: skip
    assert LlmFailure(message="", code="MINE").to_json() == {"message": "", "code": "MINE"}


@given(Failures)
def test_every_failure_comes_back_from_its_json_as_it_was(failure: LlmFailure) -> None:
    assert LlmFailure.from_json(through_json(failure.to_json())) == failure


@pytest.mark.parametrize(
    "members",
    [
        {"message": None},
        {"message": ValueError("x")},
        {"code": ""},
        {"code": 429},
        {"status": "429"},
        {"status": True},
        {"provider_retry_after_ms": 1.5},
        {"provider_retry_after_ms": -1},
        {"provider_retry_after_ms": 10**5000},
        {"request_id": 7},
    ],
)
def test_a_failure_that_could_not_be_logged_is_refused_where_it_is_made(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedValueError):
        LlmFailure(**{"message": "m", "code": "MINE", **members})


def test_a_character_in_two_halves_is_put_together_where_text_is_at_rest() -> None:
    assert LlmFailure(message="\ud83c\udf0d", code="MINE").message == "🌍"
    assert BlockStart(0, "tool-call", CallId("\ud83c\udf0d")).call_id == "🌍"


def test_an_error_is_the_failure_it_carries() -> None:
    failure = LlmFailure(message="no key", code=FailureCode.AUTH, status=401)
    assert LlmError(failure).failure is failure
    assert (str(LlmError(failure)), LlmError(failure).code) == ("no key", "AUTH")
    assert LlmError("no such", FailureCode.NO_ADAPTER).failure == LlmFailure(message="no such", code="NO_ADAPTER")
    assert LlmError("it broke").code == FailureCode.PROVIDER


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", object(), {1: 2}, {"a": {3}}])
def test_replay_state_that_is_no_json_is_refused_where_it_is_made(value: Any) -> None:
    with pytest.raises(LossyValueError):
        ReplayEnvelope(value)
    with pytest.raises(LossyValueError):
        ReplayEnvelope(None, (value,))
