"""The JSON Schema of a pydantic model as providers take it: no titles, references only where a type contains itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind

from dshd.capabilities.values.json import Json

REFERENCE = "#/$defs/"

_SCHEMAS = frozenset({"items", "additionalProperties", "not", "contains", "propertyNames", "unevaluatedProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_LEFT_OUT = frozenset({"title", "discriminator", "$defs"})
"""Noise; a keyword of OpenAPI that refers to definitions; what is put in place."""


def schema_of(model: type[BaseModel]) -> dict[str, Json]:
    """The schema of the objects that `model` takes. Raises what pydantic raises for a type that has none."""
    generated = model.model_json_schema(schema_generator=_Generator)
    definitions: dict[str, Any] = generated.get("$defs", {})
    recursive = _recursive(definitions)
    tidy = _Tidy(definitions, recursive)
    schema: dict[str, Json] = tidy(generated)
    if recursive:
        schema["$defs"] = {name: tidy(definitions[name]) for name in definitions if name in recursive}
    return schema


def ignores_unknown(model: type[BaseModel]) -> bool:
    """Whether pydantic would drop unknown members of `model` although its author has not said so."""
    return "extra" not in model.model_config


class _Generator(GenerateJsonSchema):
    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        if made.get("type") == "object" and ignores_unknown(schema["cls"]):
            made.setdefault("additionalProperties", False)
        return made

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """A default that JSON cannot hold is left out of the schema, and nobody has to know."""


def _recursive(definitions: Mapping[str, Any]) -> set[str]:
    """The definitions that contain themselves."""
    leads = {name: _mentioned(schema) for name, schema in definitions.items()}

    def contains_itself(name: str) -> bool:
        reached: set[str] = set()
        ahead = [*leads[name]]
        while ahead:
            here = ahead.pop()
            if here not in reached and here in leads:
                reached.add(here)
                ahead += leads[here]
        return name in reached

    return {name for name in definitions if contains_itself(name)}


def _mentioned(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        found = {name for value in schema.values() for name in _mentioned(value)}
        target = schema.get("$ref")
        return found | {target.removeprefix(REFERENCE)} if isinstance(target, str) else found
    if isinstance(schema, list):
        return {name for part in schema for name in _mentioned(part)}
    return set()


class _Tidy:
    """Copies a schema without noise, with what is not recursive put in the place of its references."""

    def __init__(self, definitions: Mapping[str, Any], recursive: set[str]) -> None:
        self._definitions = definitions
        self._recursive = recursive

    def __call__(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        target = schema.get("$ref")
        if isinstance(target, str) and (name := target.removeprefix(REFERENCE)) not in self._recursive:
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self({**self._definitions[name], **beside})
        tidy: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _SCHEMAS:
                tidy[key] = self(value)
            elif key in _LISTS:
                tidy[key] = [self(part) for part in value]
            elif key in _MAPS:
                tidy[key] = _each(value, self)
            elif key not in _LEFT_OUT and not (key == "default" and not _is_json(value)):
                tidy[key] = value
        if "properties" in tidy:
            tidy["properties"] = _each(tidy["properties"], _without_null)
        return tidy


def _each(schemas: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: change(schema) for name, schema in schemas.items()}


def _without_null(schema: Any) -> Any:
    """A member that is null by default is left out instead: one way to say it, and one that every provider takes."""
    if not isinstance(schema, dict) or "default" not in schema or schema["default"] is not None:
        return schema
    rest = {key: value for key, value in schema.items() if key not in ("default", "anyOf")}
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return {**choices[0], **rest}
    return {**rest, "anyOf": choices} if choices else rest


def _is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_json(part) for part in value.values())
    return not isinstance(value, list) or all(_is_json(part) for part in value)
