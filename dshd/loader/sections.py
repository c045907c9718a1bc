"""The sections of a file, and how those of several files meet.

`plugins`, `templates` and `agents` are definitions: an id stands in one place of all layers. `settings` and `daemon`
are fields: within a layer a field comes from one place, and layers are merged by RFC 7396. What stands in two places
with identical content is a warning and counts once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .issues import Issues, Mark, nearest
from .mistakes import MISSING_SPACE, SPACE_HINT
from .node import Node, merge

if TYPE_CHECKING:
    from .includes import Source

SECTIONS = ("bundles", "include", "daemon", "plugins", "templates", "agents", "settings", "overlays")

ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

ROW_KEYS = ("use", "config", "group", "isolate", "intercept", "inject", "optional", "disabled")


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One entry of `plugins`, `templates` or `agents`, with the place of its id."""

    id: str
    node: Node
    mark: Mark


def check_sections(root: Node, issues: Issues) -> None:
    """Report unknown sections of a file, and sections of another kind than they should be."""
    for key, node in root.mapping().items():
        if key not in SECTIONS:
            hint = nearest(key, SECTIONS)
            if hint is None and any(word in node.mapping() for word in ROW_KEYS):
                hint = "rows stand under plugins:"
            hint = hint or f"there are {', '.join(SECTIONS)}"
            issues.error("0201", f"there is no section {key!r}", root.keys.get(key, node.mark), row=key, hint=hint)
        elif key not in ("bundles", "include") and node.value is not None:
            is_mapping(node, key, issues)


def section(source: Source, name: str) -> Node | None:
    """A section of a file, if it has one of the right kind that is not empty."""
    node = source.root.get(name)
    return node if node is not None and node.is_mapping else None


def is_mapping(node: Node, place: str, issues: Issues, wanted: str = "a mapping") -> bool:
    """Whether a mapping stands where one belongs; reported otherwise."""
    if node.is_mapping:
        return True
    hint = None
    if node.is_list:
        hint = "write `key: value` lines, without dashes or [ ]"
    elif isinstance(node.value, str) and not node.quoted and MISSING_SPACE.match(node.value):
        hint = f"a space may be missing after the colon; {SPACE_HINT}"
    issues.error("0202", f"{place} is {node.kind} where {wanted} belongs", node.mark, row=place, hint=hint)
    return False


def is_list(node: Node, place: str, issues: Issues, wanted: str = "a list of names") -> bool:
    """Whether a list stands where one belongs; reported otherwise."""
    if node.is_list:
        return True
    hint = "write it as [name, …], or as `- name` lines"
    if isinstance(node.value, str) and not node.quoted:
        spaced = node.value.startswith("-")
        hint = "a space is missing after the dash" if spaced else f"write [{node.value}]"
    issues.error("0203", f"{place} is {node.kind} where {wanted} belongs", node.mark, row=place, hint=hint)
    return False


def texts(place: str, node: Node | None, issues: Issues) -> list[tuple[str, Mark]]:
    """The texts of a list of names, or of a single name, with their places."""
    if node is None or node.value is None:
        return []
    if isinstance(node.value, str) and node.value and not (node.value.startswith("-") and not node.quoted):
        return [(node.value, node.mark)]
    return list(names(place, node, issues)) if is_list(node, place, issues) else []


def names(place: str, node: Node, issues: Issues) -> Iterator[tuple[str, Mark]]:
    """The members of a list that are names; others are reported."""
    for member in node.items():
        if isinstance(member.value, str) and member.value.strip():
            yield member.value, member.mark
        else:
            what = "an empty text" if member.value == "" else member.kind
            issues.error("0204", f"{place} has {what} where a name belongs", member.mark, row=place)


def is_id(text: str, mark: Mark, place: str, issues: Issues) -> bool:
    """Whether a key can be an id; reported otherwise."""
    if ID.fullmatch(text):
        return True
    hint = "ids are a–z, 0–9, _ and -, begin with a letter or digit, and have 63 characters at most"
    better = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).lstrip("-_")[:63]
    if better and ID.fullmatch(better):
        hint += f"; {better!r} would do"
    issues.error("0212", f"{text!r} cannot be an id", mark, row=place, hint=hint)
    return False


