"""The schema that editors get: it knows the installed plugins, accepts what the loader accepts and refuses mistakes."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import ConfigDict, Field

from dshd import Config, Context, Plugin, plugin
from dshd.kernel.secret import Secret
from dshd.loader.resolve import Resolver
from dshd.loader.schema import DIALECT, file_schema


class Price(Config):
    input: float
    """US dollars per million tokens."""


class Llm(Config):
    base_url: str = Field(min_length=8)
    """Where the API is."""
    api_key: Secret
    """Key of the account."""
    title: str = ""
    """A field that is called like a keyword of schemas."""
    timeout: float = 60
    retries: Annotated[int, Field(ge=0)] = 3
    stream: bool = True
    mode: Literal["chat", "responses"] = "chat"
    models: dict[str, Price] = Field(default_factory=dict)
    """Model → price."""
    stop: list[str] = Field(default_factory=list)
    opaque: Any = None


class Agent(Config):
    route: str
    """The route it talks to."""
    steps: int = 50


class Odd(Config):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    pattern: re.Match[str] | None = None
    name: str = ""


@plugin("llm_openai", config=Llm)
async def llm(ctx: Context, config: Llm) -> None:
    """Talks to an API that is like
    OpenAI's.

    More about it.
    """


@plugin("agent", config=Agent)
async def agent(ctx: Context, config: Agent) -> None: ...


@plugin("odd", config=Odd)
async def odd(ctx: Context, config: Odd) -> None: ...


PLUGINS: dict[str, Plugin[Any]] = {"llm_openai": llm, "agent": agent, "odd": odd}


class Daemon(Config):
    log_level: Literal["debug", "info"] = "info"
    """What is logged."""
    drain: int = 60


SCHEMA = file_schema(PLUGINS, daemon_model=Daemon, bundles=["core"])


def accepts(value: Any, schema: Any, root: Mapping[str, Any] = SCHEMA) -> bool:
    """As much of a validator as these schemas need."""
    if isinstance(schema, bool):
        return schema
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float),
        "integer": int,
    }  # fmt: skip
    assert schema.keys() <= {
        "$ref", "$schema", "$defs", "title", "description", "default", "type", "enum", "const", "pattern", "minLength",
        "minimum", "properties", "required", "additionalProperties", "propertyNames", "items", "uniqueItems", "anyOf",
        "allOf", "not", "if", "then", "writeOnly", "format",
    }  # fmt: skip

    def inner(value: Any, schema: Any) -> bool:
        return accepts(value, schema, root)

    if "$ref" in schema and not inner(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")]):
        return False
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(
            isinstance(value, kinds[t]) and not (isinstance(value, bool) and t in ("number", "integer")) for t in types
        ):
            return False
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return False
    if isinstance(value, str) and (
        not re.search(schema.get("pattern", ""), value) or len(value) < schema.get("minLength", 0)
    ):
        return False
    if "minimum" in schema and isinstance(value, (int, float)) and value < schema["minimum"]:
        return False
    if isinstance(value, dict):
        if not set(schema.get("required", ())) <= value.keys():
            return False
        known = schema.get("properties", {})
        for key, member in value.items():
            if not inner(key, schema.get("propertyNames", True)):
                return False
            if not inner(
                member, known.get(key, schema.get("additionalProperties", True) if key not in known else True)
            ):
                return False
    if isinstance(value, list) and not all(inner(member, schema.get("items", True)) for member in value):
        return False
    if "anyOf" in schema and not any(inner(value, each) for each in schema["anyOf"]):
        return False
    if not all(inner(value, each) for each in schema.get("allOf", ())):
        return False
    if "not" in schema and inner(value, schema["not"]):
        return False
    return "if" not in schema or not inner(value, schema["if"]) or inner(value, schema.get("then", True))


GOOD = """
bundles: [core]
include: [conf.d/*.yaml]
daemon: {log_level: info, drain: "${env:DRAIN:-5}"}
plugins:
  llm_openai:
    config: {base_url: https://api.example.com, api_key: "${credential:KEY}"}
  fast:
    use: llm_openai
    config:
      base_url: ${env:URL}
      api_key: Bearer ${credential:KEY}
      timeout: ${env:TIMEOUT:-5}
      retries: ${env:RETRIES}
      stream: ${env:STREAM:-true}
      mode: ${env:MODE:-chat}
      models: {deepseek-chat: {input: "${env:PRICE}"}, other: {input: 0.28}}
      stop: ${env:STOP}
      opaque: [1, {a: b}]
  local: {use: ./here.py, config: {anything: 1}}
  dashed: {use: llm-openai, config: {base_url: https://x.example, api_key: x, stop: [a, "${env:S}"]}}
  nightly:
    group:
      agent: {config: {route: fast}}
      inner: {group: {odd: null}}
    isolate: [shell]
    intercept: {llm: {max_tokens: 4000}}
    inject: [metrics]
    optional: true
    disabled: ${env:NO_NIGHTLY:-false}
  shared: {use: odd, isolate: {shell: batch, store: null}}
templates:
  base: {steps: 5}
agents:
  ops: {route: fast, inject: [metrics], optional: true}
  bare:
settings: {agent-loop: {max_parallel_tool_calls: 4}}
overlays:
  agents/ops: {route: slow}
  nightly/agent: null
  gone: {if_exists: true, config: {x: 1}}
"""


def test_a_whole_file_is_accepted() -> None:
    assert accepts(yaml.safe_load(GOOD), SCHEMA)
    assert accepts(None, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "plugin: {}",
        "plugins: [a]",
        "plugins: {UPPER: {use: odd}}",
        "plugins: {a: {use: llm_opanai}}",
        "plugins: {a: {use: odd, confg: {}}}",
        "plugins: {a: {use: odd, group: {}}}",
        "plugins: {a: {use: llm_openai, config: {base_url: https://x.example, api_key: x, stpo: []}}}",
        "plugins: {a: {use: llm-openai, config: {base_url: https://x.example, api_key: x, stpo: []}}}",
        "plugins: {a: {use: llm_openai, config: {api_key: x}}}",
        "plugins: {a: {use: llm_openai, config: {base_url: https://x.example, api_key: x, retries: -1}}}",
        "plugins: {a: {use: llm_openai, config: {base_url: https://x.example, api_key: x, retries: many}}}",
        "plugins: {a: {use: llm_openai, config: {base_url: https://x.example, api_key: x, mode: chatt}}}",
        "plugins: {a: {use: llm_openai, config: {base_url: https://x.example, api_key: x, models: {m: {inptu: 1}}}}}",
        "plugins: {a: {use: llm_openai, config: {base_url: short, api_key: x}}}",
        "plugins: {llm_openai: {config: {zebra: 1}}}",
        "plugins: {g: {group: {agent: {config: {zebra: 1}}}}}",
        "plugins: {a: {use: odd, optional: sometimes}}",
        "agents: {ops: {rout: fast}}",
        "agents: {ops: {route: fast, steps: many}}",
        "templates: {base: {stepz: 1}}",
        "daemon: {log_levle: info}",
        "overlays: {a: [x]}",
    ],
)
def test_a_mistake_is_refused(text: str) -> None:
    assert not accepts(yaml.safe_load(text), SCHEMA)


def test_it_is_json_of_the_dialect_it_names() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["$schema"] == DIALECT
    text = json.dumps(SCHEMA)
    for name in set(re.findall(r'"#/\$defs/([^"]+)"', text)):
        assert name in SCHEMA["$defs"]


def test_fields_are_described_by_the_texts_under_them() -> None:
    config = SCHEMA["$defs"]["config.llm_openai"]["properties"]
    assert config["base_url"]["description"] == "Where the API is."
    assert config["api_key"] == {
        "type": "string", "writeOnly": True, "format": "password", "description": "Key of the account.",
    }  # fmt: skip
    assert config["title"]["description"].startswith("A field that is called")
    assert config["timeout"]["default"] == 60
    assert SCHEMA["$defs"]["config.llm_openai.Price"]["properties"]["input"]["description"].startswith("US dollars")
    assert SCHEMA["properties"]["daemon"]["properties"]["log_level"]["description"] == "What is logged."


def test_plugins_are_enumerated_with_what_they_do() -> None:
    uses = {each["const"]: each for each in SCHEMA["$defs"]["use"]["anyOf"] if "const" in each}
    assert uses.keys() == PLUGINS.keys()
    assert uses["llm_openai"]["description"] == "Talks to an API that is like OpenAI's."


def test_what_no_schema_describes_still_has_names() -> None:
    assert SCHEMA["$defs"]["config.odd"]["properties"].keys() == {"pattern", "name"}


def test_without_plugins_there_is_a_schema_too() -> None:
    schema = file_schema({})
    assert accepts({"plugins": {"a": {"use": "./x.py", "config": {"y": 1}}}, "agents": {"b": {"c": 1}}}, schema, schema)


def test_the_installed_plugins_have_one() -> None:
    found, _ = Resolver().all()
    schema = file_schema({name: each.plugin for name, each in found.items()})
    assert accepts({"plugins": {"hello": {"config": {"who": "you"}}}}, schema, schema)
    assert not accepts({"plugins": {"hello": {"config": {"whom": "you"}}}}, schema, schema)
