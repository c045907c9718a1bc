"""What is wrong with a config, in the user's words: pydantic's errors without pydantic.

A value is shown only if it cannot be a secret: nothing that came from a reference, nothing long, nothing under a name
that sounds like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel

from .canonical import Path, spellings
from .expand import Expanded, dotted
from .issues import nearest
from .node import Node

_LISTS = ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "arguments_type")
_MAPPINGS = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")
LISTS, MAPPINGS = frozenset(_LISTS), frozenset(_MAPPINGS)
EXPECTED: Mapping[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_sub_type", "bytes_type"), "text"),
    **dict.fromkeys(_LISTS, "a list"),
    **dict.fromkeys(_MAPPINGS, "a mapping"),
    **dict.fromkeys(("time_delta_type", "time_delta_parsing"), "a duration such as 30s, 5m or 2h"),
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "a date such as 2026-01-31"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "a date and time in ISO form"),
    **dict.fromkeys(("time_type", "time_parsing"), "a time such as 12:30"),
    "path_type": "a path",
    "none_required": "nothing",
    "url_type": "a URL",
    "uuid_type": "a UUID",
}
"""Kinds of errors that say that a value is of another type, and what they expect."""

_CHOICES = ("literal_error", "enum")
_SUBJECT = re.compile(r"^(Input|Value|String|Data|List|Tuple|Set|Frozenset|Dictionary|Bytes|Decimal input|URL) should ")
_SECRET = re.compile(r"key|token(?!s)|secret|passw|auth|cred|cookie|header|private|bearer|sign|pin$", re.IGNORECASE)
_WORD = rf"[\w.-]*(?:{_SECRET.pattern})[\w.-]*"
_VALUE = re.compile(rf"""(["']?{_WORD}["']?\s*:\s+)([^\s{{\[&*!|>][^,}}\]\n]*)""", re.IGNORECASE)
_USERINFO = re.compile(r"(://)([^/@\s]+)@")
_PLAIN = re.compile(r"[\w .:/+*,%-]{0,40}")
_TRUE, _FALSE = frozenset({"yes", "on", "y", "true", "1"}), frozenset({"no", "off", "n", "false", "0"})

Kind: TypeAlias = Literal["type", "missing", "unknown", "refused"]
CODES: Mapping[Kind, str] = {"unknown": "0401", "missing": "0402", "type": "0403", "refused": "0404"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One error of pydantic, placed. `path` leads to the value, or to the mapping that lacks something."""

    kind: Kind
    path: Path
    node: Node
    words: str
    """What is expected, for a type; the name, for what is missing or unknown; else a sentence."""
    branches: tuple[tuple[Path, str], ...] = ()
    """The members of unions under which it was found."""


def locate(node: Node, loc: Iterable[str | int]) -> tuple[Path, Node, tuple[tuple[Path, str], ...]]:
    """The innermost node that a pydantic location leads to. Parts that are no keys are names of members of unions."""
    path: Path = ()
    branches: list[tuple[Path, str]] = []
    for part in loc:
        if isinstance(part, str) and part in node.mapping():
            node, path = node.mapping()[part], (*path, part)
        elif isinstance(part, int) and part < len(node.items()):
            node, path = node.items()[part], (*path, part)
        elif isinstance(part, int) and str(part) in node.mapping():
            node, path = node.mapping()[str(part)], (*path, str(part))
        else:
            branches.append((path, str(part)))
    return path, node, tuple(branches)


def findings(errors: Iterable[Mapping[str, Any]], root: Node) -> list[Finding]:
    """Errors as pydantic reports them, placed in the tree that was validated; of unions the likeliest member only."""
    found = []
    for error in errors:
        kind, loc = error["type"], tuple(error["loc"])
        if kind in ("missing", "extra_forbidden") and loc:
            path, node, branches = locate(root, loc[:-1])
            what: Kind = "missing" if kind == "missing" else "unknown"
            found.append(Finding(kind=what, path=path, node=node, words=str(loc[-1]), branches=branches))
            continue
        path, node, branches = locate(root, loc)
        if kind == "union_tag_not_found":
            tag = str(error["ctx"]["discriminator"]).strip("'")
            found.append(Finding(kind="missing", path=path, node=node, words=tag, branches=branches))
        elif kind == "union_tag_invalid":
            path, node, _ = locate(root, (*path, str(error["ctx"]["discriminator"]).strip("'")))
            words = str(error["ctx"]["expected_tags"])
            found.append(Finding(kind="type", path=path, node=node, words=f"one of {words}", branches=branches))
        elif kind in _CHOICES:
            words = str(error["ctx"]["expected"])
            found.append(Finding(kind="type", path=path, node=node, words=words, branches=branches))
        elif kind in EXPECTED:
            found.append(Finding(kind="type", path=path, node=node, words=EXPECTED[kind], branches=branches))
        else:
            words = sentence(error)
            if loc and loc[-1] == "[key]":
                words, branches = f"the key {words}", branches[:-1]
            found.append(Finding(kind="refused", path=path, node=node, words=words, branches=branches))
    return _joined(_likeliest([each for each in found if not _is_broken(each.node)]))


def _is_broken(node: Node) -> bool:
    return isinstance(node, Expanded) and node.broken


def _likeliest(found: list[Finding]) -> list[Finding]:
    """Without the members of unions that the value was clearly not meant to be."""
    inside: dict[Path, dict[str, int]] = {}
    for finding in found:
        for path, branch in finding.branches:
            if finding.kind != "type" or finding.path != path:
                counts = inside.setdefault(path, {})
                counts[branch] = counts.get(branch, 0) + 1
    best = {path: min(counts, key=lambda branch: counts[branch]) for path, counts in inside.items()}
    return [finding for finding in found if all(best.get(path, branch) == branch for path, branch in finding.branches)]


def _joined(found: list[Finding]) -> list[Finding]:
    """With one finding for each value of a wrong type, whatever the number of types that would have been right."""
    joined: dict[tuple[Path, Kind, str], Finding] = {}
    for finding in found:
        key = (finding.path, finding.kind, "" if finding.kind == "type" else finding.words)
        known = joined.get(key)
        if known is None:
            joined[key] = finding
        elif finding.kind == "type" and finding.words not in known.words.split(" or "):
            joined[key] = replace(known, words=f"{known.words} or {finding.words}")
    return list(joined.values())


def sentence(error: Mapping[str, Any]) -> str:
    """The message of an error about the value itself."""
    raised = error.get("ctx", {}).get("error")
    if error["type"] in ("value_error", "assertion_error") and raised is not None:
        return str(raised) or "is refused"
    if error["type"] == "is_instance_of":
        return "is of a kind that cannot be written in YAML"
    message = _SUBJECT.sub("must ", str(error["msg"])).replace(" after validation", "")
    return message[:1].lower() + message[1:]


# -- showing values and giving hints -----------------------------------------------------------------------------------


def shown(node: Node, path: Path) -> str:
    """What stands there, as far as it may be shown."""
    value = node.value
    if isinstance(node, Expanded) or any(isinstance(part, str) and _SECRET.search(part) for part in path):
        return node.kind
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"text {value!r}" if _PLAIN.fullmatch(value) else "text"
    return node.kind


def hidden(message: str, node: Node) -> str:
    """A message without the texts that references gave, should it quote one."""
    for path, leaf in node.leaves():
        text = leaf.value
        secret = isinstance(leaf, Expanded) or any(isinstance(part, str) and _SECRET.search(part) for part in path)
        if secret and isinstance(text, str) and len(text) >= 3 and text in message:
            message = message.replace(text, "…")
    return message


def masked(line: str) -> str:
    """A line of YAML to be shown beside an error, with what may be a secret covered; columns stay where they are."""
    line = _VALUE.sub(lambda found: found[1] + _cover(found[2]), line)
    return _USERINFO.sub(lambda found: found[1] + "*" * len(found[2]) + "@", line)


def _cover(value: str) -> str:
    harmless = "${" in value or value.strip() in ("true", "false", "null") or value.strip().isdigit()
    return value if harmless else "*" * len(value)


def type_hint(finding: Finding) -> str | None:
    """How to write what was meant."""
    value, words = finding.node.value, finding.words
    if isinstance(value, float) and value.is_integer() and "whole number" in words:
        return f"write {int(value)}"
    if isinstance(value, (bool, int, float)):
        return "quote it, if text is meant" if "text" in words.split(" or ") else None
    if not isinstance(value, str):
        return None
    if "true or false" in words and value.lower() in (_TRUE | _FALSE):
        return f"write {'true' if value.lower() in _TRUE else 'false'}, without quotes"
    if "whole number" in words and re.fullmatch(r"-?0+\d+", value):
        return f"write {int(value)}: a number has no leading zero"
    if "a list" in words and "," not in value and "text" not in words:
        return "write a list, even of one: [a] or, on lines of their own, - a"
    return nearest(value, re.findall(r"'([^']*)'", words))


def field_hint(model: type[BaseModel], finding: Finding) -> str | None:
    """The nearest field to an unknown one, or all there are."""
    known = list(dict.fromkeys(name for each in models_at(model, finding.path) for name in field_names(each)))
    if not known:
        return "it takes no fields" if finding.kind == "unknown" else None
    close = nearest(finding.words, known)
    return close or (f"known fields: {', '.join(known)}" if len(known) <= 20 else None)


def field_names(model: type[BaseModel]) -> list[str]:
    """The keys under which the fields of a model are written."""
    return [spellings(name, info)[0] for name, info in model.model_fields.items()]


def models_at(model: type[BaseModel], path: Path) -> list[type[BaseModel]]:
    """The models that a mapping at `path` may be validated by."""
    annotations: list[Any] = [model]
    for part in path:
        below: list[Any] = []
        for annotation in _members(annotations):
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                below += [
                    info.annotation
                    for name, info in annotation.model_fields.items()
                    if str(part) in spellings(name, info)
                ]
            elif get_args(annotation):
                below += get_args(annotation)[-1:] if isinstance(part, str) else get_args(annotation)
        annotations = below
    return [each for each in _members(annotations) if isinstance(each, type) and issubclass(each, BaseModel)]


def _members(annotations: list[Any]) -> list[Any]:
    """Annotations with unions, aliases and `Annotated` taken apart."""
    flat = []
    for annotation in annotations:
        origin = get_origin(annotation)
        if origin in (Union, UnionType):
            flat += _members(list(get_args(annotation)))
        elif origin is Annotated:
            flat += _members([get_args(annotation)[0]])
        elif hasattr(annotation, "__value__"):
            flat += _members([annotation.__value__])
        else:
            flat.append(annotation)
    return flat


def place(prefix: str, path: Path) -> str:
    """A place in a row as users write it."""
    return dotted((prefix, *path) if prefix else path)
