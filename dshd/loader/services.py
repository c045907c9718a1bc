"""The graph of services, before anything is opened: who needs what from whom, by the rules of the kernel.

A need is met by an enabled row whose plugin declares to provide the key in the same realm, or by the process. A row
that is optional may wait; nothing else may depend on one that waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dshd.kernel.inspect import MissingService
from dshd.kernel.keys import DEFAULT_REALM, Realm
from dshd.kernel.plugin import Plugin

from .issues import Issues, Mark, nearest
from .row import Row

Slot: TypeAlias = "tuple[str, Realm]"


@dataclass(frozen=True, kw_only=True)
class Wired:
    """A row with its plugin and the realms it lives in; whether its config is valid does not matter here."""

    row: Row
    plugin: Plugin[Any]
    realms: Mapping[str, Realm]

    @property
    def needs(self) -> list[Slot]:
        return list(dict.fromkeys(self._slot(key.name) for key in self.plugin.inject))

    @property
    def offers(self) -> list[Slot]:
        return list(dict.fromkeys(self._slot(key.name) for key in self.plugin.provides))

    def _slot(self, name: str) -> Slot:
        return name, self.realms.get(name, DEFAULT_REALM)


def realms_of(row: Row) -> dict[str, Realm]:
    """The realms a row lives in, by the name of the service; the innermost wish counts."""
    return {name: Realm(name, path) if given is None else Realm(given) for name, given, path in row.isolate}


@dataclass(kw_only=True)
class Around:
    """What is known beside the enabled rows, for saying who could provide what is missing."""

    disabled: Callable[[], Iterable[Wired]] = tuple
    """Rows that are disabled; asked for only when something is missing."""
    unresolved: Sequence[str] = ()
    """Enabled rows whose plugin is not known."""
    running: Mapping[str, Iterable[Slot]] = field(default_factory=dict)
    """What runs now, with what it provides."""
    installed: Callable[[], Iterable[str]] = tuple
    """Names of the installed plugins."""


class Graph:
    """All enabled rows and what they need of each other."""

    def __init__(self, rows: Iterable[Wired], provided: frozenset[str], issues: Issues, around: Around | None = None):
        self._rows = {wired.row.path: wired for wired in rows}
        self._process = provided
        self._issues = issues
        self._around = around or Around()
        self._needs = {path: wired.needs for path, wired in self._rows.items()}
        self._offers = {path: wired.offers for path, wired in self._rows.items()}
        self._providers: dict[Slot, list[str]] = {}
        for path, slots in self._offers.items():
            for slot in slots:
                self._providers.setdefault(slot, []).append(path)

    def check(self) -> None:
        """Report conflicts, missing providers, cycles, and what waits for rows that can never open."""
        self._conflicts()
        blocked = self._blocked()
        for path in blocked:
            for slot in self._needs[path]:
                if not self._is_met(slot) and slot not in self._providers:
                    self._missing(path, slot)
        cyclic = self._cycles(blocked)
        for path in blocked:
            if path not in cyclic and not self._rows[path].row.optional:
                self._waiting(path, blocked)
        self._unknown()

    def _is_met(self, slot: Slot) -> bool:
        return slot[1] == DEFAULT_REALM and slot[0] in self._process

    def _conflicts(self) -> None:
        for (name, realm), paths in self._providers.items():
            where = f" in realm {realm}" if realm != DEFAULT_REALM else ""
            if self._is_met((name, realm)):
                paths = ["", *paths]
            for path in paths[1:]:
                first = self._rows[paths[0]].row if paths[0] else None
                other = f"row {first.path!r} at {first.mark}" if first is not None else "dshd itself"
                row = self._rows[path].row
                self._issues.error(
                    "0502",
                    f"service {name!r} would be provided twice{where}: by row {path!r} and by {other}",
                    row.use_mark,
                    row=path,
                    hint=f"remove one of them, or give one a realm of its own with `isolate: [{name}]`",
                )

    def _blocked(self) -> list[str]:
        """The rows that could never open, because something they need never comes."""
        unmet = {path: {slot for slot in needs if not self._is_met(slot)} for path, needs in self._needs.items()}
        consumers: dict[Slot, list[str]] = {}
        for path, slots in unmet.items():
            for slot in slots:
                consumers.setdefault(slot, []).append(path)
        ready = [path for path, slots in unmet.items() if not slots]
        seen: set[Slot] = set()
        while ready:
            for slot in self._offers[ready.pop()]:
                if slot not in seen:
                    seen.add(slot)
                    for consumer in consumers.get(slot, ()):
                        unmet[consumer].discard(slot)
                        if not unmet[consumer]:
                            ready.append(consumer)
        return [path for path, slots in unmet.items() if slots]

    # -- what is reported

    def _report(self, code: str, message: str, path: str, name: str, hint: str | None, *, optional: bool) -> None:
        row = self._rows[path].row
        asked = dict(row.inject).get(name)
        mark: Mark = row.use_mark if asked is None else asked
        tell = self._issues.warn if optional else self._issues.error
        tell(code, message, mark, row=path, hint=hint)

    def _missing(self, path: str, slot: Slot) -> None:
        name, realm = slot
        row = self._rows[path].row
        message = f"row {path!r} {MissingService(key=name, realm=str(realm), providers=(), cycle=())}"
        disabled = [wired.row.path for wired in self._around.disabled() if slot in wired.offers]
        leaving = [gone for gone, slots in self._around.running.items() if gone not in self._rows and slot in slots]
        if disabled:
            message += f"; {_rows(disabled)}, which could, is disabled"
        elif leaving:
            message += f"; {_rows(leaving)}, which provides it now, would be removed"
        self._report("0501", message, path, name, self._who(slot), optional=row.optional)

    def _who(self, slot: Slot) -> str | None:
        """Who could provide it, as a hint."""
        name, realm = slot
        elsewhere = [
            f"row {path!r} provides it in {f'realm {other}' if other != DEFAULT_REALM else 'no realm of its own'}"
            for (key, other), paths in self._providers.items()
            for path in paths
            if key == name and other != realm
        ]
        if name in self._process and realm != DEFAULT_REALM:
            elsewhere.append("dshd itself provides it, where it is not isolated")
        if elsewhere:
            return "; ".join(elsewhere)
        if self._around.unresolved:
            return f"it may come from {_rows(self._around.unresolved)}, whose plugin could not be loaded"
        close = nearest(name, {key for key, _ in self._providers} | self._process)
        if close:
            return close
        plain = name.replace("-", "_")
        there = self._around.installed()
        likely = [plain] if plain in there else [each for each in there if each.startswith(f"{plain}_")]
        return f"installed plugins that may provide it: {', '.join(likely)}" if likely else None

    def _cycles(self, blocked: list[str]) -> set[str]:
        """Report circles of rows that wait for each other; all rows that are on one."""
        waits = {
            path: {
                provider: slot[0]
                for slot in self._needs[path]
                if not self._is_met(slot)
                for provider in self._providers.get(slot, ())
                if provider in blocked
            }
            for path in sorted(blocked)
        }
        found: set[str] = set()
        while True:
            ends = [path for path, providers in waits.items() if not providers]
            if ends:
                for path in ends:
                    del waits[path]
                for providers in waits.values():
                    for path in ends:
                        providers.pop(path, None)
                continue
            if not waits:
                return found
            circle = _circle(waits)
            found.update(circle)
            self._circle(circle, waits)
            for path in circle:
                del waits[path]
            for providers in waits.values():
                for path in circle:
                    providers.pop(path, None)

    def _circle(self, circle: list[str], waits: Mapping[str, Mapping[str, str]]) -> None:
        steps = [
            part
            for path, after in zip(circle, [*circle[1:], circle[0]], strict=True)
            for part in (path, waits[path][after])
        ]
        first = circle[0]
        message = f"these rows wait for each other, in a cycle: {'→'.join([*steps, first])}"
        hint = "let one of them do without: it can read an optional service with ctx.get"
        optional = all(self._rows[path].row.optional for path in circle)
        self._report("0503", message, first, steps[1], hint, optional=optional)

    def _waiting(self, path: str, blocked: list[str]) -> None:
        """Report a row that waits for what only optional rows provide, which wait for ever themselves."""
        for slot in self._needs[path]:
            providers = [] if self._is_met(slot) else self._providers.get(slot, [])
            if providers and all(each in blocked and self._rows[each].row.optional for each in providers):
                name = slot[0]
                message = (
                    f"row {path!r} waits for service {name!r} of {_rows(providers)}, which is optional and cannot open"
                )
                hint = f"make {path!r} optional as well, or provide what {_rows(providers)} waits for"
                self._report("0504", message, path, name, hint, optional=False)

    def _unknown(self) -> None:
        """Warn of isolate and intercept for services that nobody knows, if the name is close to a known one."""
        if self._around.unresolved:
            return
        known = {slot[0] for slots in (*self._needs.values(), *self._offers.values()) for slot in slots} | self._process
        told: set[tuple[str, str]] = set()
        for wired in self._rows.values():
            row = wired.row
            for name, _, asked in row.isolate:
                if name not in known and (name, asked) not in told:
                    told.add((name, asked))
                    self._odd("isolate", name, asked, row.mark, known)
            for name, layer in row.intercept:
                if name not in known and (name, str(layer.mark)) not in told:
                    told.add((name, str(layer.mark)))
                    self._odd("intercept", name, row.path, layer.mark, known)

    def _odd(self, what: str, name: str, path: str, mark: Mark, known: set[str]) -> None:
        hint = nearest(name, known)
        if hint is not None:
            message = f"{what} names service {name!r}, which nothing here provides or needs"
            self._issues.warn("0505", message, mark, row=path, hint=hint)


def _circle(waits: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One circle, from its first row in order of paths; everybody waits for somebody."""
    walk = [next(iter(waits))]
    while True:
        after = next(iter(waits[walk[-1]]))
        if after in walk:
            circle = walk[walk.index(after) :]
            start = circle.index(min(circle))
            return circle[start:] + circle[:start]
        walk.append(after)


def _rows(paths: Iterable[str]) -> str:
    named = " or ".join(repr(path) for path in paths)
    return f"row {named}"
