"""Open unions: plugins add kinds, stored kinds nobody knows any more are kept, required ones refuse."""

import json
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, ConfigDict, field_validator

from dshd import Config, Context, RegistryKey, plugin
from dshd.capabilities.llm.stream import finish_from_json, finish_to_json
from dshd.capabilities.values import (
    BLOCK_KINDS,
    EVENT_KINDS,
    FINISH_KINDS,
    SOURCE_KINDS,
    TURN_END_KINDS,
    CallId,
    Extension,
    Kind,
    LossyValueError,
    MalformedValueError,
    Message,
    MessageId,
    TextBlock,
    ToolResultBlock,
    UnknownKindError,
    UserSource,
    block_from_json,
    message_from_json,
    source_from_json,
    user_message,
)
from dshd.capabilities.values.blocks import block_to_json
from dshd.capabilities.values.message import source_to_json
from dshd.testing.kernel import running

UNIONS = [BLOCK_KINDS, SOURCE_KINDS, FINISH_KINDS, TURN_END_KINDS, EVENT_KINDS]

Reread = Callable[[dict[str, Any]], dict[str, Any]]

READERS: list[tuple[str, Reread]] = [
    ("type", lambda data: block_to_json(block_from_json(data))),
    ("kind", lambda data: source_to_json(source_from_json(data))),
    ("kind", lambda data: finish_to_json(finish_from_json(data))),
]
"""The tag of a union, and its data read and written again."""


class Unit(Enum):
    PIXEL = "px"


