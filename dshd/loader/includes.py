"""Which files make up a configuration: the roots, what they include, and the packaged bundles under them.

A root and everything it includes are one layer, whose files have no order. A bundle is a layer of its own, below the
first root. Marks carry the names of files as users write them: a root as given, an included one relative to it.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from .document import Document
from .files import Files
from .issues import Issues, Mark, nearest
from .node import Node
from .reparse import Parses
from .sections import SECTIONS, check_sections, texts, unite

DEEPEST = 16
MOST = 10_000

BUNDLES = "dshd_plugins"
"""The package with a directory `bundles` of packaged layers."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of a layer. `root` is its mapping of sections; `via` the files through which it was included."""

    name: str
    path: str
    root: Node
    via: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Gathered:
    """All files of a configuration, the lowest layer first, and within a layer the root file first."""

    layers: list[list[Source]] = field(default_factory=list)
    roots: list[Source] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    """Name in marks → absolute path, of every file that was read."""
    via: dict[str, tuple[str, ...]] = field(default_factory=dict)
    directories: dict[str, None] = field(default_factory=dict)
    complete: bool = True
    """Whether every file could be read, so that what is not in them does not exist."""


def gather(files: Files, roots: Sequence[str], issues: Issues, parses: Parses | None = None) -> Gathered:
    """Read the roots with their includes, and the bundles they name. `parses` helps to read again what was read."""
    walk = _Walk(files, issues, parses or Parses())
    layers = [walk.layer(root) for root in roots]
    walk.found.layers = walk.bundles(layers) + layers
    return walk.found


def available_bundles() -> dict[str, str]:
    """The packaged bundles: name → absolute path."""
    from importlib.resources import files  # slow to import, and many configurations name no bundle

    directory = files(BUNDLES) / "bundles"
    if not directory.is_dir():
        return {}
    return {entry.name[:-5]: str(entry) for entry in directory.iterdir() if entry.name.endswith(".yaml")}


