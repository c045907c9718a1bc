"""Arguments as models write them: JSON text of any kind, against schemas of any kind."""

import gc
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dshd.capabilities.tools import InvalidArgumentsError, ToolCode, ToolDefinition, tool
from dshd.capabilities.values import FrozenDict
from dshd.kernel.errors import PluginDefinitionError
from dshd.testing.contracts.tools import a_call, failed, offering, succeeded, tools_of
from dshd.testing.kernel import running
from dshd_plugins.tools import tools
from dshd_plugins.tools.arguments import parsed
from dshd_plugins.tools.raw import schema_check

pytestmark = pytest.mark.anyio

ANYTHING = {"type": "object"}


def by_hand(schema: Mapping[str, Any]) -> ToolDefinition:
    async def execute(call: Any) -> Any:
        return dict(call.arguments)

    return ToolDefinition(name="by_hand", description="By hand.", parameters=schema, execute=execute)


def refusal(text: object) -> str:
    with pytest.raises(InvalidArgumentsError) as caught:
        parsed(text, ANYTHING)
    told = str(caught.value)
    assert told.endswith(". Expected: object")
    assert len(told) < 500
    return told


# -- the text


@pytest.mark.parametrize("text", ["", " ", "\n\t", "{}", " {} "])
def test_no_text_is_an_object_without_members(text: str) -> None:
    assert parsed(text, ANYTHING) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ('{"a": 1', "line 1 column 8"),
        ('{"a": 1} and so on', "not valid JSON: Extra data at line 1 column 10"),
        ("```json\n{}\n```", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": "\n"}', "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        ("[]", "a JSON object, not an array"),
        ('"{}"', "a JSON object, not a string"),
        ("null", "a JSON object, not null"),
        ("true", "a JSON object, not a boolean"),
        ("1", "a JSON object, not a number"),
        ('{"a": NaN}', "JSON has no NaN"),
        ('{"a": -Infinity}', "JSON has no -Infinity"),
        ('{"a": {"b": [1e999]}}', "a.b[0] JSON has no inf"),
        ('{"a": 1, "b": 2, "a": 3}', 'the member "a" is given twice'),
        ('{"x": [{"deep": 1, "deep": 1}]}', 'the member "deep" is given twice'),
        ('{"' + "n" * 1000 + '": 1, "' + "n" * 1000 + '": 1}', "is given twice"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested deeper than 200 levels"),
        ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ({"a": 1}, "JSON text"),
        (None, "JSON text"),
    ],
)
def test_what_is_no_json_object_is_refused_in_words_that_help(text: object, words: str) -> None:
    assert words in refusal(text)


def test_lone_surrogates_and_large_numbers_are_read_without_loss() -> None:
    assert parsed('{"a": "\\ud800", "b": ' + "9" * 3000 + "}", ANYTHING) == {"a": "\ud800", "b": int("9" * 3000)}


def test_arguments_cannot_be_changed() -> None:
    arguments = parsed('{"a": {"b": [1]}}', ANYTHING)
    assert isinstance(arguments, FrozenDict)
    assert arguments["a"]["b"] == (1,)


@given(st.text())
def test_any_text_is_either_an_object_or_refused(text: str) -> None:
    told = ""
    arguments: Mapping[str, Any] = {}
    try:
        arguments = parsed(text, ANYTHING)
    except InvalidArgumentsError as exc:
        told = str(exc)
    assert isinstance(arguments, Mapping)
    assert "\n" not in told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_what_a_model_writes_correctly_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert json.loads(json.dumps(parsed(json.dumps(value), ANYTHING))) == value


# -- schemas by hand


SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


async def test_a_schema_by_hand_checks_arguments_and_tells_where_they_do_not_fit() -> None:
    async with running(tools, offering("row", by_hand(SCHEMA))) as root:
        service = tools_of(root)
        succeeded(await service.execute(a_call("by_hand", {"path": "a", "lines": [1]})), '{"path": "a", "lines": [1]}')
        for arguments, words in (
            ({}, ['"path" is a required property']),
            ({"path": ""}, ["path is shorter than 1 character"]),
            ({"path": "a", "lines": [1, "x"]}, ['lines[1] is not of type "integer"']),
            ({"path": 1, "more": 2}, ['path is not of type "string"', "'more' was unexpected"]),
        ):
            outcome = await service.execute(a_call("by_hand", arguments))
            failed(outcome, ToolCode.INVALID_ARGUMENTS, *words, 'Expected: {"path": string, "lines"?: integer[]}')


