"""Arguments that do not fit: what the model is told of them, in its own terms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dshd.capabilities.values.json import Json
from dshd.kernel.errors import DshdError

Path: TypeAlias = "Sequence[str | int]"

MOST_PROBLEMS = 5
LONGEST_TEXT = 200
LONGEST_NAME = 60
LONGEST_SHAPE = 600


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where: `path` are the names and indices that lead there from the whole."""

    path: tuple[str | int, ...]
    text: str

    def __str__(self) -> str:
        text = clipped(self.text, LONGEST_TEXT)
        return f"{place(self.path)} {text}" if self.path else text


class InvalidArgumentsError(DshdError):
    """The arguments of a call do not fit; the message says to the model what is wrong and what is expected."""

    def __init__(self, problems: Iterable[Problem], expected: Mapping[str, Json] | None = None) -> None:
        self.problems = tuple(problems)
        told = [str(problem) for problem in self.problems[:MOST_PROBLEMS]]
        if len(self.problems) > MOST_PROBLEMS:
            told.append(f"and {len(self.problems) - MOST_PROBLEMS} more")
        text = f"the arguments do not fit: {'; '.join(told)}"
        super().__init__(text if expected is None else f"{text}. Expected: {shape(expected)}")


def clipped(text: str, most: int) -> str:
    """`text` on one line, cut to at most this many characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def place(path: Path) -> str:
    """A path as one writes it in code: `filters[2].name`."""
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part.isidentifier() and part.isascii():
            parts.append(f".{clipped(part, LONGEST_NAME)}")
        else:
            parts.append(f"[{json.dumps(clipped(part, LONGEST_NAME))}]")
    return "".join(parts).removeprefix(".")


def shape(schema: Mapping[str, Json]) -> str:
    """A JSON Schema as a short line that shows names and types; names with `?` may be left out."""
    text = ""
    for depth in (4, 3, 2, 1):
        text = _shape(schema, schema, depth)
        if len(text) <= LONGEST_SHAPE:
            return text
    return clipped(text, LONGEST_SHAPE)


def _shape(schema: object, root: Mapping[str, Json], depth: int) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        known = {**root.get("definitions", {}), **root.get("$defs", {})}.get(name)
        return _shape(known, root, depth - 1) if known is not None and depth > 0 else "object"
    if "const" in schema:
        return _literal(schema["const"])
    if "enum" in schema:
        return _either([_literal(value) for value in schema["enum"]])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _either([_shape(each, root, depth) for each in schema[several]])
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        return _either([_shape({**schema, "type": each}, root, depth) for each in kind])
    if kind == "array":
        items = schema.get("items")
        if not isinstance(items, Mapping) or depth <= 0:
            return "array"
        inner = _shape(items, root, depth - 1)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object" or "properties" in schema:
        return _object(schema, root, depth)
    return kind if isinstance(kind, str) else "any"


def _object(schema: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return "object" if schema.get("additionalProperties") is not False else "{}"
    if depth <= 0:
        return "object"
    required = schema.get("required", ())
    members = [
        f"{json.dumps(clipped(name, LONGEST_NAME))}{'' if name in required else '?'}: {_shape(member, root, depth - 1)}"
        for name, member in properties.items()
    ]
    return f"{{{', '.join(members)}}}"


def _literal(value: Json) -> str:
    return clipped(json.dumps(value, ensure_ascii=False, default=str), LONGEST_NAME)


def _either(shapes: Iterable[str]) -> str:
    several = list(dict.fromkeys(shapes))
    shown = several[:20]
    return " | ".join(shown if len(shown) == len(several) else [*shown, "…"])