class Image(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: str
    sizes: list[int] = []
    unit: Unit = Unit.PIXEL
    taken: datetime | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    sizes: list[dict[str, int]]


class Clumsy(BaseModel):
    how: str

    @field_validator("how")
    @classmethod
    def stumble(cls, how: str) -> str:
        if how == "exit":
            raise SystemExit(3)
        raise KeyError(how)


IMAGE = Kind(description="a picture", model=Image)

# -- what is stored


@pytest.mark.parametrize(("tag", "reread"), READERS)
@pytest.mark.parametrize(
    "data",
    [
        {},
        {"url": "x", "nested": {"a": [1, None, {"b": "\ud83d"}]}},
        {"required": False, "url": "x"},
        {"url": "x", "required": "yes"},
        {"required": None},
        {"required": 1},
        {"required": {"really": True}},
        {"url": "x", "required": True},
        {"text": "x", "content": [], "id": 3, "number": 10**300},
    ],
    ids=repr,
)
def test_a_stored_kind_nobody_knows_is_kept_byte_for_byte(tag: str, reread: Reread, data: dict[str, Any]) -> None:
    stored = json.dumps({tag: "future", **data})
    assert json.dumps(reread(json.loads(stored))) == stored


def test_a_required_kind_that_nobody_registers_refuses_to_be_read() -> None:
    data = {"type": "image", "url": "x", "required": True}
    with pytest.raises(UnknownKindError, match="'image', which no plugin here provides") as caught:
        block_from_json(data, {"audio"})
    assert (caught.value.what, caught.value.kind) == ("a content block", "image")
    assert block_from_json(data, {"image"}) == block_from_json(data) == Extension("image", {"url": "x"}, required=True)
    with pytest.raises(UnknownKindError):
        source_from_json({"kind": "webhook", "required": True}, ())
    with pytest.raises(UnknownKindError):
        finish_from_json({"kind": "filtered", "required": True}, ())


@pytest.mark.parametrize("required", [False, None, "yes", 1, {}], ids=repr)
def test_only_what_is_marked_required_by_a_true_refuses(required: object) -> None:
    assert not block_from_json({"type": "image", "required": required}, ()).required  # type: ignore[union-attr]


# -- making one


def test_an_extension_says_itself_whether_it_is_required() -> None:
    assert Extension("image", {"url": "x"}, required=True).to_json("type") == {
        "type": "image", "url": "x", "required": True,
    }  # fmt: skip
    for required in (True, False):
        with pytest.raises(MalformedValueError, match="required=…"):
            Extension("image", {"required": True}, required)
    with pytest.raises(MalformedValueError, match="required=…"):
        Extension("image", {"required": False}, required=True)


@pytest.mark.parametrize(
    ("kind", "data", "required"),
    [
        ("", {}, False),
        (3, {}, False),
        (10**5000, {}, False),
        (None, {}, False),
        ("image", [], False),
        ("image", None, False),
        ("image", "text", False),
        ("image", {}, "yes"),
        ("image", {}, None),
    ],
    ids=lambda part: f"{type(part).__name__}",
)
def test_an_extension_of_another_shape_is_refused(kind: Any, data: Any, required: Any) -> None:
    with pytest.raises(MalformedValueError):
        Extension(kind, data, required)


def test_a_member_that_would_hide_the_kind_is_refused_before_it_is_written() -> None:
    extension = Extension("image", {"type": "text", "text": "x"})
    with pytest.raises(MalformedValueError, match="'type'"):
        extension.to_json("type")
    with pytest.raises(MalformedValueError, match=r"^e: .*'type'"):
        extension.check("e", "type", ())
    assert extension.to_json("kind") == {"kind": "image", "type": "text", "text": "x"}


def test_data_that_json_cannot_hold_is_refused_with_the_kind_named() -> None:
    with pytest.raises(LossyValueError, match=r"data of 'todo/write'\.todos\[0\]: set is no JSON"):
        Extension("todo/write", {"todos": [{1}]})


# -- registered kinds


def test_a_registered_kind_checks_the_data() -> None:
    IMAGE.check(Extension("image", {"url": "x", "sizes": [1, 2], "unit": "px", "taken": "2024-01-01T00:00:00Z"}))
    for data, place in (({}, "url"), ({"url": "x", "sizes": [1, "b"]}, "sizes.1"), ({"url": "x", "z": 1}, "z")):
        with pytest.raises(MalformedValueError, match=f"user/message: data of 'image', {place}: ") as caught:
            IMAGE.check(Extension("image", data), "user/message")
        assert "pydantic" not in str(caught.value)
    Kind().check(Extension("anything", {"a": [1]}))


def test_a_strict_model_is_given_lists_as_json_has_them() -> None:
    kind = Kind(model=Strict)
    kind.check(Extension("image", {"sizes": [{"w": 1}]}))
    with pytest.raises(MalformedValueError, match=r"sizes\.0\.w"):
        kind.check(Extension("image", {"sizes": [{"w": "1"}]}))


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_check_that_breaks_refuses_the_value_and_nothing_else(how: str) -> None:
    with pytest.raises(MalformedValueError, match="user/message: the check of 'image' failed: ") as caught:
        Kind(model=Clumsy).check(Extension("image", {"how": how}), "user/message")
    assert isinstance(caught.value.__cause__, (KeyError, SystemExit))


def test_a_kind_that_readers_must_know_is_not_recorded_as_one_they_may_skip() -> None:
    kind = Kind(required=True)
    kind.check(Extension("image", {}, required=True))
    with pytest.raises(MalformedValueError, match="say required=True"):
        kind.check(Extension("image", {}))


# -- the kinds of a message


def test_checking_a_message_checks_its_extensions_wherever_they_stand() -> None:
    blocks, sources = {"image": IMAGE}, {"webhook": Kind(model=Image)}
    good, bad = Extension("image", {"url": "x"}), Extension("image", {"url": 3})
    hook, bad_hook = Extension("webhook", {"url": "x"}), Extension("webhook", {})

    def message(block: Any, source: Any) -> Message:
        nested = ToolResultBlock(CallId("a"), (ToolResultBlock(CallId("b"), (TextBlock("x"), block)),))
        return user_message([TextBlock("x"), nested], source)

    message(good, hook).check("user/message", blocks, sources)
    message(bad, bad_hook).check("user/message")
    message(bad, bad_hook).check("user/message", {"audio": IMAGE}, {})
    with pytest.raises(MalformedValueError, match=r"^user/message: data of 'image', url: "):
        message(bad, hook).check("user/message", blocks, sources)
    with pytest.raises(MalformedValueError, match=r"^user/message: data of 'webhook', url: "):
        message(good, bad_hook).check("user/message", blocks, sources)


@pytest.mark.anyio
async def test_a_plugin_adds_a_kind_to_each_open_union_and_takes_it_back_with_itself() -> None:
    @plugin("pictures")
    async def pictures(ctx: Context, config: Config) -> None:
        for union in UNIONS:
            ctx.registry(union).add("pictures/image", IMAGE)

    with anyio.fail_after(5):
        async with running() as root:
            fiber = root.plugin(pictures)
            await fiber.settled()
            assert len({union.name for union in UNIONS}) == 5
            assert [root.registry(union)["pictures/image"] for union in UNIONS] == [IMAGE] * 5
            await fiber.dispose()
            assert [list(root.registry(union)) for union in UNIONS] == [[]] * 5


@pytest.mark.anyio
async def test_a_registry_is_what_readers_and_checkers_ask_and_a_kind_outlives_its_plugin_in_what_is_stored() -> None:
    def row(key: RegistryKey[Kind], kind: Kind) -> Any:
        @plugin(f"row of {key.name}")
        async def body(ctx: Context, config: Config) -> None:
            ctx.registry(key).add("image", kind)

        return body

    stored: dict[str, Any] = {
        "id": "m", "role": "user", "source": {"kind": "user"},
        "content": [{"type": "image", "url": "x"}, {"type": "image", "url": "y", "required": True}],
    }  # fmt: skip
    with anyio.fail_after(5):
        async with running() as root:
            fiber = root.plugin(row(BLOCK_KINDS, IMAGE))
            await fiber.settled()
            blocks, sources = root.registry(BLOCK_KINDS), root.registry(SOURCE_KINDS)
            message = message_from_json(stored, blocks, sources)
            message.check("user/message", blocks, sources)
            unfit = Message(MessageId("m"), "user", (Extension("image", {}),), UserSource())
            with pytest.raises(MalformedValueError, match="url"):
                unfit.check("user/message", blocks, sources)
            await fiber.dispose()
            unfit.check("user/message", blocks, sources)
            with pytest.raises(UnknownKindError):
                message_from_json(stored, blocks, sources)
            stored["content"] = stored["content"][:1]
            assert message_from_json(stored, blocks, sources).to_json() == stored
