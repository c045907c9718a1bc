"""Content blocks: what each says, that it reads back as it was written, and what is refused."""

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd.capabilities.values import (
    CallId,
    ContentBlock,
    Extension,
    LossyValueError,
    MalformedValueError,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownKindError,
    block_from_json,
    call_id,
    text_of,
)
from dshd.capabilities.values.blocks import BLOCKS, DEEPEST_BLOCK, block_to_json, check_block

TEXT = st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from(["a", "\ud83d", "\ude00", "😀"]))
NAMES = TEXT.filter(bool)
DATA = st.dictionaries(
    TEXT.filter(lambda name: name not in ("type", "required")),
    st.none() | st.integers() | TEXT | st.lists(st.booleans(), max_size=3),
    max_size=3,
)
PLAIN = (
    st.builds(TextBlock, TEXT)
    | st.builds(ReasoningBlock, TEXT)
    | st.builds(ToolCallBlock, NAMES.map(CallId), NAMES, TEXT)
    | st.builds(Extension, NAMES.filter(lambda kind: kind not in BLOCKS), DATA, st.booleans())
)
ANY_BLOCK: st.SearchStrategy[ContentBlock] = st.recursive(
    PLAIN,
    lambda inner: st.builds(
        ToolResultBlock, NAMES.map(CallId), st.lists(inner, max_size=3).map(tuple), st.sampled_from([None, True, False])
    ),
    max_leaves=6,
)
checked = settings(max_examples=150, deadline=None, derandomize=True)


def reread(block: ContentBlock) -> ContentBlock:
    return block_from_json(json.loads(json.dumps(block_to_json(block), allow_nan=False)))


def results(depth: int) -> ContentBlock:
    block: ContentBlock = TextBlock("x")
    for _ in range(depth):
        block = ToolResultBlock(CallId("c"), (block,))
    return block


def results_json(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {"type": "text", "text": "x"}
    for _ in range(depth):
        data = {"type": "tool-result", "tool_call_id": "c", "content": [data]}
    return data


# -- what each is


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (TextBlock("hello"), {"type": "text", "text": "hello"}),
        (ReasoningBlock("hm"), {"type": "reasoning", "text": "hm"}),
        (
            ToolCallBlock(call_id("c1"), "shell", '{"a": 1'),
            {"type": "tool-call", "id": "c1", "name": "shell", "arguments": '{"a": 1'},
        ),
        (
            ToolResultBlock(call_id("c1"), (TextBlock("done"),)),
            {"type": "tool-result", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]},
        ),
        (
            ToolResultBlock(call_id("c1"), (), is_error=False),
            {"type": "tool-result", "tool_call_id": "c1", "content": [], "is_error": False},
        ),
        (
            Extension("image", {"url": "x"}, required=True),
            {"type": "image", "url": "x", "required": True},
        ),
    ],
)
def test_a_block_is_written_with_its_type_first_and_reads_back(block: ContentBlock, data: dict[str, Any]) -> None:
    assert block_to_json(block) == data
    assert next(iter(block_to_json(block))) == "type"
    assert block_from_json(data) == block


@checked
@given(ANY_BLOCK)
def test_any_block_reads_back_equal_after_it_was_written(block: ContentBlock) -> None:
    check_block(block, "a test")
    assert reread(block) == block
    assert repr(reread(block)) == repr(block)
    assert hash(reread(block)) == hash(block)


def test_reasoning_is_kept_apart_from_visible_text() -> None:
    content = (ReasoningBlock("hm"), TextBlock("hel"), ToolCallBlock(call_id("c"), "t", "{}"), TextBlock("lo"))
    assert text_of(content) == "hello"
    assert len({ReasoningBlock("x"), TextBlock("x")}) == 2


def test_the_arguments_of_a_call_stay_the_text_the_model_wrote() -> None:
    for raw in ("", "{", '{"a":1, "a":  2}', "[1e400]", "nonsense \ud83d"):
        block = ToolCallBlock(call_id("c"), "shell", raw)
        assert reread(block) == block
        assert block.arguments == raw


def test_the_content_of_a_result_nests_blocks() -> None:
    inner = ToolResultBlock(call_id("inner"), (TextBlock("a"), Extension("image", {"url": "x"})), is_error=True)
    outer = ToolResultBlock(call_id("outer"), [inner, TextBlock("b")])  # type: ignore[arg-type]
    assert outer.content == (inner, TextBlock("b"))
    assert reread(outer) == outer


def test_no_error_and_a_denied_one_are_told_apart() -> None:
    blocks = [ToolResultBlock(call_id("c"), (), each) for each in (None, False, True)]
    assert [reread(block) for block in blocks] == blocks
    assert len(set(blocks)) == 3


@pytest.mark.parametrize("kind", ["image", "audio", "video", "Text", "tool_call"])
def test_there_is_no_block_but_the_four_and_any_other_kind_is_an_extension(kind: str) -> None:
    data = {"type": kind, "source": {"media": "x"}, "text": "y"}
    block = block_from_json(data)
    assert type(block) is Extension
    assert block_to_json(block) == data


def test_a_character_that_was_sent_in_two_halves_is_whole_again() -> None:
    for block in (TextBlock("\ud83d" + "\ude00"), ReasoningBlock("\ud83d" + "\ude00")):
        assert block.text == "😀"
        assert reread(block) == block
    call = ToolCallBlock(CallId("\ud83d\ude00"), "\ud83d\ude00", '"\ud83d\ude00"')
    assert (call.id, call.name, call.arguments) == ("😀", "😀", '"😀"')
    assert ToolResultBlock(CallId("\ud83d\ude00"), ()).tool_call_id == "😀"


