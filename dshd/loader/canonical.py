"""The canonical form of validated data, for digests: no comments, order, quoting or spelling of numbers is left in it.

What came from the environment or from a file, and every secret, is in it as a keyed hash; credentials by their names.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

from dshd.kernel.secret import Secret

from .credentials import Handle
from .expand import Expanded
from .node import Node

TELLING = 6
"""A text of a reference that is at least so long is looked for in all other texts of the row."""

_ANY: TypeAdapter[Any] = TypeAdapter(Any)

Path = tuple["str | int", ...]


def encoded(data: Any) -> bytes:
    """Canonical data as bytes."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(data: Any) -> str:
    """The hash of canonical data."""
    return hashlib.sha256(encoded(data)).hexdigest()


class Canon:
    """Makes the canonical form of one row's data. It follows the nodes the data was made of, to know what to hash."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._visited: set[int] = set()
        self._texts: tuple[str, ...] = ()
        self._opaque = False
        self.relative: list[tuple[Path, Node]] = []
        """Texts that became relative paths in the data."""
        self.strings: list[str] = []
        """Texts found where no reference stands."""

    def hashed(self, data: Any) -> str:
        """What stands for data that may not be seen."""
        return f"hash:{hmac.digest(self._key, encoded(data), 'sha256').hex()[:32]}"

    def of(self, value: Any, node: Node) -> Any:
        """The canonical form of `value`, which was validated from `node`."""
        self._visited, self._opaque, self.relative, self.strings = set(), False, [], []
        expanded = [leaf for _, leaf in node.leaves() if isinstance(leaf, Expanded)]
        self._texts = tuple(
            leaf.value for leaf in expanded if isinstance(leaf.value, str) and len(leaf.value) >= TELLING
        )
        form = self._form(value, node, ())
        if any(id(leaf) not in self._visited for leaf in expanded):
            # A validator moved it, so nobody can say what in the data comes from it.
            form = self.hashed(form)
        if self._opaque:
            # Some value has no form of its own; what it was made of stands for it.
            form = {"form": form, "from": self.node(node)}
        return form

    def node(self, node: Node) -> Any:
        """The canonical form of data that no model has validated."""
        if isinstance(node, Expanded):
            return self._handle(node.handle) if node.handle is not None else self.hashed(node.value)
        if node.is_mapping:
            return {key: self.node(member) for key, member in node.mapping().items()}
        if node.is_list:
            return [self.node(member) for member in node.items()]
        return node.value

    def _handle(self, handle: Handle) -> str:
        around = list(handle.parts[::2])
        return f"credential:{','.join(handle.names)}{f' in {self.hashed(around)}' if any(around) else ''}"

    def _form(self, value: Any, node: Node | None, path: Path) -> Any:
        if isinstance(value, Secret):
            self._seen(node)
            handle = value.handle
            return self._handle(handle) if isinstance(handle, Handle) else self.hashed(value.reveal())
        written = node is not None and isinstance(node.value, str)
        if node is not None and written and isinstance(value, os.PathLike) and not os.path.isabs(value):
            self.relative.append((path, node))
        if isinstance(node, Expanded):
            self._seen(node)
            return self.hashed(self._form(value, None, path))
        if value is None or (isinstance(value, (bool, int, float)) and not isinstance(value, Enum)):
            # A default may be an int where a written value is made a float.
            return int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(value, str) and not isinstance(value, Enum):
            return self._text(value, node is None)
        if isinstance(value, BaseModel):
            return self._model(value, node, path)
        if isinstance(value, Mapping):
            return {
                str(self._plain(key)): self._form(member, _member(node, (str(key),)), (*path, str(key)))
                for key, member in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._form(member, _item(node, index), (*path, index)) for index, member in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            return sorted((self._form(member, None, path) for member in value), key=encoded)
        return self._plain(value)

    def _seen(self, node: Node | None) -> None:
        if node is not None:
            self._visited.add(id(node))

    def _text(self, text: str, made: bool) -> Any:
        self.strings.append(text)
        return self.hashed(text) if self._texts and any(known in text for known in self._texts) else text

    def _model(self, value: BaseModel, node: Node | None, path: Path) -> Any:
        form = {}
        for name, info in type(value).model_fields.items():
            keys = spellings(name, info)
            member = _member(node, keys)
            key = next((key for key in keys if node is not None and key in node.mapping()), name)
            form[name] = self._form(getattr(value, name), member, (*path, key))
        for name, extra in (value.model_extra or {}).items():
            form[name] = self._form(extra, _member(node, (name,)), (*path, name))
        return form

    def _plain(self, value: Any) -> Any:
        match value:
            case Enum():
                return self._form(value.value, None, ())
            case SecretStr() | SecretBytes():
                return self.hashed(_ANY.dump_python(value.get_secret_value(), mode="json"))
            case timedelta():
                return value.total_seconds()
            case os.PathLike():
                return self._text(str(value), made=True)
        if is_dataclass(value) and not isinstance(value, type):
            return {field.name: self._form(getattr(value, field.name), None, ()) for field in fields(value)}
        if hasattr(value, "pattern") and hasattr(value, "flags"):
            return {"pattern": self._plain(value.pattern), "flags": int(value.flags)}
        try:
            form = _ANY.dump_python(value, mode="json")
        except Exception:
            self._opaque = True
            kind = type(value)
            return {"type": f"{kind.__module__}.{kind.__qualname__}"}
        return self._text(form, made=True) if isinstance(form, str) else form


def spellings(name: str, info: FieldInfo) -> tuple[str, ...]:
    """The keys by which a field can be given."""
    alias = info.validation_alias
    aliases: Iterable[Any] = getattr(alias, "choices", (alias,))
    return (*(each for each in aliases if isinstance(each, str)), name)


def _member(node: Node | None, keys: tuple[str, ...]) -> Node | None:
    if node is None or not node.is_mapping:
        return None
    return next((node.mapping()[key] for key in keys if key in node.mapping()), None)


def _item(node: Node | None, index: int) -> Node | None:
    items = [] if node is None else node.items()
    return items[index] if index < len(items) else None