async def test_no_value_of_an_argument_is_repeated_to_the_model() -> None:
    async with running(tools, offering("row", by_hand(SCHEMA))) as root:
        outcome = await tools_of(root).execute(a_call("by_hand", {"path": "a", "lines": "x" * 100_000}))
        assert len(failed(outcome, ToolCode.INVALID_ARGUMENTS).message) < 500


async def test_half_a_character_is_an_error_of_the_model_and_not_of_the_tool() -> None:
    schema = {"type": "object", "properties": {"path": {"enum": ["a", "b"]}}}
    async with running(tools, offering("row", by_hand(schema))) as root:
        outcome = await tools_of(root).execute(a_call("by_hand", {"path": "\ud800"}))
        failed(outcome, ToolCode.INVALID_ARGUMENTS, "lone surrogate")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "required": "a"},
        {"type": "object", "$schema": "http://localhost:9/unknown"},
        {"type": "object", "properties": {"a": {"$ref": "http://localhost:9/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"type": "object", "description": "\ud800"},
    ],
)
async def test_a_schema_that_is_not_valid_or_leads_outside_is_refused_at_registration(schema: dict[str, Any]) -> None:
    async with running(tools) as root:
        fiber = root.plugin(offering("row", by_hand(schema)))
        with pytest.raises(PluginDefinitionError, match="tool 'by_hand': its parameters are no valid JSON Schema: "):
            await fiber.settled()
        assert tools_of(root).schemas() == []


async def test_a_schema_that_is_not_valid_is_refused_with_the_place() -> None:
    async with running(tools) as root:
        fiber = root.plugin(offering("row", by_hand({"type": "object", "properties": {"a": {"type": "strin"}}})))
        with pytest.raises(PluginDefinitionError, match=r"at properties\.a\.type, "):
            await fiber.settled()


def test_a_schema_cannot_make_the_daemon_read_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "string"}')
    reference = {"$ref": f"file://{tmp_path}/schema.json"}
    with pytest.raises(PluginDefinitionError, match="its own parts only"):
        schema_check(by_hand({"type": "object", "properties": {"a": reference}}))


def test_a_reference_within_the_schema_is_followed() -> None:
    check = schema_check(
        by_hand(
            {
                "type": "object",
                "properties": {"tree": {"$ref": "#/$defs/tree"}},
                "$defs": {"tree": {"type": "object", "properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}}},
            }
        )
    )
    check({"tree": {"kids": [{"kids": []}]}})
    with pytest.raises(InvalidArgumentsError, match=r"tree\.kids\[0\] is not of type"):
        check({"tree": {"kids": [1]}})


@pytest.mark.parametrize("parameters", [{}, {"type": "array"}, {"type": "object", "x": float("nan")}, {"a": object()}])
def test_a_definition_whose_schema_is_none_of_an_object_cannot_be_made(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="by_hand"):
        by_hand(parameters)


def test_a_definition_without_words_for_the_model_cannot_be_made_and_so_breaks_no_prompt() -> None:
    with pytest.raises(ValueError, match="'by_hand' is text for the model, not None"):
        replace(by_hand(ANYTHING), description=None)  # type: ignore[arg-type]


async def test_a_check_that_is_broken_is_a_fault_of_the_tool() -> None:
    def check(arguments: Any) -> None:
        raise KeyError("oops")

    async with running(tools, offering("row", replace(by_hand(ANYTHING), check=check))) as root:
        failed(await tools_of(root).execute(a_call("by_hand")), ToolCode.INTERNAL, "could not be checked")


async def test_a_check_that_nobody_awaits_lets_nothing_through() -> None:
    async def check(arguments: Any) -> None:
        raise InvalidArgumentsError([])

    definition = replace(by_hand(ANYTHING), check=check)  # type: ignore[arg-type]
    with capture_logs() as log:
        async with running(tools, offering("row", definition)) as root:
            failed(await tools_of(root).execute(a_call("by_hand")), ToolCode.INTERNAL, "could not be checked")
    assert [str(line["exc_info"]) for line in log] == [
        "the check of tool 'by_hand' is async, so nobody heard what it says"
    ]
    gc.collect()  # a coroutine that was not awaited would warn now


async def test_arguments_of_a_typed_tool_arrive_in_plain_types() -> None:
    @tool
    async def kinds(anything: Any, listed: list[Any]) -> str:
        """Kinds."""
        return f"{type(anything).__name__} {type(anything['a']).__name__} {type(listed[0]).__name__}"

    async with running(tools, offering("row", kinds)) as root:
        outcome = await tools_of(root).execute(a_call("kinds", {"anything": {"a": [1]}, "listed": [{"b": 1}]}))
        succeeded(outcome, "dict list dict")
