"""References in texts: `${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `${credential:NAME}`.

Legal in the text of every value, never in keys; `$${` stands for `${`. What a reference gives is never looked at for
references again. The text of `env` and `file` is put in place here and parsed later by the field's type; a credential
becomes a handle that reads it at each use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .credentials import NAME as CREDENTIAL
from .credentials import Credentials, Handle, without_final_newline
from .files import Files
from .issues import Issues, Mark, nearest
from .node import Node

Kind: TypeAlias = 'Literal["env", "credential", "file"]'

KINDS: tuple[Kind, ...] = ("env", "credential", "file")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LIMIT = 1 << 20
"""Bytes a referenced file may have."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference in a text: `name` is a variable, a credential, or a path as written."""

    kind: Kind
    name: str
    default: str | None = None

    def __str__(self) -> str:
        words = {"env": "environment variable", "credential": "credential", "file": "file"}
        return f"{words[self.kind]} {self.name!r}"


class Expanded(Node):
    """A text that came from references. With `handle` it is a secret; `broken` means that an issue says why."""

    __slots__ = ("broken", "handle", "references")

    def __init__(
        self,
        text: str,
        mark: Mark,
        references: tuple[Reference, ...],
        handle: Handle | None = None,
        broken: bool = False,
    ) -> None:
        super().__init__(text, mark, quoted=True)
        self.references = references
        self.handle = handle
        self.broken = broken

    def __repr__(self) -> str:
        return f"<text of {', '.join(map(str, self.references)) or 'a bad reference'} at {self.mark}>"


class BadReference(ValueError):
    """A text that is not what a reference looks like, with a hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.hint = hint
        super().__init__(message)


class _Unavailable(Exception):
    """What a reference names cannot be had: code, message and hint of the issue."""


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as users write it: `limits.steps`, `fallbacks[0].route`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def directory_of(mark: Mark) -> str:
    """Where relative paths start that were written at `mark`."""
    return os.path.dirname(os.path.abspath(mark.file))


def split(text: str) -> list[str | Reference]:
    """The literal parts and the references of a text. Raises `BadReference`."""
    parts: list[str | Reference] = []
    literal, at = "", 0
    while True:
        start = text.find("${", at)
        if start < 0:
            break
        if start > at and text[start - 1] == "$":
            literal += text[at : start - 1] + "${"
            at = start + 2
            continue
        end = _closing(text, start)
        parts += [literal + text[at:start], _reference(text[start + 2 : end], text[start : end + 1])]
        literal, at = "", end + 1
    return [part for part in (*parts, literal + text[at:]) if part != ""]


def _closing(text: str, start: int) -> int:
    """Where the brace closes that opens at `start`; braces inside are paired, for a default in JSON."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    shown = text[start : start + 12]
    raise BadReference(
        f"the reference that begins with {shown!r} is not closed", "close it with }, or write $${ for ${"
    )


def _reference(inside: str, whole: str) -> Reference:
    kind, colon, rest = inside.partition(":")
    if not colon and VARIABLE.fullmatch(inside):
        hint = f"write ${{env:{inside}}} for the environment variable, or ${whole} for the text itself"
        raise BadReference(f"{whole!r} does not say what it refers to", hint)
    if kind not in KINDS:
        names = ", ".join(f"${{{kind}:…}}" for kind in KINDS)
        hint = nearest(kind, KINDS) or f"there are {names}; for the text itself write ${whole}"
        raise BadReference(f"{whole!r} is no reference: there is no kind {kind!r}", hint)
    if kind == "file":
        if not rest.strip() or "\0" in rest:
            raise BadReference(f"{whole!r} names no file", "write ${file:PATH}")
        return Reference("file", rest)
    if kind == "credential":
        if not CREDENTIAL.fullmatch(rest):
            hint = "letters, digits, _, - and . only; there is no default for a credential"
            raise BadReference(f"{rest!r} cannot be the name of a credential", hint)
        return Reference("credential", rest)
    name, dash, default = rest.partition(":-")
    if not VARIABLE.fullmatch(name):
        hint = "write ${env:NAME} or ${env:NAME:-default}"
        raise BadReference(f"{name!r} cannot be the name of an environment variable", hint)
    return Reference("env", name, default if dash else None)


