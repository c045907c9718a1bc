"""JSON as data: what is legal reads back equal and cannot be changed, everything else is refused with its place."""

import copy
import json
import math
import pickle
from collections import OrderedDict, UserDict, UserList, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd import DshdError
from dshd.capabilities.values import EMPTY, FrozenDict, LossyValueError, MalformedValueError, frozen
from dshd.capabilities.values.json import DEEPEST, LARGEST, MOST, array, member, optional, whole

LONE, PAIR = "\ud83d", "\ud83d\ude00"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Metres(float):
    pass


class Plain(Enum):
    A = "a"


class Point(NamedTuple):
    x: int
    y: int


TEXT = st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from(["a", "é", "\ud83d", "\ude00", "😀"]))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
    | st.sampled_from([Colour.RED, Level.HIGH, Metres(2.5), 10**3999, -(10**3999), -0.0, 5e-324, 1.7e308])
)  # fmt: skip
LEGAL = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.just(Colour.RED) | st.just("\ud83d"), inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=2).map(MappingProxyType)
    ),
    max_leaves=12,
)
checked = settings(max_examples=150, deadline=None, derandomize=True)


def reread(value: object) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def parts_of(value: Any) -> list[Any]:
    """A value and everything in it, keys too."""
    if isinstance(value, dict):
        return [value, *(part for pair in value.items() for each in pair for part in parts_of(each))]
    if isinstance(value, tuple):
        return [value, *(part for each in value for part in parts_of(each))]
    return [value]


def refusal(value: object, what: str = "value") -> str:
    with pytest.raises(LossyValueError) as caught:
        frozen(value, what)
    return str(caught.value)


# -- what is legal


@checked
@given(LEGAL)
def test_whatever_is_legal_reads_back_equal_after_it_was_written(value: Any) -> None:
    kept = frozen(value)
    again = frozen(reread(kept))
    assert again == kept
    assert repr(again) == repr(kept), "of the same types too: 1 is neither True nor 1.0, and -0.0 not 0"


@checked
@given(LEGAL)
def test_freezing_changes_nothing_and_leaves_nothing_that_can_be_changed(value: Any) -> None:
    before = repr(value)
    kept = frozen(value)
    assert repr(value) == before
    types = {FrozenDict, tuple, str, int, float, bool, type(None)}
    assert {type(part) for part in parts_of(kept)} <= types


@checked
@given(LEGAL)
def test_what_is_frozen_already_is_returned_as_it_is(value: Any) -> None:
    kept = frozen(value)
    assert frozen(kept) is kept
    assert all(frozen(part) is part for part in parts_of(kept))


def test_a_frozen_copy_does_not_follow_its_original() -> None:
    inner: dict[str, Any] = {"list": [1]}
    kept = frozen({"inner": inner, "again": (inner,)})
    inner["list"].append(2)
    inner["more"] = 3
    assert kept == {"inner": {"list": (1,)}, "again": ({"list": (1,)},)}


@pytest.mark.parametrize("half_frozen", [FrozenDict(a=[1]), ([1],), FrozenDict(a=FrozenDict(b=[1])), ((0, [1]),)])
def test_what_is_frozen_on_the_outside_only_is_frozen_through(half_frozen: Any) -> None:
    assert all(type(part) is not list for part in parts_of(frozen(half_frozen)))
    assert frozen(half_frozen) is not half_frozen


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Metres(2.5), 2.5),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (FrozenDict({Colour.RED: 1}), {"red": 1}),
        (Point(1, 2), (1, 2)),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": (1,)}),
        (UserDict({"a": 1}), {"a": 1}),
    ],
)
def test_what_has_a_class_of_its_own_becomes_what_it_is_without_it(value: Any, kept: Any) -> None:
    assert frozen(value) == kept
    assert repr(reread(frozen(value))) == repr(reread(kept))
    assert {type(part) for part in parts_of(frozen(value))} <= {FrozenDict, tuple, str, int, float}


def test_the_order_of_members_is_kept() -> None:
    assert list(frozen({"b": 1, "a": 2})) == ["b", "a"]


# -- text


def test_a_surrogate_that_is_alone_is_kept() -> None:
    value = {LONE: [LONE, f"a{LONE}b", "\udc80"]}
    assert frozen(value) == {LONE: (LONE, f"a{LONE}b", "\udc80")}
    assert reread(frozen(value)) == value


def test_two_surrogates_that_stand_for_a_character_become_it_for_json_gives_back_no_other() -> None:
    assert reread(PAIR) == "😀" != PAIR
    assert frozen({PAIR: [PAIR, f"{LONE}{PAIR}"]}) == {"😀": ("😀", f"{LONE}😀")}
    assert whole(PAIR) == "😀"
    assert whole("\ude00\ud83d") == "\ude00\ud83d", "the wrong way round they stand for nothing"


