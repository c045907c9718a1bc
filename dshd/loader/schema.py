"""The JSON Schema of a configuration file for the installed plugins, for editors: names, fields and what they mean."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import PydanticJsonSchemaWarning

from dshd.kernel.plugin import Plugin

Schema: TypeAlias = "dict[str, Any]"

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ID = "^[a-z0-9][a-z0-9_-]{0,62}$"
REFERENCE: Schema = {"$ref": "#/$defs/reference"}

_SCALARS = ("integer", "number", "boolean")
_DEFINITIONS: Schema = {
    "reference": {
        "type": "string",
        "pattern": r"^\$\{",
        "description": "${env:NAME}, ${env:NAME:-default} or ${file:PATH}; ${credential:NAME} in secret fields.",
    },
    "names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "isolate": {
        "description": "Services of which this row or group has its own instance, or one shared by all who name it.",
        "anyOf": [
            {"$ref": "#/$defs/names"},
            {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        ],
    },
    "intercept": {
        "description": "Settings laid over a service for everybody in here: service → fields.",
        "type": "object",
        "additionalProperties": {"type": "object"},
    },
    "inject": {"description": "Services this row or group also waits for.", "$ref": "#/$defs/names"},
    "optional": {"description": "It may fail or wait alone; nothing else is held up by it.", "type": "boolean"},
    "disabled": {"description": "It does not run.", "anyOf": [{"type": "boolean"}, REFERENCE]},
    "group": {
        "description": "Rows that are mounted, disabled and removed as one.",
        "$ref": "#/$defs/rows",
    },
}
_BESIDE = ("isolate", "intercept", "inject", "optional", "disabled")


def file_schema(
    plugins: Mapping[str, Plugin[Any]],
    *,
    daemon_model: type[BaseModel] | None = None,
    bundles: Iterable[str] = (),
    agent: str = "agent",
) -> Schema:
    """The schema of a whole file. `plugins` are the installed ones, `agent` the one that entries of `agents` use."""
    definitions: Schema = dict(_DEFINITIONS)
    for name, plugin in plugins.items():
        definitions[f"config.{name}"] = _config(plugin.config, f"config.{name}", definitions)
    definitions["use"] = _use(plugins)
    definitions["row"] = _row(plugins)
    definitions["rows"] = _rows(plugins)
    agents, templates = _agents(definitions.get(f"config.{agent}"), definitions, f"config.{agent}")
    definitions["agent"], definitions["template"] = agents, templates
    daemon = {"type": "object"} if daemon_model is None else _config(daemon_model, "daemon", definitions)
    return {
        "$schema": DIALECT,
        "title": "dshd configuration",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "bundles": {
                "description": "Packaged base layers, applied first.",
                "type": "array",
                "items": {"anyOf": [{"enum": sorted(bundles)}, {"type": "string"}]} if bundles else {"type": "string"},
            },
            "include": {
                "description": "Files of the same shape, without order; patterns may match nothing.",
                "type": "array",
                "items": {"type": "string"},
            },
            "daemon": {"description": "Settings of the process.", **daemon},
            "plugins": {"description": "Rows: id → plugin and its config, or a group.", "$ref": "#/$defs/rows"},
            "templates": {
                "description": "Definitions that agents extend; never started.",
                **_by_id({"$ref": "#/$defs/template"}),
            },
            "agents": {"description": "Agents: id → definition.", **_by_id({"$ref": "#/$defs/agent"})},
            "settings": {
                "description": "Base layer under the settings that are changed while the daemon runs.",
                "type": "object",
                "additionalProperties": {"type": "object"},
            },
            "overlays": {
                "description": "Row path → what is merged into that row; null removes it.",
                "type": "object",
                "additionalProperties": {
                    "type": ["object", "null"],
                    "properties": {
                        "if_exists": {"description": "The row need not exist.", "type": "boolean"},
                        "use": {"$ref": "#/$defs/use"},
                        **_beside(),
                    },
                },
            },
        },
        "$defs": definitions,
    }


def _by_id(schema: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": ID}, "additionalProperties": schema}


def _beside() -> Schema:
    return {name: {"$ref": f"#/$defs/{name}"} for name in _BESIDE}


# -- rows --------------------------------------------------------------------------------------------------------------


def _use(plugins: Mapping[str, Plugin[Any]]) -> Schema:
    known = [{"const": name, **_about(plugin)} for name, plugin in sorted(plugins.items())]
    dashed = sorted(spelled for name in plugins for spelled in _spellings(name) if spelled not in plugins)
    elsewhere = {
        "type": "string",
        "pattern": "|".join(["[:./]", *(f"^{name}$" for name in dashed)]),
        "description": "pkg.mod:attr, ./file.py or ./package beside this file.",
    }
    return {"description": "The plugin; by default the one called like the row.", "anyOf": [*known, elsewhere]}


def _about(plugin: Plugin[Any]) -> Schema:
    text = (plugin.body.__doc__ or "").strip().split("\n\n")[0]
    return {"description": " ".join(text.split())} if text else {}


def _row(plugins: Mapping[str, Plugin[Any]]) -> Schema:
    return {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "use": {"$ref": "#/$defs/use"},
            "config": {"description": "Fields of the plugin.", "type": ["object", "null"]},
            "group": {"$ref": "#/$defs/group"},
            **_beside(),
        },
        "not": {"type": "object", "required": ["use", "group"]},
        "allOf": [_if_used(name, spelled) for name in sorted(plugins) for spelled in _spellings(name)],
    }


def _spellings(name: str) -> list[str]:
    return list(dict.fromkeys((name, name.replace("_", "-"))))


def _if_used(name: str, spelled: str) -> Schema:
    return {
        "if": {"type": "object", "properties": {"use": {"const": spelled}}, "required": ["use"]},
        "then": {"properties": {"config": {"$ref": f"#/$defs/config.{name}"}}},
    }


def _rows(plugins: Mapping[str, Plugin[Any]]) -> Schema:
    """Rows by id; a row that is called like a plugin and says nothing else is of that plugin."""
    named = {
        spelled: {
            "allOf": [
                {"$ref": "#/$defs/row"},
                {
                    "if": {"type": "object", "not": {"anyOf": [{"required": ["use"]}, {"required": ["group"]}]}},
                    "then": {"properties": {"config": {"$ref": f"#/$defs/config.{name}"}}},
                },
            ],
            **_about(plugins[name]),
        }
        for name in sorted(plugins)
        for spelled in _spellings(name)
    }
    return {**_by_id({"$ref": "#/$defs/row"}), "properties": named}


def _agents(config: Schema | None, definitions: Schema, name: str) -> tuple[Schema, Schema]:
    """The shapes of an entry of `agents`, which may carry row keys, and of one of `templates`, which lacks nothing."""
    beside = _beside()
    if config is None or "properties" not in config:
        shape: Schema = {"type": ["object", "null"]}
        return {**shape, "properties": beside}, dict(shape)
    agent = {**config, "type": ["object", "null"], "properties": {**config["properties"], **beside}}
    # A definition may lack what its templates give it.
    agent.pop("required", None)
    template = {key: value for key, value in config.items() if key != "required"}
    return agent, template


# -- configs -----------------------------------------------------------------------------------------------------------


def _config(model: type[BaseModel], name: str, definitions: Schema) -> Schema:
    """The schema of a model; what it defines goes into the definitions of the whole, under `name`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            schema = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    except PydanticInvalidForJsonSchema:
        # Some field is of a type that no schema describes; its name can still be completed.
        return {"type": "object", "properties": {field: {} for field in model.model_fields}}
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[f"{name}.{inner}"] = _adapted(definition)
    adapted = _adapted(schema)
    return adapted if "type" not in adapted else {**adapted, "type": [adapted["type"], "null"]}


def _adapted(schema: Any) -> Any:
    """A schema that takes references where the loader does, without titles that pydantic made up."""
    if isinstance(schema, list):
        return [_adapted(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    adapted: Schema = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "dependentSchemas"):
            adapted[key] = {name: _adapted(each) for name, each in value.items()}
        elif key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "contains"):
            adapted[key] = _adapted(value)
        elif key != "title" or not isinstance(value, str):
            adapted[key] = value
    return _or_reference(adapted)


def _or_reference(schema: Schema) -> Schema:
    """What also takes a reference, unless it takes every text anyway."""
    if "$ref" in schema or "properties" in schema:
        return schema
    limited = schema.get("type") == "string" and any(
        key in schema for key in ("pattern", "format", "enum", "const", "minLength", "maxLength")
    )
    closed = "type" not in schema and ("enum" in schema or "const" in schema)
    if schema.get("writeOnly") or not (limited or closed or schema.get("type") in (*_SCALARS, "array")):
        return schema
    about: Schema = {
        key: schema.pop(key) for key in ("description", "default", "examples", "deprecated") if key in schema
    }
    return {**about, "anyOf": [schema, REFERENCE]}