# -- immutable


@pytest.mark.parametrize(
    "block",
    [
        TextBlock("a"),
        ReasoningBlock("a"),
        ToolCallBlock(call_id("c"), "t", "{}"),
        ToolResultBlock(call_id("c"), (TextBlock("a"), Extension("image", {"sizes": [1, 2]}))),
        Extension("image", {"sizes": [1, {"a": []}]}),
    ],
)
def test_a_block_cannot_be_changed_and_survives_pickling_and_copying(block: Any) -> None:
    for field in dataclasses.fields(block):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(block, field.name, getattr(block, field.name))
    with pytest.raises((AttributeError, TypeError)):
        block.another = 1
    assert pickle.loads(pickle.dumps(block)) == block
    assert copy.deepcopy(block) == copy.copy(block) == block


def test_a_block_does_not_follow_what_it_was_made_of() -> None:
    data: dict[str, Any] = {"sizes": [1]}
    content: list[ContentBlock] = [TextBlock("a")]
    extension, result = Extension("image", data), ToolResultBlock(call_id("c"), content)  # type: ignore[arg-type]
    data["sizes"].append(2)
    content.clear()
    assert extension.data == {"sizes": (1,)}
    assert result.content == (TextBlock("a"),)


# -- what is refused


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        [],
        {},
        {"type": None},
        {"type": ""},
        {"type": 3},
        {"text": "x"},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": ["x"]},
        {"type": "reasoning", "text": 3},
        {"type": "tool-call", "id": "c", "name": "t"},
        {"type": "tool-call", "id": "c", "name": "t", "arguments": {"a": 1}},
        {"type": "tool-call", "id": 3, "name": "t", "arguments": "{}"},
        {"type": "tool-result", "content": []},
        {"type": "tool-result", "tool_call_id": "c"},
        {"type": "tool-result", "tool_call_id": "c", "content": "text"},
        {"type": "tool-result", "tool_call_id": "c", "content": ["text"]},
        {"type": "tool-result", "tool_call_id": "c", "content": [], "is_error": "yes"},
        {"type": "tool-result", "tool_call_id": "c", "content": [], "is_error": 1},
        {"type": "tool-result", "tool_call_id": "c", "content": [{"type": "text"}]},
        {"type": "image", "size": float("nan")},
    ],
    ids=repr,
)
def test_data_of_another_shape_is_malformed(data: Any) -> None:
    with pytest.raises(MalformedValueError):
        block_from_json(data)


def test_results_nest_to_a_limit_wherever_they_come_from() -> None:
    deepest = results(DEEPEST_BLOCK)
    check_block(deepest, "tool/result")
    assert reread(deepest) == deepest
    for depth in (DEEPEST_BLOCK + 1, 300):
        with pytest.raises(MalformedValueError, match="nested deeper"):
            block_from_json(results_json(depth))
        with pytest.raises(MalformedValueError, match="tool/result: tool results are nested deeper"):
            check_block(results(depth), "tool/result")


def test_a_required_kind_nobody_knows_is_refused_also_within_a_result() -> None:
    image = {"type": "image", "url": "x", "required": True}
    for data in (image, {"type": "tool-result", "tool_call_id": "c", "content": [image]}):
        assert block_from_json(data) == block_from_json(data, {"image"})
        with pytest.raises(UnknownKindError, match="a content block is of kind 'image'"):
            block_from_json(data, {"audio"})
    optional = {**image, "required": False}
    assert block_to_json(block_from_json(optional, ())) == optional


class Loud(str):
    def __repr__(self) -> str:
        return "loud"


class Shouting(TextBlock):
    pass


@pytest.mark.parametrize(
    "block",
    [
        None,
        "text",
        {"type": "text", "text": "x"},
        Shouting("x"),
        TextBlock(None),  # type: ignore[arg-type]
        TextBlock(b"x"),  # type: ignore[arg-type]
        ReasoningBlock(["x"]),  # type: ignore[arg-type]
        ToolCallBlock(3, "t", "{}"),  # type: ignore[arg-type]
        ToolCallBlock(call_id("c"), None, "{}"),  # type: ignore[arg-type]
        ToolCallBlock(call_id("c"), "t", {"a": 1}),  # type: ignore[arg-type]
        ToolResultBlock(None, ()),  # type: ignore[arg-type]
        ToolResultBlock(call_id("c"), (), is_error="yes"),  # type: ignore[arg-type]
        ToolResultBlock(call_id("c"), (), is_error=1),  # type: ignore[arg-type]
        ToolResultBlock(call_id("c"), "text"),  # type: ignore[arg-type]
        ToolResultBlock(call_id("c"), (TextBlock(3),)),  # type: ignore[arg-type]
        Extension("text", {"text": "x"}),
        Extension("tool-result", {}),
        Extension("image", {"type": "text"}),
        ToolResultBlock(call_id("c"), (Extension("reasoning", {}),)),
    ],
    ids=lambda block: f"{block!r:.40}",
)
def test_a_block_that_would_not_read_back_is_refused_by_its_check_with_the_event_named(block: Any) -> None:
    with pytest.raises(MalformedValueError, match=r"^user/message: "):
        check_block(block, "user/message")


def test_text_of_a_class_of_its_own_becomes_plain_text() -> None:
    block = TextBlock(Loud("x"))
    assert type(block.text) is str
    check_block(block, "a test")


def test_an_extension_with_data_that_json_cannot_hold_is_refused_as_it_is_made() -> None:
    with pytest.raises(LossyValueError, match=r"data of 'image'\.size: JSON has no nan"):
        Extension("image", {"size": float("nan")})
