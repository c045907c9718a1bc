"""JSON as data: what may enter a durable record, made immutable.

Lossless means that writing it and reading it back gives an equal value. Text with lone surrogates and integers of any
practical size are; numbers that are not finite, bytes, dates and objects are not, and are refused where they would
become durable, with their place. Write it with the standard library's `json`: faster writers refuse such text and such
integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias, TypeVar

from dshd.kernel.errors import DshdError

Json: TypeAlias = Any
"""None, bool, int, finite float, str, a list or tuple, or a mapping with text keys, of the same."""

T = TypeVar("T")

DEEPEST = 200
"""Levels of nesting. Readers have limits; a value this deep is a mistake or an attack."""

MOST = 1_000_000
"""Values in one value. A few lists that contain each other many times over would never end."""

LARGEST = 10**4000
"""Python itself refuses to write or read longer numbers."""


class MalformedValueError(DshdError, ValueError):
    """A value, stored, received or made by a plugin, has not the shape of what it claims to be."""


class LossyValueError(MalformedValueError):
    """A value would not survive being written as JSON and read back. `path` is its place within the value."""

    def __init__(self, what: str, path: str, why: str) -> None:
        self.what, self.path, self.why = what, path, why
        super().__init__(f"{what}{path}: {why}")


class FrozenDict(dict[str, Any]):
    """A mapping that cannot be changed; writes and compares like a `dict`. `frozen` makes them, whole trees at once."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_more: object) -> NoReturn:
        raise TypeError("this mapping is immutable; make a changed copy with {**it, …}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return frozen(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


EMPTY = FrozenDict()


class _Refused(Exception):
    """Why a value is refused; its place grows while the walk is left."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.path: list[str | int] = []


def frozen(value: Json, what: str = "value") -> Json:
    """An immutable copy: mappings become `FrozenDict`, sequences tuples. What is frozen already is returned as it is.

    Members of enumerations become what they are without the class; text is made `whole`. Raises `LossyValueError`,
    whose message begins with `what` and the place, for what JSON cannot hold.
    """
    try:
        return _frozen(value, 0, [MOST])
    except _Refused as refused:
        raise LossyValueError(what, _place(refused.path), refused.why) from None


def _frozen(value: Json, depth: int, left: list[int]) -> Json:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else whole(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        if -LARGEST < value < LARGEST:
            return value
        raise _Refused("the number has more digits than can be written")
    if kind is float:
        if math.isfinite(value):
            return value
        raise _Refused(f"JSON has no {value}")
    if isinstance(value, (dict, Mapping)):  # the first is much quicker to ask
        return _frozen_mapping(value, depth, left)
    if isinstance(value, (list, tuple)):
        return _frozen_sequence(value, depth, left)
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, int):
        return _frozen(int.__pos__(value), depth, left)
    if isinstance(value, float):
        return _frozen(float.__pos__(value), depth, left)
    raise _Refused(f"{kind.__name__} is no JSON")


def _frozen_mapping(value: Mapping[Any, Json], depth: int, left: list[int]) -> FrozenDict:
    _enter(value, depth, left)
    same = type(value) is FrozenDict
    items: dict[str, Json] = {}
    for key, part in value.items():
        name = key
        if type(key) is not str or not key.isascii():
            if not isinstance(key, str):
                raise _Refused(f"a key is {type(key).__name__}, not text")
            name = whole(key)
            same = same and name is key
        if type(part) is str and part.isascii():  # most are
            items[name] = part
            continue
        try:
            items[name] = new = _frozen(part, depth + 1, left)
        except _Refused as refused:
            refused.path.append(name)
            raise
        same = same and new is part
    if len(items) < len(value):
        raise _Refused("two keys are the same text")
    return value if same else FrozenDict(items)  # type: ignore[return-value]


def _frozen_sequence(value: list[Json] | tuple[Json, ...], depth: int, left: list[int]) -> tuple[Json, ...]:
    _enter(value, depth, left)
    same = type(value) is tuple
    parts = []
    for index, part in enumerate(value):
        try:
            new = _frozen(part, depth + 1, left)
        except _Refused as refused:
            refused.path.append(index)
            raise
        same = same and new is part
        parts.append(new)
    return value if same else tuple(parts)  # type: ignore[return-value]


def _enter(value: Mapping[Any, Json] | list[Json] | tuple[Json, ...], depth: int, left: list[int]) -> None:
    if depth >= DEEPEST:
        raise _Refused(f"nested deeper than {DEEPEST} levels")
    left[0] -= len(value)
    if left[0] < 0:
        raise _Refused(f"more than {MOST} values")


def _place(path: list[str | int]) -> str:
    """Where something is, from the outside in: `.name[3]['an odd name']`."""
    steps = [
        f".{step}" if isinstance(step, str) and step.isidentifier() and len(step) < 40
        else f"[{step if isinstance(step, int) else repr(step[:40])}]"
        for step in reversed(path)
    ]  # fmt: skip
    return "".join(steps[:8]) + ("…" if len(steps) > 8 else "")


def whole(text: str) -> str:
    """Text as JSON gives it back: two surrogates that stand for one character become that character.

    They are apart where a character was cut in two and put together again. A surrogate that is alone stays.
    """
    if type(text) is not str:
        text = str.__str__(text)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return text if joined == text else joined
    return text


def make_whole(value: object, *names: str) -> None:
    """Make text members of a frozen dataclass whole, as it is made. What is no text is left for others to refuse."""
    for name in names:
        text = getattr(value, name)
        if isinstance(text, str) and not (type(text) is str and text.isascii()):
            object.__setattr__(value, name, whole(text))


# -- reading what was stored


def member(data: Json, name: str, kind: type[T], what: str) -> T:
    """The member `name` of a JSON object, of exactly this type. Raises `MalformedValueError`."""
    found = optional(data, name, kind, what)
    if found is None:
        raise MalformedValueError(f"{what} has no {name!r}")
    return found


def optional(data: Json, name: str, kind: type[T], what: str) -> T | None:
    """The same for a member that may be absent or null. A whole number will do for a `float`."""
    if not isinstance(data, Mapping):
        raise MalformedValueError(f"{what} is {type(data).__name__}, not an object")
    value = data.get(name)
    if kind is float and type(value) in (int, float):
        return _finite(value, name, what)  # type: ignore[arg-type,return-value]
    if value is None or type(value) is kind:
        return value
    if kind in (str, int, float, bool) or not isinstance(value, kind):
        raise MalformedValueError(f"{name!r} of {what} is {type(value).__name__}, not {kind.__name__}")
    return value


def _finite(value: float, name: str, what: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise MalformedValueError(f"{name!r} of {what} is no number that can be used")
    return number


def array(data: Json, name: str, what: str, *, required: bool = False) -> tuple[Json, ...]:
    """The same for a list that may be absent, which is then empty; unless it is `required`."""
    if not isinstance(data, Mapping):
        raise MalformedValueError(f"{what} is {type(data).__name__}, not an object")
    value = data.get(name)
    if value is None:
        if required:
            raise MalformedValueError(f"{what} has no {name!r}")
        return ()
    if not isinstance(value, (list, tuple)):
        raise MalformedValueError(f"{name!r} of {what} is {type(value).__name__}, not a list")
    return tuple(value)
