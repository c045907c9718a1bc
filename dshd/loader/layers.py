"""Composition: files into one tree of rows and data. Pure; knows no plugin, resolves no reference.

Definitions of all layers are taken together first; overlays then change rows, layer by layer. The result does not
depend on how a layer is split into files, nor on the order of keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from .entries import Entries
from .files import Files, Recorded
from .includes import Gathered, gather
from .issues import Issues
from .node import Node
from .overlays import Forest
from .reparse import Parses
from .row import Tree
from .sections import Definition, define, fields, is_mapping


def compose(files: Files, roots: Sequence[str], issues: Issues, parses: Parses | None = None) -> Tree:
    """The tree that the root files describe, later ones being layers over earlier ones.

    What is wrong is added to `issues` and left out of the tree. Relative roots start at the working directory. `parses`
    remembers the files of the last reading.
    """
    gathered = gather(files, roots, issues, parses)
    sources = [source for layer in gathered.layers for source in layer]
    forest = Forest(
        define("plugins", sources, issues),
        define("agents", sources, issues),
        issues,
        texts=gathered.texts,
        complete=gathered.complete,
    )
    for layer in gathered.layers:
        forest.overlay(layer)
    tree = Tree(
        rows=Entries(issues, gathered.paths).rows(forest.roots, forest.agents),
        templates=_templates(define("templates", sources, issues), issues),
        settings=fields("settings", gathered.layers, issues),
        daemon=fields("daemon", gathered.layers, issues),
        sources=_sources(gathered),
        directories=tuple(sorted(gathered.directories)),
        texts=gathered.texts,
        via=gathered.via,
    )
    issues.via(gathered.via)
    if isinstance(files, Recorded):
        files.keep(tree.sources)
    return tree


def _templates(definitions: dict[str, Definition], issues: Issues) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for name, definition in sorted(definitions.items()):
        node = definition.node
        if node.value is None:
            found[name] = Node({}, definition.mark)
        elif is_mapping(node, f"templates.{name}", issues, "a definition, which is a mapping,"):
            found[name] = node
    return found


def _sources(gathered: Gathered) -> tuple[str, ...]:
    """All files that were read, the roots first."""
    roots = [source.path for source in gathered.roots]
    return tuple(dict.fromkeys([*roots, *gathered.paths.values()]))
