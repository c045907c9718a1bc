"""Open unions. The core kinds of a union are classes; any other is an `Extension`, whose kind plugins may register.

A registered kind has its data checked where it enters a record. A stored kind that nobody registers any more is kept
verbatim and exported as it was; only one marked required refuses to be read by somebody who does not know it.

A registry as a context sees it is what readers and checkers are given: `ctx.registry(BLOCK_KINDS)` is a collection of
the names that are known, and a `Kinds` to look them up in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ValidationError

from dshd.kernel.errors import EXITS, DshdError
from dshd.kernel.keys import RegistryKey

from .json import FrozenDict, Json, MalformedValueError, frozen, whole

if TYPE_CHECKING:
    from dshd.kernel.registry import Registry

REQUIRED = "required"


class UnknownKindError(DshdError):
    """A stored value is of a kind nobody here knows, and marked as one that must be understood."""

    def __init__(self, what: str, kind: str) -> None:
        self.what, self.kind = what, kind
        super().__init__(
            f"{what} is of kind {kind!r}, which no plugin here provides and which may not be skipped; "
            f"enable the plugin that registers it"
        )


Kinds: TypeAlias = "Registry[Kind] | Mapping[str, Kind]"
"""Registered kinds by name: `ctx.registry(KEY)`, or a mapping."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A member of an open union that is none of the core's: its kind, and its data as a JSON object.

    Raises `LossyValueError` for data that JSON cannot hold, `MalformedValueError` for what is no object or says itself
    whether it is required.
    """

    kind: str
    data: Mapping[str, Json]
    required: bool = False
    """Whether a reader that does not know the kind must refuse the whole."""

    def __post_init__(self) -> None:
        kind: object = self.kind
        if not isinstance(kind, str):
            raise MalformedValueError(f"a kind is text, so it is no {type(kind).__name__}")
        if not kind:
            raise MalformedValueError("a kind is not empty")
        if type(self.required) is not bool:
            raise MalformedValueError(f"whether {kind!r} is required is a bool, no {type(self.required).__name__}")
        object.__setattr__(self, "kind", whole(kind))
        data = frozen(self.data, f"data of {self.kind!r}")
        if type(data) is not FrozenDict:
            raise MalformedValueError(f"the data of {self.kind!r} is {type(data).__name__}, not an object")
        if REQUIRED in data and (self.required or data[REQUIRED] is True):
            raise MalformedValueError(f"give {self.kind!r} its own {REQUIRED}=…, not a member of the data")
        object.__setattr__(self, "data", data)

    def to_json(self, tag: str) -> dict[str, Json]:
        """`{tag: kind, …data}`, and `required` if so. Raises `MalformedValueError` if the data has a member `tag`."""
        if tag in self.data:
            raise MalformedValueError(f"the data of {self.kind!r} may not have a member {tag!r}, which says its kind")
        return {tag: self.kind, **self.data, **({REQUIRED: True} if self.required else {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Json], tag: str, what: str, known: Collection[str] | None) -> Extension:
        """What `to_json` gave. `known` are the kinds somebody registers, `None` if that is not to be asked.

        Raises `UnknownKindError` for a required one that is not known.
        """
        kind = data.get(tag)
        if not isinstance(kind, str) or not kind:
            raise MalformedValueError(f"{what} has no {tag!r} that says what it is")
        required = data.get(REQUIRED) is True
        if required and known is not None and kind not in known:
            raise UnknownKindError(what, kind)
        return cls(kind, {k: v for k, v in data.items() if k != tag and not (k == REQUIRED and required)}, required)

    def check(self, what: str, tag: str, core: Collection[str], kinds: Kinds | None = None) -> None:
        """Raise `MalformedValueError` if it would be read back as something else, or its registered kind refuses it.

        `core` are the union's own kinds. A kind that is not among `kinds` is taken as it is.
        """
        if self.kind in core:
            raise MalformedValueError(f"{what}: {self.kind!r} has a class of its own, so it is no extension")
        if tag in self.data:
            raise MalformedValueError(f"{what}: the data of {self.kind!r} may not have a member {tag!r}")
        kind = None if kinds is None else kinds.get(self.kind)
        if kind is not None:
            kind.check(self, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A registered kind: how its data is checked, and whether a reader must know it."""

    description: str = ""
    model: type[BaseModel] | None = None
    """What the data must satisfy; `None` takes any JSON object."""
    required: bool = False

    def check(self, extension: Extension, what: str = "an extension") -> None:
        """Raise `MalformedValueError`, beginning with `what`, if this kind does not take the extension."""
        if self.required and not extension.required:
            raise MalformedValueError(f"{what}: {extension.kind!r} must be understood by readers; say required=True")
        if self.model is None:
            return
        try:
            self.model.model_validate(_plain(extension.data))
        except ValidationError as exc:
            first: Any = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"])) or "the whole"
            raise MalformedValueError(f"{what}: data of {extension.kind!r}, {place}: {first['msg']}") from None
        except (Exception, *EXITS) as exc:  # a validator of the plugin's own
            raise MalformedValueError(f"{what}: the check of {extension.kind!r} failed: {exc!r}") from exc


def _plain(value: Json) -> Json:
    """The same as a reader of JSON makes it, dicts and lists: what models are written for."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value


BLOCK_KINDS = RegistryKey[Kind]("content block kind")
"""A new block kind arrives together with the adapters, displays and compaction that honour it."""

SOURCE_KINDS = RegistryKey[Kind]("message source kind")
FINISH_KINDS = RegistryKey[Kind]("finish reason kind")
TURN_END_KINDS = RegistryKey[Kind]("turn end kind")
EVENT_KINDS = RegistryKey[Kind]("session event kind")