class _Walk:
    def __init__(self, files: Files, issues: Issues, parses: Parses) -> None:
        self._files = files
        self._issues = issues
        self._parses = parses
        self._parsed: dict[str, Document | None] = {}
        self._seen: set[str] = set()
        self.found = Gathered()

    # -- roots and includes

    def layer(self, root: str) -> list[Source]:
        path = os.path.abspath(root)
        if path in self._seen:
            self._issues.warn("0205", f"{root} is given, or included, twice; it counts once", Mark(root, 1, 1))
            return []
        loaded = self._load(root, path, (), Mark(root, 1, 1))
        if loaded is None:
            return []
        self.found.roots.append(loaded)
        layer = {path: loaded}
        self._include(loaded, (path,), layer)
        return [loaded, *sorted((source for source in layer.values() if source is not loaded), key=lambda s: s.name)]

    def _include(self, source: Source, chain: tuple[str, ...], layer: dict[str, Source]) -> None:
        """Add what a file includes, and what that includes, to its layer.

        A file counts once, in the lowest layer that names it, however often it is named.
        """
        for written, mark in texts("include", source.root.get("include"), self._issues):
            for path in self._matches(source, written, mark):
                name = self._name(source, written, path)
                if path in chain:
                    names = [layer[step].name for step in chain[chain.index(path) :]] + [name]
                    self._issues.error(
                        "0208",
                        f"files include each other: {' → '.join(names)}",
                        mark,
                        hint="remove one of these includes; what several files need stands in one that all of them see",
                    )
                elif path not in self._seen:
                    if len(chain) >= DEEPEST or len(self._seen) >= MOST:
                        limit = f"nest {DEEPEST} levels deep" if len(self._seen) < MOST else f"name {MOST:,} files"
                        self._issues.error("0209", f"includes may {limit} at most", mark)
                        self.found.complete = False
                        return
                    loaded = self._load(name, path, (source.name, *source.via), mark)
                    if loaded is not None:
                        layer[path] = loaded
                        self._include(loaded, (*chain, path), layer)

    def _matches(self, source: Source, written: str, mark: Mark) -> list[str]:
        """The absolute paths that an entry of `include` means; a file is never matched by its own pattern."""
        if "${" in written:
            hint = "write the path itself; several --config files are layers, too"
            self._issues.error("0210", "a reference cannot stand in include", mark, hint=hint)
            return []
        if "\0" in written:
            self._issues.error("0204", "this cannot be the name of a file", mark)
            return []
        base = os.path.dirname(source.path)
        if not glob.has_magic(written):
            path = os.path.normpath(os.path.join(base, written))
            self.found.directories[os.path.dirname(path)] = None
            return [path]
        pattern = os.path.normpath(written if os.path.isabs(written) else os.path.join(glob.escape(base), written))
        try:
            self._watch(base, written)
            return [path for path in self._files.glob(pattern) if path != source.path]
        except OSError as exc:
            self._issues.error("0207", f"{written!r} cannot be looked up: {exc.strerror}", mark)
            self.found.complete = False
            return []

    def _watch(self, base: str, written: str) -> None:
        """Remember the directories in which a new file, or a new directory, could match a pattern."""
        place = os.path.normpath(os.path.join(base, written))
        parts = place.split(os.sep)[:-1]
        first = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        fixed = len(base.split(os.sep)) if place.startswith(os.path.join(base, "")) else 0
        first = max(first, fixed)  # the directory of the file itself is meant literally, whatever its name contains
        self.found.directories[os.sep.join(parts[:first]) or os.sep] = None
        for end in range(first + 1, len(parts) + 1):
            literal = [glob.escape(os.sep.join(parts[:fixed]))] if fixed else []
            pattern = os.sep.join([*literal, *parts[fixed:end], ""])
            self.found.directories.update(dict.fromkeys(self._files.glob(pattern)))

    @staticmethod
    def _name(source: Source, written: str, path: str) -> str:
        """An included file as the user would name it: absolute if that is how it is written."""
        if os.path.isabs(written):
            return path
        relative = os.path.relpath(path, os.path.dirname(source.path))
        return os.path.normpath(os.path.join(os.path.dirname(source.name), relative))

    # -- bundles

    def bundles(self, layers: list[list[Source]]) -> list[list[Source]]:
        """The layers of the bundles in effect: those of the last root that says anything about them."""
        named: Node | None = None
        for layer in layers:
            given: Node | None = None
            for source in layer:
                node = source.root.get("bundles")
                if node is not None:
                    given = node if given is None else unite(given, node, "bundles", self._issues)
            named = given if given is not None else named
        known = available_bundles() if named is not None else {}
        found: dict[str, list[Source]] = {}
        for name, mark in texts("bundles", named, self._issues):
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join(sorted(known)) or 'none'}"
                self._issues.error("0211", f"no bundle is called {name!r}", mark, hint=hint)
                self.found.complete = False
            elif name in found:
                self._issues.warn("0205", f"bundle {name!r} is named twice; it is applied once", mark)
            else:
                loaded = self._load(known[name], known[name], (), mark)
                found[name] = [] if loaded is None else [loaded]
                for section in ("bundles", "include"):
                    if loaded is not None and section in loaded.root.keys:
                        self._issues.error("0211", f"a bundle has no {section}", loaded.root.keys[section])
        return [layer for layer in found.values() if layer]

    # -- files

    def _load(self, name: str, path: str, via: tuple[str, ...], mark: Mark) -> Source | None:
        """Read and parse one file; `mark` is where it is asked for. `None` if it cannot be used."""
        self._seen.add(path)
        if path not in self._parsed:
            self._parsed[path] = self._read(name, path, mark)
            if via:
                self.found.via[name] = via
        document = self._parsed[path]
        if document is None or not document.ok:
            self.found.complete = False
            return None
        root = document.root if document.root is not None else Node({}, Mark(name, 1, 1))
        if not root.is_mapping:
            hint = f"its keys are {', '.join(SECTIONS)}"
            self._issues.error(
                "0202", f"a file is a mapping of sections, and this is {root.kind}", root.mark, hint=hint
            )
            self.found.complete = False
            return None
        check_sections(root, self._issues)
        return Source(name=name, path=path, root=root, via=via)

    def _read(self, name: str, path: str, mark: Mark) -> Document | None:
        try:
            data = self._files.read(path)
        except OSError as exc:
            hints = {
                errno.ENOENT: "a pattern such as conf.d/*.yaml may match nothing; a plain name must exist",
                errno.EISDIR: f"write {name}/*.yaml for the files in it",
                errno.EACCES: "the daemon's user must be able to read it",
            }
            reason = f"{exc.strerror or exc}"
            reason = reason[:1].lower() + reason[1:]
            plain = exc.errno == errno.EISDIR or (mark.file != name and exc.strerror == os.strerror(exc.errno or 0))
            hint = hints.get(exc.errno or 0) if plain else None
            self._issues.error("0207" if mark.file != name else "0101", f"{name}: {reason}", mark, hint=hint)
            self.found.directories[os.path.dirname(path)] = None
            return None
        document = self._parses.parse(name, data, self._issues)
        self.found.texts[name] = document.text
        self.found.paths[name] = path
        return document
