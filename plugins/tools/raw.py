"""Definitions whose JSON Schema was written by hand: their arguments are checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NoReturn

import jsonschema_rs

from dshd import errors
from dshd.capabilities.tools import Check, InvalidArgumentsError, Problem, ToolDefinition
from dshd.capabilities.values import Json

MOST_ERRORS = 20


def schema_check(definition: ToolDefinition) -> Check:
    """What checks arguments against the schema of `definition`, which is compiled once, here.

    References lead nowhere outside the schema itself. Raises `PluginDefinitionError` for one that is not valid.
    """
    schema: Any = definition.parameters
    try:
        validator = jsonschema_rs.validator_for(schema, retriever=_refuse, mask="the value")
    except Exception as exc:  # besides its own errors also those of text that is no Unicode
        place = ".".join(map(str, getattr(exc, "instance_path", ())))
        reason = f"{f'at {place}, ' if place else ''}{str(exc).strip().partition(chr(10))[0]}"
        raise errors.PluginDefinitionError(
            f"tool {definition.name!r}: its parameters are no valid JSON Schema: {reason}"
        ) from exc

    def check(arguments: Mapping[str, Json]) -> None:
        try:
            found = list(islice(validator.iter_errors(arguments), MOST_ERRORS))
        except UnicodeEncodeError:
            text = "some text has half a character (a lone surrogate) in it"
            raise InvalidArgumentsError([Problem((), text)], schema) from None
        if found:
            raise InvalidArgumentsError([_problem(each) for each in found], schema)

    return check


def _problem(error: jsonschema_rs.ValidationError) -> Problem:
    path = tuple(error.instance_path)
    return Problem(path, error.message.removeprefix("the value ") if path else error.message)


def _refuse(uri: str) -> NoReturn:
    raise ValueError("a schema may refer to its own parts only")
