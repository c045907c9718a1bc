"""Which tools a scope may see: its own, and those it inherits as far as its restrictions permit."""

from __future__ import annotations

import difflib

from dshd import Context, Scope
from dshd.capabilities.tools import RESTRICTIONS, TOOL_DEFINITIONS, ToolCode, ToolDefinition, ToolFailure, permitted

from .faults import failure

_NOBODY = Scope("nobody")
"""Sees what everybody inherits, for nothing is ever registered for it."""

MOST_NAMES = 40
LONGEST_NAME = 64


def find(view: Context, name: str) -> ToolDefinition | None:
    """The tool `name`, if `view` may see it. A restriction that came after a lease binds that too."""
    definition = view.registry(TOOL_DEFINITIONS).get(name)
    if definition is None or view.scope is None:
        return definition
    if definition is not view.scoped(_NOBODY).registry(TOOL_DEFINITIONS).get(name):
        return definition
    return definition if permitted(name, view.registry(RESTRICTIONS).binding()) else None


def visible(view: Context) -> list[ToolDefinition]:
    """All tools that `view` may see."""
    found = dict(view.registry(TOOL_DEFINITIONS).items())
    if view.scope is None:
        return list(found.values())
    inherited = dict(view.scoped(_NOBODY).registry(TOOL_DEFINITIONS).items())
    restrictions = view.registry(RESTRICTIONS).binding()
    return [
        definition
        for name, definition in found.items()
        if definition is not inherited.get(name) or permitted(name, restrictions)
    ]


def unknown(view: Context, name: str) -> ToolFailure:
    """The failure of a call of a tool that is not there, or that the caller may not see: it cannot tell which."""
    names = sorted(definition.name for definition in visible(view))
    shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    told = f"there is no tool {shown!r}"
    near = _near(name[:LONGEST_NAME], names)
    if near:
        told += f"; did you mean {' or '.join(near)}?"
    if not names:
        return failure(ToolCode.UNKNOWN_TOOL, f"{told}; no tools are available")
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    there_are = f"Available: {', '.join(names[:MOST_NAMES])}{more}"
    return failure(ToolCode.UNKNOWN_TOOL, f"{told} {there_are}" if near else f"{told}. {there_are}")


def _near(name: str, names: list[str]) -> list[str]:
    """Names like this one; models also write them in other case, or with a namespace before them."""
    plain = {each.lower(): each for each in names}
    wanted = name.lower()
    parts = [plain[each] for each in plain if len(each) > 2 and wanted.endswith((f".{each}", f":{each}", f"/{each}"))]
    close = [plain[each] for each in difflib.get_close_matches(wanted, plain, 3, 0.6)]
    return list(dict.fromkeys([*parts, *close]))[:3]
