"""Plugin code on disk: units of source that change together, and changed ones imported afresh beside the old.

A unit is a module or package with everything below it. Its source is hashed before it is imported, so a change is never
missed; a fresh import compiles that source and never reads or writes bytecode. What is imported first, and not from a
path, goes through Python's own import.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from dshd.kernel.errors import EXITS

LOCAL = "dshd_plugins.local"
"""Package in which plugins live that were named by a path."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One source file as it was looked at."""

    stat: tuple[int, int, int]
    hash: str


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Source that is imported, watched and replaced as one."""

    root: str
    """Name of its module or package; everything else in it is below that name."""
    path: str
    """The source file, or the directory of the package."""
    files: Mapping[str, Seen]

    @property
    def version(self) -> str:
        """Hash of what its files contain; the same wherever the unit lies."""
        base = os.path.dirname(self.path)
        whole = hashlib.sha256()
        for file, seen in sorted(self.files.items()):
            whole.update(f"{os.path.relpath(file, base)}\0{seen.hash}\0".encode("utf-8", "surrogateescape"))
        return whole.hexdigest()[:16]

    def again(self) -> Unit:
        """The unit as it is on disk now; this one if no content has changed."""
        path = self.path
        if not os.path.exists(path):
            other = path.removesuffix(".py") if path.endswith(".py") else f"{path}.py"
            path = other if os.path.exists(other) else path
        files = look(path, self.files)
        same = files.keys() == self.files.keys() and all(self.files[file].hash == files[file].hash for file in files)
        return self if same else Unit(root=self.root, path=path, files=files)

    def differs(self, other: Unit) -> tuple[str, ...]:
        """The files whose content is another in `other`, or that only one of both has."""
        return tuple(
            file
            for file in sorted({*self.files, *other.files})
            if file not in self.files or file not in other.files or self.files[file].hash != other.files[file].hash
        )

    def contains(self, name: str) -> bool:
        """Whether the module called `name` belongs to it."""
        return name == self.root or name.startswith(f"{self.root}.")


def look(path: str, known: Mapping[str, Seen] | None = None) -> dict[str, Seen]:
    """The source files at `path`, a file or the directory of a package. Only what changed since `known` is read."""
    found: dict[str, Seen] = {}
    for file in _sources(path):
        try:
            status = os.stat(file)
            # Times of a file that is written again within one tick do not move: its size and inode may.
            stat = (status.st_mtime_ns, status.st_size, status.st_ino)
            old = None if known is None else known.get(file)
            if old is not None and old.stat == stat and not _fresh(status.st_mtime_ns):
                found[file] = old
                continue
            with open(file, "rb") as source:
                found[file] = Seen(stat, hashlib.sha256(source.read()).hexdigest())
        except OSError:
            continue
    return found


def _fresh(mtime_ns: int) -> bool:
    """Whether a file was written so lately that its times may not tell of another write."""
    return time.time_ns() - mtime_ns < 2_000_000_000


def _sources(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for directory, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith((".", "__pycache__")))
        yield from (os.path.join(directory, file) for file in sorted(files) if _is_source(file))


def _is_source(name: str) -> bool:
    return name.endswith(".py") and not name.startswith(".")


# -- importing from source ---------------------------------------------------------------------------------------------


class SourceOnly(SourceFileLoader):
    """Compiles the source as it is; neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code = self.source_to_code(self.get_data(path), path)
        assert isinstance(code, CodeType)
        return code


