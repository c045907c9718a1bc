"""One row's config against its plugin's model: what is written is what is meant, and errors stand where the fault is.

What stands in the YAML is strict: text never becomes true or false, and a number never becomes text. What a reference
gave is text and is parsed by the field's type; where a list or a mapping is wanted it is JSON.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from dshd.kernel.secret import HANDLES, SecretHandle

from .canonical import Canon, Path
from .expand import Expanded, Expander, dotted
from .issues import Issues, Mark
from .node import Node
from .wording import CODES, LISTS, MAPPINGS, Finding, field_hint, findings, hidden, locate, place, shown, type_hint

M = TypeVar("M", bound=BaseModel)

_MASK = f"\0credential:{secrets.token_hex(8)}:"
"""Begins the text that stands for a credential while a config is validated."""

_ROUNDS = 12
_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE: TypeAdapter[int] = TypeAdapter(int)
_NUMBER: TypeAdapter[float] = TypeAdapter(float)
_TRUTH: TypeAdapter[bool] = TypeAdapter(bool)
_NOT_MEANT = object()


@dataclass(frozen=True, slots=True)
class Valid(Generic[M]):
    """A validated config and its canonical form."""

    config: M
    canonical: Any


class Check:
    """Validates one tree of nodes by one model, and reports what is wrong under the row's name."""

    def __init__(
        self, node: Node, *, expander: Expander, key: bytes, issues: Issues, row: str | None, prefix: str, mark: Mark
    ) -> None:
        """`node` is expanded; `prefix` says where in the row it stands; `mark` is the place of an absent one."""
        self._node = node if node.value is not None else Node({}, mark)
        self._expander = expander
        self._issues = issues
        self._row = row
        self._prefix = prefix
        self._canon = Canon(key)
        self._handles: dict[str, SecretHandle] = {}
        self._taken: dict[str, Path] = {}
        self._data = self._plain(self._node, ())
        self._converted: set[tuple[Path, str]] = set()

    def by(self, model: type[M]) -> Valid[M] | None:
        """The valid config, or `None` if issues say why there is none."""
        errors: list[Any] = []
        handles = _Handles(self._handles)
        for _ in range(_ROUNDS):
            handles = _Handles(self._handles)
            self._canon.strings.clear()
            try:
                config = model.model_validate_json(json.dumps(self._data), strict=True, context={HANDLES: handles})
            except ValidationError as exc:
                errors = exc.errors(include_url=False, include_input=False)
                if not self._convert(errors):
                    break
            else:
                canonical = self._canon.of(config, self._node)
                if self._canon.relative and self._make_absolute():
                    continue
                good = self._credentials_belong(handles) and not self._broken()
                return Valid(config, canonical) if good else None
        found = findings(errors, self._node)
        self._report(model, [each for each in found if not _is_credential(each.node)])
        self._credentials_belong(handles, [each.path for each in found if not _is_credential(each.node)])
        return None

    # -- the data

    def _plain(self, node: Node, path: Path) -> Any:
        if isinstance(node, Expanded) and node.handle is not None:
            mask = f"{_MASK}{len(self._handles)}"
            self._handles[mask] = node.handle
            self._taken[mask] = path
            return mask
        if node.is_mapping:
            return {key: self._plain(member, (*path, key)) for key, member in node.mapping().items()}
        if node.is_list:
            return [self._plain(member, (*path, index)) for index, member in enumerate(node.items())]
        return node.value

    def _put(self, path: Path, value: Any) -> None:
        if not path:
            self._data = value
            return
        inside = self._data
        for part in path[:-1]:
            inside = inside[part]
        inside[path[-1]] = value

    def _take_out(self, path: Path) -> None:
        inside = self._data
        for part in path[:-1]:
            inside = inside[part]
        inside.pop(path[-1], None)

    def _convert(self, errors: list[Any]) -> bool:
        """Parse texts by what their fields want; whether anything was changed."""
        changed = False
        for error in errors:
            path, node, _ = locate(self._node, error["loc"])
            attempt = (path, error["type"])
            if attempt in self._converted or isinstance(node.value, (dict, list)):
                continue
            self._converted.add(attempt)
            if node.value is None and path and isinstance(path[-1], str):
                # As between layers, `null` takes a key out.
                self._take_out(path)
                changed = True
                continue
            value = _parsed(node, error["type"])
            if value is not _NOT_MEANT:
                self._put(path, value)
                changed = True
        return changed

    def _make_absolute(self) -> bool:
        """Let relative paths start at the file that names them."""
        changed = False
        for path, node in self._canon.relative:
            attempt = (path, "path")
            if attempt not in self._converted and isinstance(node.value, str):
                self._converted.add(attempt)
                self._put(path, self._expander.path(node.value, node.mark))
                changed = True
        return changed

    # -- what is wrong

    def _broken(self) -> bool:
        return any(isinstance(leaf, Expanded) and leaf.broken for _, leaf in self._node.leaves())

    def _credentials_belong(self, handles: _Handles, judged: Iterable[Path] = ()) -> bool:
        """Report the credentials that did not arrive in a secret, except below what was found wrong already."""
        strayed = [mask for text in self._canon.strings if _MASK in text for mask in self._handles if mask in text]
        wrong = [mask for mask in self._handles if mask not in handles.used or mask in strayed]
        for mask in wrong:
            path = self._taken[mask]
            if any(path[: len(above)] == above for above in judged if above):
                continue
            message = f"{place(self._prefix, path)}: a credential can stand in a secret field only"
            hint = "use ${env:…} or ${file:…} here, or ask the author of the plugin to make the field a Secret"
            self._issues.error("0305", message, _value(self._node, path).mark, row=self._row, hint=hint)
        return not wrong

    def _report(self, model: type[BaseModel], found: list[Finding]) -> None:
        for finding in found:
            message, mark, hint = self._words(model, finding)
            code = CODES[finding.kind]
            if isinstance(finding.node, Expanded) and finding.kind == "type":
                code = "0405"
            self._issues.error(code, hidden(message, self._node), mark, row=self._row, hint=hint)

    def _words(self, model: type[BaseModel], finding: Finding) -> tuple[str, Mark, str | None]:
        node, path = finding.node, finding.path
        here = place(self._prefix, path)
        whole = self._node.at(path)
        if finding.kind == "missing":
            return f"{here + ': ' if here else ''}missing field {finding.words!r}", whole, None
        if finding.kind == "unknown":
            name = place(self._prefix, (*path, finding.words))
            return f"unknown field {name!r}", node.keys.get(finding.words, node.mark), field_hint(model, finding)
        mark = node.mark
        before = f"{here}: " if here else ""
        if finding.kind == "refused":
            return f"{before}{finding.words}", mark, None
        if isinstance(node, Expanded):
            hint = None
            if "a list" in finding.words:
                hint = 'write it as a JSON list, such as ["a", "b"]'
            elif "a mapping" in finding.words:
                hint = 'write it as a JSON mapping, such as {"a": 1}'
            source = " and ".join(map(str, node.references))
            empty = "is empty" if node.value == "" else "gives something else"
            return f"{before}expected {finding.words}, but {source} {empty}", mark, hint
        return f"{before}expected {finding.words}, found {shown(node, path)}", mark, type_hint(finding)


