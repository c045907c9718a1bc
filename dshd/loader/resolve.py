"""From the `use` of a row to the plugin it means.

A name is a module or package in `dshd_plugins` or an entry point in the group `dshd.plugins`; `pkg.mod:attr` is any
module; `./file.py` and `./package` lie beside the file that names them. Everything here blocks and imports: call it in
a worker thread. An import that never returns costs those who wait for the same unit, and them only for a while.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from dshd.kernel.plugin import Plugin

from .imports import ResolveError, Target, exists, failed, import_target, unit_of
from .issues import nearest
from .modules import CodeSnapshot, Unit, from_source, local_name, look
from .spec import Spec

PACKAGE = "dshd_plugins"
GROUP = "dshd.plugins"
PATIENCE = 10.0
"""Seconds to wait for somebody else's import of the same unit."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin, and where it came from: `module:attribute`, with the source it is part of if that is known."""

    plugin: Plugin[Any]
    origin: str
    root: str | None = None
    code: str | None = None
    """The source file, or the directory of the package."""
    version: str | None = None
    """Hash of that source as it was imported."""


class Resolver:
    """Finds plugins, imports them once, and in development imports them afresh beside the old. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._importing: dict[str, threading.Lock] = {}
        self._found: dict[tuple[str, str | None], Found] = {}
        self._units: dict[str, Unit] = {}
        self._modules: dict[str, dict[str, None]] = {}
        self._failed: dict[str, BaseException] = {}
        self._broken: dict[str, Unit] = {}
        self._listed: tuple[object, dict[str, str]] = (None, {})
        self._entry_points: dict[str, tuple[str, ...]] | None = None

    # -- what there is

    def names(self) -> list[str]:
        """The names of all installed plugins, nothing imported."""
        return sorted({*self._bundled(), *self._installed()})

    def all(self) -> tuple[dict[str, Found], dict[str, ResolveError]]:
        """Every installed plugin by name, imported, and those that cannot be, with the reason."""
        found: dict[str, Found] = {}
        errors: dict[str, ResolveError] = {}
        for name in self.names():
            try:
                found[name] = self.resolve(name, "/")
            except ResolveError as exc:
                errors[name] = exc
        return found, errors

    def _bundled(self) -> dict[str, str]:
        """Modules and packages of `dshd_plugins`: plain name → module. Listed anew when a directory has changed."""
        directories = list(importlib.import_module(PACKAGE).__path__)
        now = [os.stat(directory).st_mtime_ns for directory in directories if os.path.isdir(directory)]
        if self._listed[0] != now:
            self._listed = (
                now,
                {
                    _plain(info.name): f"{PACKAGE}.{info.name}"
                    for info in pkgutil.iter_modules(directories)
                    if not info.name.startswith("_")
                },
            )
        return self._listed[1]

    def _installed(self, again: bool = False) -> dict[str, tuple[str, ...]]:
        """Entry points: normalised name → the different `module:attribute` that go by it."""
        if self._entry_points is None or again:
            if again:
                importlib.invalidate_caches()
            found: dict[str, dict[str, None]] = {}
            for point in importlib.metadata.entry_points(group=GROUP):
                found.setdefault(_plain(point.name), {})[point.value.partition("[")[0].replace(" ", "")] = None
            self._entry_points = {name: tuple(values) for name, values in found.items()}
        return self._entry_points

    # -- one row

    def resolve(self, use: str, base: str) -> Found:
        """The plugin that `use` means in a file of the directory `base`. Raises `ResolveError`."""
        target = self._target(use, base)
        return self._find(target, use)

    def _target(self, use: str, base: str) -> Target:
        name, colon, attribute = use.partition(":")
        if "${" in use:
            raise ResolveError("0317", "'use' cannot be a reference: which plugin a row is must be known beforehand")
        if not name or (colon and not attribute.isidentifier()):
            raise ResolveError("0311", f"{use!r} names no plugin", "write NAME, pkg.mod:attr, ./file.py or ./package")
        if name.startswith(("./", "../", "/", "~/")) or name in (".", ".."):
            return self._local(name, attribute or None, base)
        if "/" in name or name.endswith(".py"):
            raise ResolveError("0311", f"{use!r} names no plugin", f"for a file write ./{use}")
        if "." in name:
            return Target(name, attribute or None)
        return self._named(name, attribute or None)

    def _local(self, name: str, attribute: str | None, base: str) -> Target:
        path = os.path.normpath(os.path.join(base, os.path.expanduser(name)))
        if os.path.isdir(path):
            if not os.path.isfile(os.path.join(path, "__init__.py")):
                raise ResolveError("0316", f"the directory {path!r} is no package: it has no __init__.py")
        elif not os.path.isfile(path):
            hint = f"did you mean {name + '.py'!r}?" if os.path.isfile(path + ".py") else None
            raise ResolveError("0316", f"there is no plugin at {path!r}", hint)
        elif not path.endswith(".py"):
            raise ResolveError("0316", f"{path!r} is no Python file: its name does not end with .py")
        return Target(local_name(path), attribute, path)

    def _named(self, name: str, attribute: str | None) -> Target:
        plain, bundled = _plain(name), self._bundled()
        module = bundled.get(plain)
        points = self._installed().get(plain)
        if module is None and points is None:
            points = self._installed(again=True).get(plain)
        values = [] if points is None else [value for value in points if value.partition(":")[0] != module]
        if len(values) + (module is not None) > 1:
            ours = [] if module is None else [f"the module {module}"]
            both = " and ".join([*ours, *(f"the entry point {value!r}" for value in values)])
            hint = "say which one with pkg.mod:attr, or uninstall one"
            raise ResolveError("0312", f"{name!r} is the name of more than one plugin: {both}", hint)
        if module is not None:
            return Target(module, attribute)
        if values:
            home, _, given = values[0].partition(":")
            return Target(home, attribute or given or None)
        if attribute is not None and exists(name):
            return Target(name, attribute)
        known = self.names()
        others = f"installed are: {', '.join(known)}" if len(known) <= 20 else None
        raise ResolveError("0311", f"there is no plugin {name!r}", nearest(plain, known) or others)

    def _find(self, target: Target, use: str) -> Found:
        key = (target.module, target.attribute)
        found = self._found.get(key)
        if found is not None:
            return found
        root, path = (target.module, target.path) if target.path is not None else unit_of(target.module, use)
        if target.path is not None:
            from_source(target.module, target.path)
        with self._unit_lock(root, use):
            unit = self._units.get(root)
            if unit is None and path is not None:
                unit = Unit(root=root, path=path, files=look(path))
            try:
                if root in self._failed:
                    raise failed(use, self._failed[root], unit)
                attribute, plugin = import_target(target, use, unit)
            except ResolveError:
                if unit is not None and root not in self._units:
                    self._broken[root] = unit
                raise
        origin = f"{target.path or target.module}:{attribute}"
        found = Found(plugin, origin) if unit is None else Found(plugin, origin, root, unit.path, unit.version)
        with self._lock:
            if unit is not None:
                self._broken.pop(root, None)
                self._units[root] = unit
                self._modules.setdefault(root, {})[target.module] = None
            self._found[key] = found
        return found

    @contextmanager
    def _unit_lock(self, root: str, use: str) -> Iterator[None]:
        with self._lock:
            lock = self._importing.setdefault(root, threading.Lock())
        if not lock.acquire(timeout=PATIENCE):
            message = f"plugin {use!r} is still being imported after {PATIENCE:g} s; importing must wait for nothing"
            raise ResolveError("0318", message, "move what waits into the body of the plugin and restart the daemon")
        try:
            yield
        finally:
            lock.release()

    # -- code that changed

    def watched(self) -> list[str]:
        """The files and package directories of plugins that have been imported, or could not be."""
        return sorted({unit.path for unit in (*self._units.values(), *self._broken.values())})

    def changed(self) -> dict[str, tuple[str, ...]]:
        """What has changed on disk since it was imported: path of a unit → its changed files. Reads the disk."""
        units = [*self._units.values(), *self._broken.values()]
        return {unit.path: files for unit in units if (files := unit.differs(unit.again()))}

    def refresh(self) -> CodeReload | None:
        """Import every changed unit afresh, `None` if none has changed. `resolve` then answers from the new code.

        The caller ends it with `commit` or `discard`; one at a time.
        """
        now = {root: unit.again() for root, unit in list(self._units.items())}
        changed = {root: unit for root, unit in now.items() if self._units[root].differs(unit)}
        if not changed:
            return None
        with self._lock:
            old = _State(dict(self._found), dict(self._units))
            snapshot = CodeSnapshot(changed, {root: tuple(self._modules[root]) for root in changed})
        with ExitStack() as held:
            # Whoever resolves meanwhile would put modules into the unit that is being replaced.
            for root in sorted(changed):
                held.enter_context(self._unit_lock(root, root))
            snapshot.load()
            with self._lock:
                self._failed = dict(snapshot.failures)
                self._units |= changed
                self._found = {key: found for key, found in old.found.items() if found.root not in changed}
        return CodeReload(snapshot, lambda roots: self._restore(old, roots))

    def _restore(self, old: _State, roots: Collection[str]) -> None:
        """Answer for these units as before."""
        with self._lock:
            for root in roots:
                self._failed.pop(root, None)
                self._units[root] = old.units[root]
            self._found = {
                **{key: found for key, found in self._found.items() if (found.root or "") not in roots},
                **{key: found for key, found in old.found.items() if (found.root or "") in roots},
            }


@dataclass(frozen=True, slots=True)
class _State:
    found: dict[tuple[str, str | None], Found]
    units: dict[str, Unit]


class CodeReload:
    """Changed code that has been imported beside the old; `commit` keeps it, `discard` goes back to the old."""

    def __init__(self, snapshot: CodeSnapshot, restore: Callable[[Collection[str]], None]) -> None:
        self._snapshot = snapshot
        self._restore = restore
        self.committed = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The files or package directories whose code has changed."""
        return tuple(sorted(unit.path for unit in self._snapshot.units.values()))

    @property
    def failures(self) -> Mapping[str, BaseException]:
        """What could not be imported, by root module; rows that use it do not validate."""
        return self._snapshot.failures

    def commit(self) -> None:
        """Keep the new code. What failed to import, which no row uses, stays as it was and is tried again."""
        if not self._snapshot.over:
            self.committed = True
            self._snapshot.commit()
            self._restore(frozenset(self._snapshot.failures))

    def discard(self) -> None:
        """Go back to the old code, in `sys.modules` as well."""
        if not self._snapshot.over:
            self._snapshot.discard()
            self._restore(frozenset(self._snapshot.units))


def stale_rows(specs: Mapping[str, Spec], changed: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Rows whose code has changed on disk, with the reason; `changed` as from `Resolver.changed`."""
    return {
        path: f"its code has changed on disk: {', '.join(changed[spec.code])}"
        for path, spec in specs.items()
        if spec.code is not None and spec.code in changed
    }


def _plain(name: str) -> str:
    return name.replace("-", "_")