class Expander:
    """Puts the texts of references in place; remembers what was read. One per evaluation."""

    def __init__(
        self, files: Files, environ: Mapping[str, str], credentials: Credentials | None, issues: Issues
    ) -> None:
        self._files = files
        self._environ = environ
        self._credentials = credentials if credentials is not None else Credentials({})
        self._issues = issues
        self._done: dict[int, tuple[Node, Node]] = {}
        self._texts: dict[str, str] = {}
        self._row: str | None = None
        self._path: list[str | int] = []
        self.referenced: dict[str, None] = {}
        """Absolute paths of `${file:…}`, also of those that could not be read."""
        self.environment: dict[str, None] = {}
        self.credentials: dict[str, None] = {}

    def expand(self, node: Node, row: str | None, path: tuple[str | int, ...] = ()) -> Node:
        """The node with its references put in place; what contains none is shared. `path` is where it stands.

        A node that is met again, through an alias or a group, is reported once.
        """
        self._row, self._path = row, list(path)
        return self._expand(node)

    def _expand(self, node: Node) -> Node:
        value = node.value
        if isinstance(value, str):
            return self._text(node, value) if "${" in value else node
        if not isinstance(value, (dict, list)) or not value:
            return node
        known = self._done.get(id(node))
        if known is not None:
            return known[1]
        expanded = self._mapping(node, value) if isinstance(value, dict) else self._list(node, value)
        self._done[id(node)] = (node, expanded)
        return expanded

    def _mapping(self, node: Node, value: dict[str, Node]) -> Node:
        changed: dict[str, Node] = {}
        for key, member in value.items():
            self._path.append(key)
            if "${" in key:
                hint = "references stand in values only"
                self._report("0307", f"the key {key!r} looks like a reference", node.keys.get(key, member.mark), hint)
            expanded = self._expand(member)
            if expanded is not member:
                changed[key] = expanded
            self._path.pop()
        return Node({**value, **changed}, node.mark, node.keys) if changed else node

    def _list(self, node: Node, value: list[Node]) -> Node:
        members = []
        for index, member in enumerate(value):
            self._path.append(index)
            members.append(self._expand(member))
            self._path.pop()
        if all(new is old for new, old in zip(members, value, strict=True)):
            return node
        return Node(list(members), node.mark, node.keys)

    def _text(self, node: Node, text: str) -> Node:
        known = self._done.get(id(node))
        if known is not None:
            return known[1]
        try:
            parts = split(text)
        except BadReference as exc:
            self._report("0301", str(exc), node.mark, exc.hint)
            result: Node = Expanded("", node.mark, (), broken=True)
        else:
            references = tuple(part for part in parts if isinstance(part, Reference))
            if references:
                result = self._put(node, text, parts, references)
            else:
                result = Node("".join(map(str, parts)), node.mark, quoted=node.quoted)
        self._done[id(node)] = (node, result)
        return result

    def _put(self, node: Node, text: str, parts: list[str | Reference], references: tuple[Reference, ...]) -> Expanded:
        # Texts and names of credentials take turns: the odd ones are names.
        alternating, broken = [""], False
        for part in parts:
            if isinstance(part, str):
                alternating[-1] += part
            elif part.kind == "credential":
                self.credentials[part.name] = None
                alternating += [part.name, ""]
            else:
                try:
                    alternating[-1] += self._read(part, node.mark)
                except _Unavailable as exc:
                    code, message, hint = exc.args
                    self._report(code, message, node.mark, hint)
                    broken = True
        if len(alternating) == 1:
            return Expanded(alternating[0], node.mark, references, broken=broken)
        handle = Handle(tuple(alternating), self._credentials)
        return Expanded(text, node.mark, references, handle, broken)

    def _report(self, code: str, message: str, mark: Mark, hint: str | None) -> None:
        place = dotted(tuple(self._path))
        self._issues.error(code, f"{place}: {message}" if place else message, mark, row=self._row, hint=hint)

    # -- what references give

    def _read(self, reference: Reference, mark: Mark) -> str:
        return self._variable(reference) if reference.kind == "env" else self._file(reference, mark)

    def _variable(self, reference: Reference) -> str:
        name = reference.name
        self.environment[name] = None
        text = self._environ.get(name)
        if not text and reference.default is not None:
            return reference.default
        if text is None:
            hint = f"set it, or give a default: ${{env:{name}:-…}}"
            raise _Unavailable("0302", f"environment variable {name!r} is not set", hint)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Unavailable("0302", f"environment variable {name!r} is not UTF-8", None) from None
        return text

    def _file(self, reference: Reference, mark: Mark) -> str:
        path = self.path(reference.name, mark)
        self.referenced[path] = None
        known = self._texts.get(path)
        if known is not None:
            return known
        try:
            raw = self._files.read(path)
        except FileNotFoundError:
            hint = (
                None if path == reference.name else "a relative path starts at the directory of the file that names it"
            )
            raise _Unavailable("0303", f"there is no file {path!r}", hint) from None
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise _Unavailable("0303", f"file {path!r} cannot be read: {reason}", None) from None
        if len(raw) > LIMIT:
            raise _Unavailable("0304", f"file {path!r} is larger than {LIMIT >> 20} MiB", None)
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise _Unavailable("0304", f"file {path!r} is not UTF-8 (byte {exc.start})", None) from None
        self._texts[path] = text = without_final_newline(text)
        return text

    def path(self, written: str, mark: Mark) -> str:
        """The absolute path of one that was written at `mark`; `~/` is the home directory."""
        home = self._environ.get("HOME")
        if home and (written == "~" or written.startswith("~/")):
            written = home + written[1:]
        return os.path.normpath(os.path.join(directory_of(mark), written))