class _Handles(dict[str, SecretHandle]):
    """Handles by the text that stands for them, which remembers those that were asked for."""

    def __init__(self, handles: Mapping[str, SecretHandle]) -> None:
        super().__init__(handles)
        self.used: set[str] = set()

    def __getitem__(self, text: str) -> SecretHandle:
        self.used.add(text)
        return super().__getitem__(text)


def _is_credential(node: Node) -> bool:
    return isinstance(node, Expanded) and node.handle is not None


def _value(node: Node, path: Path) -> Node:
    for part in path:
        node = node.items()[part] if isinstance(part, int) else node.mapping()[part]
    return node


def _parsed(node: Node, kind: str) -> Any:
    """The value that a text, or a number of seconds, stands for in a field that refused it with an error of `kind`."""
    value, reference = node.value, isinstance(node, Expanded)
    if kind.startswith("time_delta") and not isinstance(value, bool):
        match = _DURATION.fullmatch(str(value))
        return _NOT_MEANT if match is None else f"PT{float(match[1]) * _SECONDS[match[2]]:f}S"
    if not isinstance(value, str) or (isinstance(node, Expanded) and node.handle is not None):
        return _NOT_MEANT
    try:
        if kind == "int_type" and (reference or _INT.fullmatch(value)):
            return _WHOLE.validate_python(value)
        if kind == "float_type" and (reference or _FLOAT.fullmatch(value)):
            return _NUMBER.validate_python(value)
        if reference:
            return _from_reference(value, kind)
    except ValueError:
        pass
    return _NOT_MEANT


def _from_reference(text: str, kind: str) -> Any:
    """Raises `ValueError` for a text that is nothing of the kind."""
    if kind == "bool_type":
        return _TRUTH.validate_python(text)
    if kind in LISTS or kind in MAPPINGS:
        data = json.loads(text)
        return data if isinstance(data, list if kind in LISTS else dict) else _NOT_MEANT
    if kind in ("literal_error", "enum"):
        data = json.loads(text)
        return data if isinstance(data, (bool, int, float)) else _NOT_MEANT
    return _NOT_MEANT


def flag(node: Node | None, *, issues: Issues, row: str, name: str) -> bool:
    """A field of a row that is true or false, `False` if it is absent or an issue says what is wrong with it."""
    if node is None or node.value is None or (isinstance(node, Expanded) and node.broken):
        return False
    if isinstance(node.value, bool):
        return node.value
    if isinstance(node, Expanded) and node.handle is None:
        value = _parsed(node, "bool_type")
        if isinstance(value, bool):
            return value
    finding = Finding(kind="type", path=(name,), node=node, words="true or false")
    if isinstance(node, Expanded):
        source = " and ".join(map(str, node.references))
        issues.error("0405", f"{name}: expected true or false, but {source} gives something else", node.mark, row=row)
    else:
        message = f"{name}: expected true or false, found {shown(node, (name,))}"
        issues.error("0403", message, node.mark, row=row, hint=type_hint(finding))
    return False


def no_credentials(node: Node, where: str, *, issues: Issues, row: str | None) -> None:
    """Report credentials in data that is no plugin's config, hence has no secret fields."""
    for path, leaf in node.leaves():
        if isinstance(leaf, Expanded) and leaf.handle is not None:
            message = f"{dotted((where, *path))}: a credential can stand in a secret field of a plugin's config only"
            issues.error("0305", message, leaf.mark, row=row)