def define(name: str, sources: Iterable[Source], issues: Issues) -> dict[str, Definition]:
    """All definitions of a section, from all files of all layers, the lowest first."""
    found: dict[str, Definition] = {}
    for source in sources:
        node = section(source, name)
        if node is None:
            continue
        for key, member in node.mapping().items():
            new = Definition(id=key, node=member, mark=node.keys.get(key, member.mark))
            if not is_id(key, new.mark, f"{name}.{key}", issues):
                continue
            old = found.setdefault(key, new)
            if old is not new:
                _clash(name, old, new, issues)
    return found


def _clash(name: str, old: Definition, new: Definition, issues: Issues) -> None:
    kind = {"plugins": "row", "templates": "template", "agents": "agent"}[name]
    if same(old.node, new.node):
        issues.warn(
            "0205",
            f"{kind} {new.id!r} is defined at {old.mark} and, identically, at {new.mark}; it counts once",
            new.mark,
            row=f"{name}.{new.id}",
        )
        return
    first, second = (_plugin(d) if name == "plugins" else "" for d in (old, new))
    hint = "give one of them another id"
    if name != "templates":
        path = f"agents/{new.id}" if name == "agents" else new.id
        hint += f"; to change the first, write `{path}: {{…}}` under overlays:"
    issues.error(
        "0205",
        f"{kind} {new.id!r} is defined twice: at {old.mark}{first} and at {new.mark}{second}",
        new.mark,
        row=f"{name}.{new.id}",
        hint=hint,
    )


def _plugin(definition: Definition) -> str:
    """The plugin of a row, for a message."""
    node = definition.node
    if node.get("group") is not None:
        return " (a group)"
    use = node.get("use")
    return f" (use {use.value if use is not None and use.value else definition.id})"


def fields(name: str, layers: Iterable[Iterable[Source]], issues: Issues) -> Node | None:
    """A section of fields: united within each layer, then merged over the layers. `None` if nothing is in it."""
    merged: Node | None = None
    for layer in layers:
        united: Node | None = None
        for source in layer:
            node = section(source, name)
            if node is not None:
                united = node if united is None else unite(united, node, name, issues)
        if united is not None:
            merged = merge(merged, united)
    return merged if merged is not None and merged.mapping() else None


def unite(first: Node, second: Node, place: str, issues: Issues) -> Node:
    """Two values of one field from two files without order: what only one of them says, and what both say alike."""
    if same(first, second):
        if not (first.is_mapping and not first.mapping()):
            issues.warn(
                "0206",
                f"{place} is set at {first.mark} and, identically, at {second.mark}; it counts once",
                second.mark,
                row=place,
            )
        return first
    if first.is_mapping and second.is_mapping:
        value, keys = dict(first.mapping()), dict(first.keys)
        for key, node in second.mapping().items():
            if key in value:
                value[key] = unite(value[key], node, f"{place}.{key}", issues)
            else:
                value[key], keys[key] = node, second.keys.get(key, node.mark)
        return Node(value, first.mark, keys)
    issues.error(
        "0206",
        f"{place} is set twice: at {first.mark} and at {second.mark}",
        second.mark,
        row=place,
        hint="included files have no order, so a field comes from one of them; a later --config file may override it",
    )
    return first


def same(first: Node, second: Node) -> bool:
    """Whether two values mean the same: equal data of equal types, and relative paths that start in one directory."""
    a, b = first.value, second.value
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is not type(b) or repr(a) != repr(b):
        return False
    if isinstance(a, str) and ("${file:" in a or a.startswith(("./", "../"))):
        return os.path.dirname(os.path.abspath(first.mark.file)) == os.path.dirname(os.path.abspath(second.mark.file))
    return True
