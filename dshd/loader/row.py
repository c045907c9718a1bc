"""Rows and the composed tree: what the YAML says, after layers, before references, plugins and schemas."""

from __future__ import annotations

from dataclasses import dataclass, field

from .issues import Mark
from .node import Node


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plugin entry, with what it inherits from its groups. `path` is ids from the root: `nightly/shell`."""

    path: str
    use: str
    mark: Mark
    use_mark: Mark
    base: str
    """Directory of the file that names `use`; relative paths start there."""
    config: Node
    inject: tuple[tuple[str, Mark], ...] = ()
    isolate: tuple[tuple[str, str | None, str], ...] = ()
    """(service name, given realm or `None` for a private one, path of the row or group that asked)."""
    intercept: tuple[tuple[str, Node], ...] = ()
    """(service name, layer), the outermost group first."""
    optional: bool = False
    disabled: Node | None = None
    """Resolved with the other references: it may be `${env:…}`. That of a group counts for all in it."""
    disabled_too: tuple[Node, ...] = ()
    """Further ones, where more than one of the row and its groups has a reference: any that is true disables it."""
    agent: bool = False
    """Whether it came from `agents:`."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The composed configuration: rows by path, and the sections that are data."""

    rows: dict[str, Row] = field(default_factory=dict)
    templates: dict[str, Node] = field(default_factory=dict)
    settings: Node | None = None
    daemon: Node | None = None
    sources: tuple[str, ...] = ()
    """Every file that was read, absolute, root files first."""
    directories: tuple[str, ...] = ()
    """Directories in which a new file could match an include."""
    texts: dict[str, str] = field(default_factory=dict)
    """The text of each source, for showing lines; keyed as in marks."""
    via: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Through which files an included one was reached, the nearest first; keyed as in marks, for `Issues.via`."""
