"""Templates: `{{name}}` in what is said and in arguments stands for something of the request."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from dshd.capabilities.values import Json

_NAME = re.compile(r"\{\{\s*(\w+)\s*\}\}")

NAMES: Mapping[str, str] = {
    "user": "what was said last",
    "tool": "the tool whose result came in",
    "tool_result": "its text",
    "route": "the route that is asked",
    "model": "the model that is asked",
    "effort": "the reasoning effort that is asked for",
    "tools": "the names of the tools on offer, with commas",
    "turn": "how many times somebody has spoken",
    "count": "the how-manieth request of its conversation it is",
    "replay": "the replay state of the last answer, as JSON",
}
"""What every template may use; the named groups of its rule come on top."""


def unknown(text: str, groups: Collection[str]) -> list[str]:
    """The names a template uses that stand for nothing."""
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name not in NAMES and name not in groups]


def groups_of(pattern: str) -> tuple[str, ...]:
    """The named groups of a regular expression."""
    return tuple(re.compile(pattern).groupindex)


def expand(text: str, value: Callable[[str], str]) -> str:
    """A template with the values of its names in place; what they contain is not expanded again."""
    return _NAME.sub(lambda found: value(found[1]), text)


def expanded(data: Json, fill: Callable[[str], str]) -> Json:
    """JSON with each text in it filled in."""
    match data:
        case str():
            return fill(data)
        case Mapping():
            return {key: expanded(member, fill) for key, member in data.items()}
        case list() | tuple():
            return [expanded(part, fill) for part in data]
        case _:
            return data