def test_two_keys_that_would_be_one_after_that_are_refused() -> None:
    assert refusal({PAIR: 1, "😀": 2}) == "value: two keys are the same text"


# -- what is refused


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "JSON has no nan"),
        (math.inf, "JSON has no inf"),
        (-math.inf, "JSON has no -inf"),
        (Metres("nan"), "JSON has no nan"),
        (10**5000, "the number has more digits than can be written"),
        (-(10**5000), "the number has more digits than can be written"),
        (LARGEST, "the number has more digits than can be written"),
        (b"bytes", "bytes is no JSON"),
        (bytearray(b"x"), "bytearray is no JSON"),
        (datetime(2024, 1, 1, tzinfo=UTC), "datetime is no JSON"),
        (Decimal(1), "Decimal is no JSON"),
        (1j, "complex is no JSON"),
        ({1, 2}, "set is no JSON"),
        (frozenset({1}), "frozenset is no JSON"),
        (Plain.A, "Plain is no JSON"),
        (object(), "object is no JSON"),
        (int, "type is no JSON"),
        (iter([1]), "list_iterator is no JSON"),
        (UserList([1]), "UserList is no JSON"),
        ({1: "a"}, "a key is int, not text"),
        ({None: "a"}, "a key is NoneType, not text"),
        ({b"a": "a"}, "a key is bytes, not text"),
        ({("a", "b"): "a"}, "a key is tuple, not text"),
        ({True: "a"}, "a key is bool, not text"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_json_cannot_hold_is_refused_wherever_it_stands(value: Any, why: str) -> None:
    assert refusal(value) == f"value: {why}"
    assert refusal({"a": [0, value]}, "todo/write") == f"todo/write.a[1]: {why}"
    assert refusal(FrozenDict(a=(value,)), "meta") == f"meta.a[0]: {why}"


def test_a_refusal_has_its_parts_and_is_told_as_malformed() -> None:
    with pytest.raises(LossyValueError) as caught:
        frozen({"a": {"b": math.nan}}, "todo/write")
    error = caught.value
    assert (error.what, error.path, error.why) == ("todo/write", ".a.b", "JSON has no nan")
    assert isinstance(error, (DshdError, MalformedValueError, ValueError))


def test_the_place_of_a_refusal_is_short_and_can_be_printed() -> None:
    value = {"an odd name": {LONE: {"x" * 1000: [object()]}}}
    message = refusal(value)
    assert message == f"value['an odd name']['\\ud83d']['{'x' * 40}'][0]: object is no JSON"
    message.encode()


def nested(depth: int, around: Callable[[Any], Any], innermost: Any = 0) -> Any:
    value = innermost
    for _ in range(depth):
        value = around(value)
    return value


@pytest.mark.parametrize("around", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: FrozenDict(a=v)])
def test_depth_has_a_limit(around: Callable[[Any], Any]) -> None:
    assert reread(frozen(nested(DEEPEST, around))) == reread(nested(DEEPEST, around))
    for depth in (DEEPEST + 1, 100_000):
        message = refusal(nested(depth, around))
        assert message.endswith(f"…: nested deeper than {DEEPEST} levels")
        assert len(message) < 100


def test_what_contains_itself_is_refused() -> None:
    mapping: dict[str, Any] = {}
    mapping["self"] = mapping
    sequence: list[Any] = []
    sequence += [sequence, sequence]
    crossed: dict[str, Any] = {"a": [mapping, sequence]}
    mapping["crossed"] = crossed
    for value in (mapping, sequence, crossed):
        assert "nested deeper" in refusal(value)


def test_a_few_lists_that_multiply_are_refused_before_they_fill_the_memory() -> None:
    assert refusal(nested(60, lambda value: [value, value])).endswith(f"more than {MOST} values")
    assert refusal([0] * (MOST + 1)) == f"value: more than {MOST} values"
    assert len(frozen([0] * MOST)) == MOST


def test_the_largest_numbers_read_back() -> None:
    for number in (LARGEST - 1, 1 - LARGEST, 2**64, -(2**63) - 1):
        assert frozen(number) is number
        assert reread(number) == number


# -- the mapping


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__("a", 2),
        lambda d: d.__delitem__("a"),
        lambda d: d.update(a=2),
        lambda d: d.update({}),
        lambda d: d.pop("a"),
        lambda d: d.pop("z", None),
        lambda d: d.popitem(),
        lambda d: d.clear(),
        lambda d: d.setdefault("z", 1),
        lambda d: d.__ior__({"a": 2}),
        lambda d: setattr(d, "more", 1),
    ],
)
def test_a_frozen_mapping_refuses_every_change(change: Callable[[FrozenDict], object]) -> None:
    kept = frozen({"a": 1})
    with pytest.raises((TypeError, AttributeError)):
        change(kept)
    assert kept == {"a": 1}


