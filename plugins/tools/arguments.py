"""The JSON text a model wrote, as the arguments of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from dshd.capabilities.tools import InvalidArgumentsError, Problem
from dshd.capabilities.values import EMPTY, Json, LossyValueError, frozen

_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class _Refused(Exception):
    """Valid JSON to Python, but not to us."""


def parsed(text: object, expected: Mapping[str, Json]) -> Mapping[str, Json]:
    """The members of the JSON object that `text` is; no text at all is an object without members.

    Raises `InvalidArgumentsError` for anything else, and for what JSON does not define: members given twice, numbers
    that are none or cannot be held.
    """
    if not isinstance(text, str):
        raise _invalid("they should be JSON text", expected)
    if not text.strip():
        return EMPTY
    try:
        value: Any = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    except json.JSONDecodeError as exc:
        place = f"line {exc.lineno} column {exc.colno}"
        raise _invalid(f"they are not valid JSON: {exc.msg} at {place}", expected) from None
    except _Refused as exc:
        raise _invalid(str(exc), expected) from None
    except RecursionError:
        raise _invalid("they are nested too deeply", expected) from None
    except ValueError:  # Python reads no number of thousands of digits
        raise _invalid("they hold a number with too many digits", expected) from None
    if not isinstance(value, dict):
        raise _invalid(f"they should be a JSON object, not {_NAMES.get(type(value), 'a number')}", expected)
    try:
        arguments: Mapping[str, Json] = frozen(value, "")
    except LossyValueError as exc:
        raise _invalid(f"{exc.path.lstrip('.')} {exc.why}", expected) from None
    return arguments


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Refused(f"the member {json.dumps(name[:60])} is given twice")
            seen.add(name)
    return members


def _no_number(name: str) -> NoReturn:
    raise _Refused(f"JSON has no {name}")


def _invalid(text: str, expected: Mapping[str, Json]) -> InvalidArgumentsError:
    return InvalidArgumentsError([Problem((), text)], expected)
