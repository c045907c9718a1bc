"""Rules across rows, which only their plugins know: a route that an agent names must exist.

A plugin gives a pure function `validate(view)`; it looks at the rows as they would be and says what is wrong with its
own. A rule sees rows whose config is invalid too, without their config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from .imports import blame
from .issues import Issues, Mark
from .node import Node
from .row import Row
from .wording import hidden, locate, place


@dataclass(frozen=True, kw_only=True)
class RowView:
    """One enabled row as rules see it."""

    path: str
    plugin: str | None
    """Name of its plugin, `None` if that is not known."""
    config: BaseModel | None
    """Its validated config, `None` if it is invalid."""
    agent: bool
    provides: tuple[str, ...]
    """Names of the services it declares to provide."""
    intercept: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The layers laid over services for it, its groups' included, the outermost first: (service, layer)."""
    source: Row | None = field(default=None, repr=False)
    """Where it stands."""

    @property
    def id(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


class View:
    """The tree as one row's rule sees it. What is wrong is said with `error` and `warn`."""

    def __init__(
        self,
        row: RowView,
        rows: Mapping[str, RowView],
        templates: Mapping[str, Any],
        settings: Mapping[str, Any],
        tell: _Teller,
    ) -> None:
        self.row = row
        self.rows = rows
        """All enabled rows by path, this one among them."""
        self.templates = templates
        self.settings = settings
        self._tell = tell

    def error(self, field: str | tuple[str | int, ...], message: str, *, hint: str | None = None) -> None:
        """Refuse the tree because of `field` of this row's config: `"fallbacks"`, or `("fallbacks", 0, "route")`."""
        self._tell(field, message, hint, severe=True)

    def refuse_layer(self, path: str, index: int, field: str, message: str) -> None:
        """Refuse the tree because of `field` of the layer `intercept[index]` of the row at `path`, said once."""
        self._tell.layer(self.rows[path], index, field, message)

    def warn(self, field: str | tuple[str | int, ...], message: str, *, hint: str | None = None) -> None:
        self._tell(field, message, hint, severe=False)


class _Teller:
    """Turns what a rule says into issues with places."""

    def __init__(self, issues: Issues, row: Row, node: Node, prefix: str) -> None:
        self._issues, self._row, self._node, self._prefix = issues, row, node, prefix
        self._told: set[tuple[Mark, str]] = set()

    def __call__(self, field: str | tuple[str | int, ...], message: str, hint: str | None, *, severe: bool) -> None:
        path: tuple[str | int, ...] = field if isinstance(field, tuple) else (field,) if field else ()
        found, node, _ = locate(self._node, path)
        mark = node.mark if found else self._row.mark
        tell = self._issues.error if severe else self._issues.warn
        here = place(self._prefix, path)
        words = hidden(message, self._node)
        tell("0510", f"{here}: {words}" if here else words, mark, row=self._row.path, hint=hint)

    def layer(self, view: RowView, index: int, field: str, message: str) -> None:
        """Refuse a field of a layer at its own place; that of a group is found in each of its rows."""
        assert view.source is not None
        service, node = view.source.intercept[index]
        mark = node.at((field,))
        words = hidden(f"intercept.{service}.{field}: {message}", node)
        if (mark, words) not in self._told:
            self._told.add((mark, words))
            self._issues.error("0510", words, mark, row=view.path)


@dataclass(frozen=True, kw_only=True)
class Ruled:
    """A row with what its rule needs."""

    row: Row
    node: Node
    """Its config, expanded."""
    prefix: str
    rule: Any
    code: str | None


def apply_rules(
    ruled: list[Ruled],
    rows: Mapping[str, RowView],
    *,
    templates: Mapping[str, Any],
    settings: Mapping[str, Any],
    issues: Issues,
) -> None:
    """Ask the rule of every row that has one; an error inside a rule refuses the tree as well."""
    for each in ruled:
        row = each.row
        view = View(rows[row.path], rows, templates, settings, _Teller(issues, row, each.node, each.prefix))
        try:
            each.rule(view)
        except Exception as exc:
            words = hidden(blame(exc, each.code), each.node)
            issues.error("0511", f"the rule of its plugin failed: {words}", row.use_mark, row=row.path)
