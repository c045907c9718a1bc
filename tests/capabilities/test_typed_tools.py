"""`@tool`: what a typed function becomes, what its arguments may be, and how a bad definition is refused."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Awaitable, Callable
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dshd import Aborter, ServiceKey, Signal
from dshd.capabilities.tools import InvalidArgumentsError, ToolCall, ToolDefinition, tool
from dshd.capabilities.tools.arguments import LONGEST_SHAPE, shape
from dshd.capabilities.values import CallId, frozen
from dshd.kernel.errors import PluginDefinitionError
from dshd.testing.kernel import running

if TYPE_CHECKING:
    from decimal import Decimal as Unimported

pytestmark = pytest.mark.anyio


def a_call(arguments: dict[str, Any] | None = None, **more: Any) -> ToolCall:
    return ToolCall(id=CallId("call"), name="x", raw_arguments="", arguments=frozen(arguments or {}), **more)


def refusal(definition: ToolDefinition, arguments: dict[str, Any]) -> str:
    assert definition.check is not None
    with pytest.raises(InvalidArgumentsError) as caught:
        definition.check(frozen(arguments))
    return str(caught.value)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Filter(BaseModel):
    """What to look for."""

    title: str
    colour: Colour = Colour.RED
    most: int = Field(10, ge=1, description="how many at most")


class Tree(BaseModel):
    name: str
    below: list[Tree] = []


@tool
async def weather(city: str, days: int = 1) -> str:
    """The forecast for a city.

    It looks a week ahead.

    Args:
        city: its name,
            language: English
        days (int): how many
    """
    return f"{days} sunny days in {city}"


# -- the definition ----------------------------------------------------------------------------------------------------


def test_annotations_and_docstring_become_name_description_and_schema() -> None:
    assert weather.name == "weather"
    assert weather.description == "The forecast for a city.\n\nIt looks a week ahead."
    assert weather.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "its name, language: English"},
            "days": {"type": "integer", "default": 1, "description": "how many"},
        },
        "required": ("city",),
        "additionalProperties": False,
    }


def test_sections_after_the_list_of_arguments_stay_in_the_description() -> None:
    @tool
    async def look(at: str) -> str:
        """Look.

        Args:
            at: what

        Returns:
            what is seen
        """
        return at

    assert look.description == "Look.\n\nReturns:\n    what is seen"
    assert look.parameters["properties"]["at"]["description"] == "what"


def test_options_override_what_the_function_says() -> None:
    @tool(name="other-name", description="Says nothing.", mode="parallel", timeout=2.5)
    async def quiet() -> None: ...

    assert (quiet.name, quiet.description, quiet.mode, quiet.timeout) == (
        "other-name",
        "Says nothing.",
        "parallel",
        2.5,
    )
    assert quiet.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_descriptions_and_limits_of_a_field_are_in_the_schema() -> None:
    @tool
    async def pick(
        count: Annotated[int, Field(ge=1, le=9, description="how many")], of: str = Field("all", max_length=5)
    ) -> None:
        """Pick."""

    assert pick.parameters["properties"] == {
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"},
        "of": {"type": "string", "default": "all", "maxLength": 5},
    }
    assert pick.parameters["required"] == ("count",)


def test_a_model_as_a_parameter_is_an_object_in_place_without_references_and_titles() -> None:
    @tool
    async def find(where: Filter, others: list[Filter]) -> None:
        """Find."""

    text = json.dumps(find.parameters)
    assert "$ref" not in text
    assert "$defs" not in text
    expected = {
        "type": "object",
        "description": "What to look for.",
        "properties": {
            "title": {"type": "string"},
            "colour": {"type": "string", "enum": ("red", "blue"), "default": "red"},
            "most": {"type": "integer", "default": 10, "minimum": 1, "description": "how many at most"},
        },
        "required": ("title",),
        "additionalProperties": False,
    }
    assert find.parameters["properties"]["where"] == expected
    assert find.parameters["properties"]["others"]["items"] == expected


def test_a_model_that_contains_itself_keeps_its_reference() -> None:
    @tool
    async def plant(tree: Tree) -> None:
        """Plant."""

    assert plant.parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert plant.parameters["$defs"]["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}


async def test_null_as_a_default_is_told_by_leaving_out_and_taken_when_given() -> None:
    @tool
    async def maybe(text: str | None = None) -> str:
        """Maybe."""
        return repr(text)

    assert maybe.parameters["properties"]["text"] == {"type": "string"}
    assert await maybe.execute(a_call()) == "None"
    assert await maybe.execute(a_call({"text": None})) == "None"


def test_a_default_that_json_cannot_hold_is_left_out_of_the_schema() -> None:
    @tool
    async def wait(seconds: float = float("inf"), more: object = object()) -> None:
        """Wait."""

    assert wait.parameters["properties"] == {"seconds": {"type": "number"}, "more": {}}
    assert "required" not in wait.parameters


async def test_parameters_may_be_called_what_they_like() -> None:
    @tool
    async def odd(model_config: str, schema: str, _private: str, self: str, copy: str = "c") -> str:
        """Odd."""
        return model_config + schema + _private + self + copy

    assert list(odd.parameters["properties"]) == ["model_config", "schema", "_private", "self", "copy"]
    arguments = {"model_config": "1", "schema": "2", "_private": "3", "self": "4"}
    assert await odd.execute(a_call(arguments)) == "1234c"


async def test_positional_and_keyword_only_parameters_are_filled_in() -> None:
    @tool
    async def both(first: int, call: ToolCall, /, second: int, *, third: int) -> tuple[int, str, int, int]:
        """Both."""
        return first, call.id, second, third

    assert await both.execute(a_call({"first": 1, "second": 2, "third": 3})) == (1, "call", 2, 3)


async def test_a_mutable_default_is_not_shared_between_calls() -> None:
    @tool
    async def gather(into: list[int] = []) -> list[int]:  # noqa: B006
        """Gather."""
        into.append(1)
        return into

    assert await gather.execute(a_call()) == [1]
    assert await gather.execute(a_call()) == [1]


# -- the call and its signal -------------------------------------------------------------------------------------------


async def test_a_parameter_of_type_tool_call_is_the_call_and_no_argument() -> None:
    @tool
    async def who(call: ToolCall) -> object:
        """Who."""
        return call

    assert who.parameters["properties"] == {}
    assert not who.cooperative
    call = a_call()
    assert await who.execute(call) is call


async def test_a_parameter_of_type_signal_is_the_signal_and_makes_the_tool_cooperative() -> None:
    @tool
    async def careful(path: str, *, signal: Annotated[Signal, "told"]) -> object:
        """Careful.

        Args:
            path: what
            signal: no business of the model
        """
        return signal

    assert list(careful.parameters["properties"]) == ["path"]
    assert careful.cooperative
    signal = Aborter().signal
    assert await careful.execute(a_call({"path": "x"}, signal=signal)) is signal


async def test_services_come_through_the_call() -> None:
    number = ServiceKey[int]("number")

    @tool
    async def double(call: ToolCall) -> int:
        """Double."""
        found = call.get(number)
        return -1 if found is None else found * 2

    async with running() as root:
        assert await double.execute(a_call(context=root)) == -1
        root.provide(number, 4)
        assert await double.execute(a_call(context=root)) == 8
    assert await double.execute(a_call()) == -1


# -- what annotations mean ---------------------------------------------------------------------------------------------


async def test_types_of_the_enclosing_function_are_found_although_annotations_are_text() -> None:
    class Local(BaseModel):
        number: int

    def deeper() -> ToolDefinition:
        limit = 3

        @tool
        async def nested(item: Local, items: list[Local] | None = None) -> int:
            """Nested."""
            return item.number + limit

        return nested

    made = deeper()
    assert await made.execute(a_call({"item": {"number": 4}})) == 7


async def test_types_of_a_function_that_is_over_are_found_where_the_tool_uses_them() -> None:
    def outer() -> Callable[..., Awaitable[object]]:
        class Local(BaseModel):
            number: int

        async def inner(item: Local) -> object:
            """Inner."""
            return isinstance(item, Local)

        return inner

    assert await tool(outer()).execute(a_call({"item": {"number": 1}})) is True


async def test_annotations_that_are_types_work_as_well() -> None:
    source = "async def plain(at: date, n: list[int]):\n    'Plain.'\n    return at, n"
    names: dict[str, Any] = {"date": date}
    exec(compile(source, "plain", "exec", dont_inherit=True), names)
    assert await tool(names["plain"]).execute(a_call({"at": "2024-02-29", "n": ["1", 2]})) == (
        date(2024, 2, 29),
        [1, 2],
    )


async def test_a_wrapped_function_is_read_as_it_was_written_and_called_as_it_is_wrapped() -> None:
    def loud(function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        @functools.wraps(function)
        async def louder(*args: Any, **kwargs: Any) -> str:
            return (await function(*args, **kwargs)).upper()

        return louder

    @tool
    @loud
    async def say(text: str) -> str:
        """Say."""
        return text

    assert await say.execute(a_call({"text": "hi"})) == "HI"


async def test_a_method_and_a_partial_function_are_tools_too() -> None:
    class Shop:
        name = "shop"

        async def sell(self, what: str) -> str:
            """Sell."""
            return f"{self.name} sells {what}"

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert await tool(Shop().sell).execute(a_call({"what": "eggs"})) == "shop sells eggs"
    plus = tool(name="plus")(functools.partial(add, 1))
    assert plus.description == "Add."
    assert await plus.execute(a_call({"b": 2})) == 3


# -- bad definitions ---------------------------------------------------------------------------------------------------


def refused(function: Any, **options: Any) -> str:
    with pytest.raises(PluginDefinitionError) as caught:
        tool(**options)(function)
    text = str(caught.value)
    assert "\n" not in text
    return text


async def stars(*rest: str) -> None:
    """Stars."""


async def double_stars(**more: str) -> None:
    """Stars."""


async def bare(city) -> None:  # type: ignore[no-untyped-def]
    """Bare."""


async def silent(city: str) -> None: ...


def plain(city: str) -> None:
    """Plain."""


async def unimported(price: Unimported) -> None:
    """Unimported."""


async def unfit(good: int, callback: Callable[[], None]) -> None:
    """Unfit."""


async def misdescribed(city: str) -> None:
    """Misdescribed.

    Args:
        town: its name
    """


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (stars, {}, ["'stars'", "*rest"]),
        (double_stars, {}, ["'double_stars'", "**more"]),
        (bare, {}, ["'bare'", "'city'", "no annotation"]),
        (silent, {}, ["'silent'", "docstring"]),
        (plain, {}, ["'plain'", "async def"]),
        (unimported, {}, ["'unimported'", "'price'", "TYPE_CHECKING"]),
        (unfit, {}, ["'unfit'", "'callback'", "no JSON Schema"]),
        (misdescribed, {}, ["'misdescribed'", "'town'", "no parameter"]),
        (stars.__code__, {}, ["async def"]),
        (silent, {"name": "not a name", "description": "x"}, ["not a name", "64"]),
        (silent, {"mode": "sometimes", "description": "x"}, ["'silent'", "sometimes"]),
        (silent, {"timeout": -1, "description": "x"}, ["'silent'", "-1"]),
    ],
)
def test_a_definition_that_cannot_be_is_refused_in_a_sentence_that_names_it(
    function: Any, options: dict[str, Any], words: list[str]
) -> None:
    text = refused(function, **options)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "a.b", "a\n"])
def test_a_name_that_providers_do_not_take_is_refused(name: str) -> None:
    async def nothing(call: ToolCall) -> None: ...

    with pytest.raises(ValueError, match="64"):
        ToolDefinition(name=name, description="x", parameters={"type": "object"}, execute=nothing)


# -- arguments ---------------------------------------------------------------------------------------------------------


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: dict[str, int] = {}


class Even(BaseModel):
    number: int

    @model_validator(mode="after")
    def _even(self) -> Even:
        if self.number % 2:
            raise ValueError("an odd number will not do")
        return self


@dataclasses.dataclass
class Point:
    x: int


@tool
async def many(
    count: int = 1,
    ratio: float = 1.0,
    text: str = "",
    filters: list[Filter] = [],  # noqa: B006
    pet: Cat | Dog | None = None,
    tagged: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None,
    either: int | str = 0,
    even: Even | None = None,
    point: Point | None = None,
    names: dict[str, Filter] = {},  # noqa: B006
    colour: Colour = Colour.RED,
) -> None:
    """Many."""


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"count": "five"}, "count should be a valid integer"),
    ({"count": 2.5}, "count should be a valid integer"),
    ({"count": None}, "count should be a valid integer"),
    ({"ratio": 10**400}, "ratio should be a"),
    ({"ratio": "nan"}, "ratio should be a finite number"),
    ({"text": 5}, "text should be a string"),
    ({"filters": {}}, "filters should be an array"),
    ({"filters": [{"title": "a"}, {"title": "b", "most": 0}]}, "filters[1].most should be greater than or equal to 1"),
    ({"filters": [{}]}, "filters[0].title is missing"),
    ({"filters": ["a"]}, "filters[0] should be an object"),
    ({"filters": [{"title": "a", "tilte": "b"}]}, "filters[0].tilte is not known"),
    ({"names": {"a b": {"title": "a", "x": 1}}}, 'names["a b"].x is not known'),
    ({"pet": {"kind": "cow"}}, "pet fits none of the alternatives"),
    ({"pet": {"kind": "cat", "live": 8}}, "pet.live is not known"),
    ({"tagged": {"kind": "cow"}}, "tagged should have 'kind', which is one of 'cat', 'dog'"),
    ({"tagged": {}}, "tagged should have 'kind'"),
    ({"tagged": {"kind": "dog", "tricks": {"sit": "x"}}}, "tagged.tricks.sit should be a valid integer"),
    ({"either": []}, "either fits none of the alternatives"),
    ({"even": {"number": 3}}, "even an odd number will not do"),
    ({"point": {"y": 1}}, "point.x is missing; point.y is not known"),
    ({"point": 3}, "point should be an object"),
    ({"colour": "green"}, "colour should be 'red' or 'blue'"),
    ({"coutn": 1}, "coutn is not known"),
]


@pytest.mark.parametrize(("arguments", "words"), MISFITS)
def test_what_does_not_fit_is_told_with_its_place_and_what_is_expected(arguments: dict[str, Any], words: str) -> None:
    text = refusal(many, arguments)
    assert words in text
    assert '. Expected: {"count"?: integer, "ratio"?: number, "text"?: string, "filters"?: ' in text


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in MISFITS])
def test_no_class_of_python_and_no_address_of_pydantic_reaches_the_model(arguments: dict[str, Any]) -> None:
    told = refusal(many, arguments).partition(". Expected")[0]
    words = ["Filter", "Cat", "Dog", "Even", "Point", "Colour", "Arguments", "p0", "dict", "pydantic", "http", "Error"]
    assert [word for word in words if word in told] == []


def test_what_is_told_stays_short_whatever_the_arguments_are() -> None:
    long = "x" * 10_000
    for arguments in (
        {"count": long},
        {long: 1},
        {"tagged": {"kind": long}},
        {"filters": [{"title": index} for index in range(1000)]},
        {long[:50] + str(index): 1 for index in range(1000)},
        {"count": 10**3999 + 1, "text": 1},
    ):
        assert len(refusal(many, arguments)) < 2000
    assert "and 995 more" in refusal(many, {"filters": [{"title": index} for index in range(1000)]})


async def test_a_number_as_text_and_a_whole_float_are_taken() -> None:
    @tool
    async def numbers(whole: int, ratio: float, flag: bool) -> tuple[int, float, bool]:
        """Numbers."""
        return whole, ratio, flag

    found = await numbers.execute(a_call({"whole": "5", "ratio": "2.5", "flag": "true"}))
    assert found == (5, 2.5, True)
    assert await numbers.execute(a_call({"whole": 5.0, "ratio": 2, "flag": False})) == (5, 2.0, False)


async def test_huge_numbers_and_lone_surrogates_arrive_as_they_are() -> None:
    @tool
    async def echo(number: int, text: str, anything: Any) -> tuple[int, str, Any]:
        """Echo."""
        return number, text, anything

    value = (10**3000, "a\ud800b", [{"deep": ["\udfff", 10**30]}])
    assert await echo.execute(a_call({"number": value[0], "text": value[1], "anything": value[2]})) == value


async def test_members_that_a_model_allows_or_ignores_on_purpose_are_left_to_it() -> None:
    class Loose(BaseModel):
        model_config = ConfigDict(extra="allow")

    class Deaf(BaseModel):
        model_config = ConfigDict(extra="ignore")

    @tool
    async def take(loose: Loose, deaf: Deaf) -> object:
        """Take."""
        return loose.model_extra, deaf.model_dump()

    assert await take.execute(a_call({"loose": {"a": 1}, "deaf": {"a": 1}})) == ({"a": 1}, {})
    assert take.parameters["properties"]["loose"]["additionalProperties"] is True
    assert "additionalProperties" not in take.parameters["properties"]["deaf"]


async def test_aliases_of_a_models_fields_are_known() -> None:
    class Aliased(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        kind: str = Field(alias="type")

    @tool
    async def take(item: Aliased) -> str:
        """Take."""
        return item.kind

    assert await take.execute(a_call({"item": {"type": "a"}})) == "a"
    assert await take.execute(a_call({"item": {"kind": "a"}})) == "a"
    assert "item.knid is not known" in refusal(take, {"item": {"type": "a", "knid": "b"}})


def test_the_shape_of_a_large_schema_is_cut_to_a_bounded_length() -> None:
    wide = {f"member_{index}": {"type": "string"} for index in range(500)}
    deep: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
    for _ in range(50):
        deep = {"type": "object", "properties": {"inner": deep, "list": {"type": "array", "items": deep}}}
    for schema in ({"type": "object", "properties": wide}, deep):
        assert len(shape(schema)) <= LONGEST_SHAPE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from(["count", "ratio", "text", "filters", "pet", "tagged", "either", "even", "point", "names"])


@given(st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=5))
def test_any_json_object_is_either_taken_or_refused_in_one_short_line(arguments: dict[str, Any]) -> None:
    assert many.check is not None
    told = None
    try:
        many.check(frozen(arguments))
    except InvalidArgumentsError as exc:
        told = exc
    assert told is None or (told.problems and "\n" not in str(told) and len(str(told)) < 2000)


def test_the_shape_names_members_and_marks_those_that_may_be_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": ["string", "null"]}},
            "b": {"enum": ["x", 1, None]},
            "c": {"anyOf": [{"const": "y"}, {"type": "integer"}]},
            "d": {"$ref": "#/$defs/d"},
            "e": {},
            "f": True,
        },
        "required": ["a"],
        "$defs": {"d": {"type": "object", "properties": {"again": {"$ref": "#/$defs/d"}}}},
    }
    text = shape(schema)
    assert text.startswith('{"a": (string | null)[], "b"?: "x" | 1 | null, "c"?: "y" | integer, "d"?: {"again"?: ')
    assert text.endswith('"e"?: any, "f"?: any}')