def test_a_frozen_mapping_is_not_changed_by_an_update_in_place() -> None:
    kept = other = frozen({"a": 1})
    with pytest.raises(TypeError, match="immutable"):
        kept |= {"b": 2}
    with pytest.raises(TypeError, match="immutable"):
        del kept["a"]
    assert other == {"a": 1}


def test_a_changed_copy_of_a_frozen_mapping_is_an_ordinary_one() -> None:
    kept = frozen({"a": 1})
    for changed in ({**kept, "b": 2}, kept | {"b": 2}):
        assert type(changed) is dict
        assert changed == {"a": 1, "b": 2}


def test_a_frozen_mapping_survives_pickling_and_copying() -> None:
    kept = frozen({"a": {"b": [1, {"c": None}]}})
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(kept, protocol))
        assert again == kept
        assert frozen(again) is again
    assert copy.copy(kept) is kept
    assert copy.deepcopy(kept) is kept
    half = FrozenDict(a=[1])
    assert copy.deepcopy(half)["a"] is not half["a"]


def test_a_frozen_mapping_is_written_by_json_and_by_orjson() -> None:
    kept = frozen({"a": {"b": [1, {"c": None}]}, "d": []})
    assert json.dumps(kept) == '{"a": {"b": [1, {"c": null}]}, "d": []}'
    assert orjson.dumps(kept) == b'{"a":{"b":[1,{"c":null}]},"d":[]}'


def test_frozen_mappings_compare_by_what_is_in_them_and_hash_alike() -> None:
    one, two = frozen({"a": [1], "b": {}}), frozen({"b": {}, "a": (1,)})
    assert one == two == {"a": (1,), "b": {}}
    assert hash(one) == hash(two)
    assert {one: "found"}[two] == "found"
    assert hash(EMPTY) == hash(FrozenDict())


# -- reading what was stored


def test_a_member_is_of_exactly_the_type_that_is_asked_for() -> None:
    data = {"text": "x", "empty": "", "number": 3, "zero": 0, "half": 0.5, "yes": True, "no": False, "map": {}}
    assert member(data, "text", str, "a thing") == "x"
    assert member(data, "empty", str, "a thing") == ""
    assert member(data, "zero", int, "a thing") == 0
    assert member(data, "no", bool, "a thing") is False
    assert member(data, "map", dict, "a thing") == {}
    assert member(frozen(data), "map", dict, "a thing") == {}
    assert member(data, "half", float, "a thing") == 0.5
    assert type(member(data, "number", float, "a thing")) is float
    wrong: list[tuple[str, type]] = [
        ("yes", int), ("yes", float), ("number", bool), ("half", int), ("number", str), ("text", dict), ("text", bool),
    ]  # fmt: skip
    for name, kind in wrong:
        with pytest.raises(MalformedValueError, match=f"'{name}' of a thing is .*, not {kind.__name__}"):
            member(data, name, kind, "a thing")


def test_an_absent_member_is_an_error_unless_it_is_optional() -> None:
    for data in ({}, {"name": None}):
        with pytest.raises(MalformedValueError, match="a thing has no 'name'"):
            member(data, "name", str, "a thing")
        assert optional(data, "name", str, "a thing") is None
        assert array(data, "name", "a thing") == ()
        with pytest.raises(MalformedValueError, match="a thing has no 'name'"):
            array(data, "name", "a thing", required=True)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, -(10**5000)], ids=lambda n: f"{n > 0}")
def test_a_number_that_no_float_holds_is_malformed(number: float) -> None:
    with pytest.raises(MalformedValueError, match="'n' of a thing"):
        member({"n": number}, "n", float, "a thing")


@pytest.mark.parametrize("data", [None, [], "text", 3, True])
def test_what_is_no_object_has_no_members(data: object) -> None:
    for read in (lambda: member(data, "n", str, "a thing"), lambda: array(data, "n", "a thing")):
        with pytest.raises(MalformedValueError, match=f"a thing is {type(data).__name__}, not an object"):
            read()


def test_a_list_is_a_list_and_comes_as_a_tuple() -> None:
    assert array({"n": [1, 2]}, "n", "a thing") == array(frozen({"n": [1, 2]}), "n", "a thing") == (1, 2)
    for wrong in ("text", {"a": 1}, 3):
        with pytest.raises(MalformedValueError, match=r"'n' of a thing is .*, not a list"):
            array({"n": wrong}, "n", "a thing", required=True)
