"""The plan: what a reload would do to each row, and why. Pure, and what `dshd plan` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .spec import Desired, Spec

Kind = Literal["keep", "replace", "add", "remove", "pending_restart"]


@dataclass(frozen=True, kw_only=True)
class Action:
    """What happens to one row. `changed` are dotted places in the spec (`config.timeout`), or words such as `code`."""

    row: str
    kind: Kind
    changed: tuple[str, ...] = ()
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"row": self.row, "action": self.kind, "changed": list(self.changed), "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All actions in order of row paths. Rows that stay are listed too."""

    actions: tuple[Action, ...] = ()
    pending_restart: tuple[str, ...] = ()
    """Process-level fields and changed code that wait for a restart."""
    applied: tuple[str, ...] = ()
    """What changes beside the rows: live fields of `daemon:`, and places in `settings:` and `templates:`."""

    def of(self, *kinds: Kind) -> list[str]:
        """The rows with one of these actions."""
        return [action.row for action in self.actions if action.kind in kinds]

    @property
    def empty(self) -> bool:
        """Whether nothing would be done to any row."""
        return not self.of("replace", "add", "remove")

    def as_json(self) -> dict[str, Any]:
        return {
            "actions": [action.as_json() for action in self.actions],
            "pending_restart": list(self.pending_restart),
            "applied": list(self.applied),
        }


GATED_FROM = 6
"""So many rows there must be before removing more than half of them is held."""


def removes_much(planned: Plan, running: int) -> str | None:
    """Why a plan is held that would remove much of what runs, or `None`: it may come of a half-written checkout."""
    removed = len(planned.of("remove"))
    if running and removed == running and not planned.of("add"):
        return f"it would remove all {running} rows; say --allow-removals if that is meant"
    if running >= GATED_FROM and removed * 2 > running:
        return f"it would remove {removed} of {running} rows; say --allow-removals if that is meant"
    return None


def changed_fields(old: Any, new: Any, path: str = "") -> list[str]:
    """Dotted places where two canonical values differ, the outermost that says it."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: list[str] = []
        for key in sorted({*old, *new}):
            place = f"{path}.{key}" if path else str(key)
            if key not in old or key not in new:
                found.append(place)
            else:
                found += changed_fields(old[key], new[key], place)
        return found
    return [] if old == new and type(old) is type(new) else [path]


def changed_sections(running: Desired | None, wanted: Desired) -> list[str]:
    """Dotted places in `settings:` and `templates:` that differ from what runs."""
    if running is None:
        return []
    old = {"settings": running.settings, "templates": running.templates}
    return changed_fields(old, {"settings": wanted.settings, "templates": wanted.templates})


def plan(
    running: Mapping[str, Spec],
    wanted: Mapping[str, Spec],
    stale_code: Mapping[str, str] | None = None,
) -> Plan:
    """Compare what runs with what is wanted.

    `stale_code` are rows whose plugin code has changed on disk without being imported anew, with the reason: listed as
    waiting for a restart. A row pinned to a service of a replaced one is replaced with it.
    """
    stale = stale_code or {}
    actions: dict[str, Action] = {}
    for path in sorted({*running, *wanted}):
        old, new = running.get(path), wanted.get(path)
        if old is None:
            actions[path] = Action(row=path, kind="add")
        elif new is None:
            actions[path] = Action(row=path, kind="remove")
        elif old.digest != new.digest:
            actions[path] = Action(
                row=path, kind="replace", changed=tuple(changed_fields(old.canonical, new.canonical))
            )
        elif path in stale:
            actions[path] = Action(row=path, kind="pending_restart", changed=("code",), reason=stale[path])
        else:
            actions[path] = Action(row=path, kind="keep")
    _follow_pins(wanted, actions)
    waiting = tuple(f"{path}: {action.reason}" for path, action in actions.items() if action.kind == "pending_restart")
    return Plan(actions=tuple(actions.values()), pending_restart=waiting)


def _follow_pins(wanted: Mapping[str, Spec], actions: dict[str, Action]) -> None:
    """Replace what keeps an object of something that is replaced, and what is pinned to that in turn."""
    moved = True
    while moved:
        moved = False
        changing = {
            (key.name, realm): path
            for path, action in actions.items()
            if action.kind in ("replace", "add") and path in wanted
            for key, realm in wanted[path].offers()
        }
        for path, action in actions.items():
            if action.kind not in ("keep", "pending_restart"):
                continue
            spec = wanted[path]
            for key in spec.plugin.pinned:
                provider = changing.get((key.name, spec.realm(key)))
                if provider is not None and provider != path:
                    actions[path] = Action(
                        row=path, kind="replace", reason=f"keeps {key.name!r} of {provider!r}, which is replaced"
                    )
                    moved = True
                    break