class _Fresh:
    """Finds the modules of units that are imported from source only, before Python's own finders do."""

    def __init__(self) -> None:
        self.roots: dict[str, str] = {}
        """Root of a unit → its file or directory."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = self.roots.get(name)
        if place is not None:
            directory, stem = os.path.split(place.removesuffix(".py"))
            return _located(name, stem, [directory])
        above = name.rpartition(".")[0]
        while above:
            if above in self.roots:
                return _located(name, name.rpartition(".")[2], path or ())
            above = above.rpartition(".")[0]
        return None


def _located(name: str, stem: str, directories: Iterable[str]) -> ModuleSpec | None:
    for directory in directories:
        package = os.path.join(directory, stem)
        for file, below in ((os.path.join(package, "__init__.py"), [package]), (f"{package}.py", None)):
            if os.path.isfile(file):
                return importlib.util.spec_from_file_location(
                    name, file, loader=SourceOnly(name, file), submodule_search_locations=below
                )
    return None


_fresh_units = _Fresh()


def from_source(root: str, path: str) -> None:
    """From now on, import the unit `root` from the source at `path` only."""
    if _fresh_units not in sys.meta_path:
        sys.meta_path.insert(0, _fresh_units)
    if root.startswith(f"{LOCAL}.") and LOCAL not in sys.modules:
        package = ModuleType(LOCAL, "Plugins named by a path.")
        package.__path__ = []
        sys.modules[LOCAL] = package
    _fresh_units.roots[root] = path


def local_name(path: str) -> str:
    """The module name of a plugin file or directory that was named by its absolute path."""
    stem = "".join(c if c.isalnum() else "_" for c in os.path.basename(path).removesuffix(".py"))
    return f"{LOCAL}.{stem}_{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


class _Taken:
    """Modules of a unit taken out of `sys.modules`, to be put back or forgotten."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._modules: dict[str, ModuleType] = {}
        parent, _, self._tail = unit.root.rpartition(".")
        self._parent = sys.modules.get(parent)
        self._bound = None if self._parent is None else vars(self._parent).get(self._tail)
        self._take(self._modules)

    def _take(self, into: dict[str, ModuleType]) -> None:
        for name in [name for name in sys.modules if self._unit.contains(name)]:
            into[name] = sys.modules.pop(name)

    def put_back(self) -> None:
        """Make `sys.modules`, and the name in the parent package, what they were."""
        self._take({})
        sys.modules.update(self._modules)
        if self._parent is not None:
            if self._bound is not None:
                setattr(self._parent, self._tail, self._bound)
            else:
                vars(self._parent).pop(self._tail, None)


@contextmanager
def importing(unit: Unit | None) -> Iterator[None]:
    """Import modules of a unit for the first time.

    If that fails, nothing of the unit stays in `sys.modules` that was not there before, and the next try compiles the
    source, so that a correction made within a second is not mistaken for the bytecode of the mistake.
    """
    before = set() if unit is None else {name for name in sys.modules if unit.contains(name)}
    importlib.invalidate_caches()
    try:
        yield
    except BaseException:
        if unit is not None:
            for name in [name for name in sys.modules if unit.contains(name) and name not in before]:
                del sys.modules[name]
            from_source(unit.root, unit.path)
        raise


class CodeSnapshot:
    """Changed units, imported into new modules while the old ones live on in those who use them.

    From `load` on `sys.modules` has the new modules, so that what is opened in a stage sees its own code; `commit`
    leaves it so, `discard` puts the old ones back. A unit that fails to import is put back at once.
    `failures` says why.
    """

    def __init__(self, units: Mapping[str, Unit], wanted: Mapping[str, Iterable[str]]) -> None:
        """`units` are the changed ones by root, as on disk now; `wanted` the modules to import of each."""
        self.units = dict(units)
        self.failures: dict[str, BaseException] = {}
        self.over = False
        self._wanted = wanted
        self._taken: dict[str, _Taken] = {}

    def load(self) -> None:
        """Import everything afresh. Errors of plugins are kept in `failures`, not raised."""
        importlib.invalidate_caches()
        linecache.checkcache()
        for root, unit in self.units.items():
            from_source(root, unit.path)
            self._taken[root] = _Taken(unit)
        for root in self.units:
            try:
                for module in self._wanted.get(root, (root,)):
                    importlib.import_module(module)
            except (Exception, *EXITS) as exc:
                self.failures[root] = exc
                self._taken.pop(root).put_back()
            except BaseException:
                self.discard()
                raise

    def commit(self) -> None:
        """Keep the new modules."""
        self.over = True
        self._taken.clear()

    def discard(self) -> None:
        """Make `sys.modules` what it was before `load`."""
        self.over = True
        while self._taken:
            _, taken = self._taken.popitem()
            taken.put_back()
