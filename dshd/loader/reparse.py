"""Reading a file again that was read before: what did not change is taken over, node for node.

An edit mostly changes a few lines inside one entry of one section. Such an entry is parsed alone and put in place of
the old one; every other node is the very one of the last reading, which later steps know again by identity. That is
done only where it cannot make a difference: block style, no anchors, the same number of lines, one entry with its old
key. Anything else, and anything that has errors, is parsed whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .document import NODES, Document, parse
from .issues import Issues
from .node import Node

_FAR = re.compile(r"^---|^\.\.\.|(?:^|\s)\?(?:\s|$)")
"""What reaches beyond an entry: the end of a document, and an explicit key, whose missing value is marked far below."""


@dataclass
class Parses:
    """The files of the last reading, by the name they have in marks. Only makes things faster."""

    known: dict[str, tuple[bytes, Document]] = field(default_factory=dict)

    def parse(self, name: str, data: bytes, issues: Issues) -> Document:
        """What `document.parse` gives, with nodes of the last reading wherever they would be equal."""
        before = self.known.get(name)
        document: Document | None = None
        if before is not None:
            document = before[1] if before[0] == data else _spliced(name, before[1], data)
        if document is None:
            document = parse(name, data, issues)
        if document.ok:
            self.known[name] = data, document
        else:
            self.known.pop(name, None)
        return document


def _spliced(name: str, old: Document, data: bytes) -> Document | None:
    """The document of `data`, if it differs from `old` inside one entry only; `None` if that is not certain."""
    root = old.root
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return None
    if root is None or old.anchored or "\r" in text or "\r" in old.text or not _in_blocks(root):
        return None
    lines, before = text.split("\n"), old.text.split("\n")
    if len(lines) != len(before):
        return None
    changed = [number for number, (new, was) in enumerate(zip(lines, before, strict=True), 1) if new != was]
    if not changed:
        return None
    section = _covering(root, changed[0], changed[-1], len(lines))
    if section is None or not _in_blocks(root.mapping()[section[0]]):
        return None
    entries = root.mapping()[section[0]]
    entry = _covering(entries, changed[0], changed[-1], section[2])
    if entry is None:
        return None
    key, first, last = entry
    col = entries.keys[key].col
    if lines[first - 1][: col - 1].strip(" "):
        return None  # something other than spaces before the key, such as the mark of an explicit one
    if any(_FAR.search(line) for line in lines[first - 1 : last]):
        return None
    alone = "\n" * (first - 1) + "\n".join([*lines[first - 1 : last], *([""] if last < len(lines) else [])])
    found = Issues()
    part = parse(name, alone.encode(), found)
    node = part.root
    if node is None or not part.ok or part.anchored or len(found) or old.count + part.count > NODES:
        return None
    if list(node.keys) != [key] or node.keys[key] != entries.keys[key]:
        return None
    fresh = Node({**entries.mapping(), key: node.mapping()[key]}, entries.mark, entries.keys)
    whole = Node({**root.mapping(), section[0]: fresh}, root.mark, root.keys)
    return Document(root=whole, ok=True, text=text, count=old.count + part.count)


def _in_blocks(node: Node) -> bool:
    """Whether it is a mapping in block style: one that begins where its first key does."""
    first = next(iter(node.keys.values()), None)
    return node.is_mapping and first is not None and (first.line, first.col) == (node.mark.line, node.mark.col)


def _covering(node: Node, first: int, last: int, end: int) -> tuple[str, int, int] | None:
    """The member of a mapping whose lines hold all from `first` to `last`: its key, its first line and its last."""
    found: tuple[str, int] | None = None
    for key, mark in node.keys.items():
        if mark.line <= first:
            found = key, mark.line
        elif found is not None:
            return (*found, mark.line - 1) if last < mark.line else None
    return None if found is None or last > end else (*found, end)
