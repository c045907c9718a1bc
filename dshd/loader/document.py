"""One YAML file as nodes with places: a strict subset, built without recursion over the events of PyYAML's C parser.

Nothing is ever constructed. Plain scalars follow YAML 1.2 (`on`, `no`, `12:30`, `012`, `0x10` and dates are text), keys
are text, there are no tags, and a key stands once in a mapping. `&anchors`, `*aliases` and `<<` are understood, within
limits that hold before anything is expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, TypeAlias

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from .issues import Issues, Mark, nearest
from .mistakes import MISSING_SPACE, SPACE_HINT, explain
from .node import Node, Scalar

SIZE = 4 * 1024 * 1024
NODES = 200_000
DEPTH = 64
ERRORS = 50
"""Errors that are told of one file at most."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMERIC = frozenset("+-.0123456789")

_REFUSED = re.compile("[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Control characters, and the line breaks of YAML 1.1 that no editor counts as such."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file that was read. `root` is `None` for an empty one, and for one with errors, of which `ok` tells."""

    root: Node | None
    ok: bool
    text: str
    """As far as it could be decoded, for showing lines."""
    count: int = 0
    """Values in it, aliases expanded; never less than there are."""
    anchored: bool = False
    """Whether it has anchors."""


def read_document(name: str, data: bytes, issues: Issues) -> Node | None:
    """The root of a file, or `None` if it is empty, or has errors: `parse` tells the two apart."""
    return parse(name, data, issues).root


def parse(name: str, data: bytes, issues: Issues) -> Document:
    """Read one file called `name` in marks. What is wrong is added to `issues`, as much of it as can be told."""
    if len(data) > SIZE:
        issues.error(
            "0103",
            f"this file has {len(data):,} bytes; a configuration file has {SIZE:,} at most",
            Mark(name, 1, 1),
            hint="split it with include:",
        )
        return Document(root=None, ok=False, text="")
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as exc:
        return _undecodable(name, data, exc.start, issues)
    refused = _REFUSED.search(text)
    if refused:
        before = text[: refused.start()].splitlines(keepends=True) or [""]
        line, col = (
            (len(before), len(before[-1]) + 1) if not before[-1].endswith(("\n", "\r")) else (len(before) + 1, 1)
        )
        issues.error(
            "0104",
            f"the character U+{ord(refused[0]):04X} is invisible and not allowed",
            Mark(name, line, col),
            hint='remove it, or write it as an escape in double quotes, such as "\\x1b" or "\\u2028"',
        )
        return Document(root=None, ok=False, text=text)
    builder = _Builder(name, text, issues)
    root = builder.build()
    ok, anchored = not builder.errors, bool(builder.anchors)
    return Document(root=root if ok else None, ok=ok, text=text, count=builder.count, anchored=anchored)


def _undecodable(name: str, data: bytes, offset: int, issues: Issues) -> Document:
    head = data[:offset].decode()
    line = head.count("\n") + 1
    col = len(head.removeprefix("\ufeff").rpartition("\n")[2]) + 1
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    issues.error(
        "0102",
        f"not UTF-8: the byte 0x{data[offset]:02x} at byte offset {offset} does not belong to any character",
        Mark(name, line, col),
        hint=f"save the file as UTF-8{'; it is UTF-16 now' if wide else ''}",
    )
    return Document(root=None, ok=False, text=data.decode(errors="replace").removeprefix("\ufeff"))


def scalar(text: str) -> Scalar:
    """What a plain scalar means in the core schema of YAML 1.2, with decimal integers of at most 64 bits only."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    if _INT.fullmatch(text):
        # longer ones are ids: no field takes them for a number, and JSON would change them
        return number if len(text) <= 21 and -(1 << 63) <= (number := int(text)) < 1 << 64 else text
    if _FLOAT.fullmatch(text):
        value = float(text)
        return text if value in (float("inf"), float("-inf")) else value
    return float(text.replace(".", "", 1)) if _SPECIAL.fullmatch(text) else text


class _Stop(Exception):
    """The rest of the file cannot be judged; the reason was reported."""


_Anchored: TypeAlias = "tuple[Node, int, int]"


class _Frame:
    """A collection that is being filled. `size` counts its nodes as if aliases were copies; `height` is its depth."""

    __slots__ = ("anchor", "flow", "height", "key", "key_plain", "merges", "node", "size")

    def __init__(self, node: Node, anchor: str | None, flow: bool) -> None:
        self.node = node
        self.anchor = anchor
        self.flow = flow
        self.key: str | None = None
        self.key_plain = False
        self.merges: list[Node] | None = None
        self.size = 1
        self.height = 1


class _Builder:
    def __init__(self, name: str, text: str, issues: Issues) -> None:
        self._name = name
        self._text = text
        self._issues = issues
        self._frames: list[_Frame] = []
        self.anchors: dict[str, _Anchored | None] = {}
        self.count = 0
        self._documents = 0
        self._root: Node | None = None
        self._last: ScalarEvent | None = None
        self.errors = 0

    def build(self) -> Node | None:
        loader = yaml.CSafeLoader(self._text)
        try:
            event: Event | None
            while (event := loader.get_event()) is not None:
                if type(event) is ScalarEvent:
                    self._scalar(event)
                elif isinstance(event, CollectionStartEvent):
                    self._open(event)
                elif isinstance(event, CollectionEndEvent):
                    self._close()
                elif isinstance(event, AliasEvent):
                    self._alias(event)
                elif isinstance(event, DocumentStartEvent):
                    self._document(event)
        except _Stop:
            return None
        except yaml.MarkedYAMLError as exc:
            frame = self._frames[-1] if self._frames else None
            mark = frame.node.mark if frame is not None and frame.flow else None
            opened = None if mark is None else (mark.line - 1, mark.col - 1)
            found = explain(exc, self._lines, self._last, opened)
            self.errors += 1
            self._issues.error(found.code, found.message, Mark(self._name, found.line, found.col), hint=found.hint)
            return None
        finally:
            loader.dispose()
        if self._root is not None and self._root.value is None:
            return None
        return self._root

    # -- events

    def _document(self, event: DocumentStartEvent) -> None:
        self._documents += 1
        mark = self._mark(event)
        if self._documents > 1:
            self._stop("0108", "a second document begins here; a file holds one", mark, hint="remove the line ---")
        if event.tags:
            self._stop("0107", "a %TAG directive; configuration has no tags", mark, hint="remove the line")
        if event.version not in (None, (1, 2)):
            self._stop("0108", "files are read as YAML 1.2, not as another version", mark, hint="remove the line %YAML")

    def _scalar(self, event: ScalarEvent) -> None:
        self._last = event
        if event.tag is not None:
            self._tagged(event, event.tag)
        mark = self._mark(event)
        text = event.value
        plain = not event.style
        frame = self._frames[-1] if self._frames else None
        if frame is not None and frame.key is None and type(frame.node.value) is dict:
            self._key(frame, event, text, mark, plain)
            return
        if plain and not text and frame is not None and frame.flow and frame.key_plain and ":" in (frame.key or ""):
            self._missing_space(frame)
        node = Node(scalar(text) if plain else text, mark, quoted=not plain)
        if event.anchor is not None:
            self.anchors[event.anchor] = node, 1, 0
        self.count += 1
        if self.count > NODES:
            self._too_many(mark)
        self._put(node, 1, 0)

    def _open(self, event: CollectionStartEvent) -> None:
        if event.tag is not None:
            self._tagged(event, event.tag)
        mark = self._mark(event)
        frames = self._frames
        if frames and frames[-1].key is None and frames[-1].node.is_mapping:
            self._stop(
                "0109",
                "a list or mapping stands where a key belongs; keys are text",
                mark,
                hint="put quotes around text that begins with { or [",
            )
        if len(frames) >= DEPTH:
            self._stop("0112", f"nested more than {DEPTH} levels deep", mark)
        self.count += 1
        if self.count > NODES:
            self._too_many(mark)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        node = Node({} if isinstance(event, MappingStartEvent) else [], mark)
        frames.append(_Frame(node, event.anchor, bool(event.flow_style)))

    def _close(self) -> None:
        frame = self._frames.pop()
        node = frame.node
        if frame.merges is not None:
            value: dict[str, Node] = {}
            keys: dict[str, Mark] = {}
            for merged in frame.merges:
                for key, member in merged.mapping().items():
                    if key not in value:
                        value[key], keys[key] = member, merged.keys[key]
            if "<<" not in node.mapping():
                del node.keys["<<"]
            node.value = {**value, **node.mapping()}
            node.keys = {**keys, **node.keys}
        if frame.anchor is not None:
            self.anchors[frame.anchor] = node, frame.size, frame.height
        self._put(node, frame.size, frame.height)

    def _alias(self, event: AliasEvent) -> None:
        name, mark = event.anchor or "", self._mark(event)
        if self._frames and self._frames[-1].key is None and self._frames[-1].node.is_mapping:
            self._stop("0109", f"the alias *{name} stands where a key belongs; keys are text", mark)
        quote = f'to mean the text, put quotes around it: "*{name}"'
        if name not in self.anchors:
            guess = nearest(name, self.anchors)
            hint = f"{guess}; {quote}" if guess else f"no &{name} stands before it; {quote}"
            self._error("0110", f"the alias *{name} refers to nothing", mark, hint=hint)
            self._put(Node({}, mark), 1, 1)
            return
        known = self.anchors[name]
        if known is None:
            self._stop("0110", f"the alias *{name} stands inside what it refers to", mark)
        node, size, height = known
        self.count += size
        if self.count > NODES:
            self._too_many(mark, "with its aliases expanded, ")
        if len(self._frames) + height > DEPTH:
            self._stop("0112", f"with the alias *{name} expanded, nested more than {DEPTH} levels deep", mark)
        self._put(node, size, height)

    # -- parts

    def _key(self, frame: _Frame, event: ScalarEvent, text: str, mark: Mark, plain: bool) -> None:
        if plain and not text:
            self._stop("0109", "a key is missing before the colon", mark)
        if event.style in ("|", ">"):
            self._stop("0109", "a block of text stands where a key belongs", mark)
        if event.anchor is not None:
            self.anchors[event.anchor] = Node(text, mark, quoted=True), 1, 0
        first = frame.node.keys.get(text)
        if first is not None:
            self._error(
                "0106",
                f"the key {text!r} stands twice in one mapping: on line {first.line} and on line {mark.line}",
                mark,
                hint="remove one of them, or give it another name",
            )
        else:
            frame.node.keys[text] = mark
        frame.key, frame.key_plain = text, plain

    def _put(self, node: Node, size: int, height: int) -> None:
        """Add a finished node to the collection it stands in."""
        if not self._frames:
            self._finish(node)
            return
        frame = self._frames[-1]
        frame.size += size
        if height >= frame.height:
            frame.height = height + 1
        value = frame.node.value
        if type(value) is list:
            value.append(node)
        elif type(value) is dict and frame.key is not None:
            if frame.key == "<<" and frame.key_plain:
                self._merge(frame, node)
            else:
                value.setdefault(frame.key, node)
            frame.key = None

    def _merge(self, frame: _Frame, node: Node) -> None:
        parts = node.items() if node.is_list else [node]
        wrong = next((part for part in parts if not part.is_mapping), None)
        if wrong is not None:
            self._error(
                "0111",
                f"<< takes a mapping, or a list of mappings, and this is {wrong.kind}",
                frame.node.keys["<<"],
                hint="write <<: *name, with &name at the mapping to take over",
            )
        frame.merges = parts

    def _finish(self, node: Node) -> None:
        self._root = node
        found = MISSING_SPACE.match(node.value) if isinstance(node.value, str) and not node.quoted else None
        if found:
            mark = Mark(self._name, node.mark.line, node.mark.col + found.end("key"))
            self._stop("0116", f"a space is missing after the colon of {found['key']!r}", mark, hint=SPACE_HINT)

    # -- findings

    def _tagged(self, event: NodeEvent, tag: str) -> None:
        """Report a tag at its own place; it may stand after an anchor."""
        mark = self._mark(event)
        line = self._lines[mark.line - 1]
        col = line.find("!", mark.col - 1)
        self._error(
            "0107",
            f"the tag {tag!r} is refused; configuration is data and has no tags",
            Mark(self._name, mark.line, col + 1 if col >= 0 else mark.col),
            hint="put quotes around text that begins with !",
        )

    def _missing_space(self, frame: _Frame) -> None:
        key = frame.key or ""
        at = frame.node.keys[key]
        mark = Mark(self._name, at.line, at.col + key.index(":"))
        self._error("0116", f"a space is missing after the colon in {key!r}", mark, hint=SPACE_HINT)

    def _too_many(self, mark: Mark, how: str = "") -> NoReturn:
        hint = "repeat less, or split the file with include:"
        self._stop("0113", f"{how}this file has more than {NODES:,} values, which is the limit", mark, hint=hint)

    def _error(self, code: str, message: str, mark: Mark, hint: str | None = None) -> None:
        self._issues.error(code, message, mark, hint=hint)
        self.errors += 1
        if self.errors >= ERRORS:
            raise _Stop

    def _stop(self, code: str, message: str, mark: Mark, hint: str | None = None) -> NoReturn:
        self._error(code, message, mark, hint)
        raise _Stop

    @cached_property
    def _lines(self) -> list[str]:
        return self._text.splitlines()

    def _mark(self, event: Event) -> Mark:
        start = event.start_mark
        assert start is not None
        return Mark(self._name, start.line + 1, start.column + 1)
