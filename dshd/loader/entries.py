"""Rows made of drafts: every key checked, and what groups hand down put in place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .issues import Issues, Mark, nearest
from .node import Node
from .overlays import AGENTS, Draft
from .row import Row
from .sections import ROW_KEYS, is_list, is_mapping, names


@dataclass(frozen=True, kw_only=True)
class _Above:
    """What the groups around a row hand down to it."""

    isolate: tuple[tuple[str, str | None, str], ...] = ()
    intercept: tuple[tuple[str, Node], ...] = ()
    inject: tuple[tuple[str, Mark], ...] = ()
    optional: bool = False
    disabled: tuple[Node, ...] = ()


class Entries:
    """Makes rows; `paths` says where the files of marks are."""

    def __init__(self, issues: Issues, paths: Mapping[str, str]) -> None:
        self._issues = issues
        self._paths = paths
        self._rows: dict[str, Row] = {}

    def rows(self, roots: Mapping[str, Draft], agents: Mapping[str, Draft]) -> dict[str, Row]:
        """All rows in order of their paths. Where one is wrong, an issue says so and the rest is still made."""
        for name, draft in roots.items():
            self._visit(name, name, draft, _Above())
        for name, draft in agents.items():
            if not draft.broken:
                self._agent(f"{AGENTS}/{name}", draft)
        return dict(sorted(self._rows.items()))

    def _visit(self, path: str, name: str, draft: Draft, above: _Above) -> None:
        """A row, or a group with all that is in it."""
        if draft.broken:
            return
        self._unknown(path, draft)
        here = self._inherit(path, draft.node, above)
        if draft.children is None:
            self._plugin(path, name, draft, here)
            return
        for key in ("use", "config"):
            if key in draft.node.mapping():
                self._error(
                    "0217",
                    f"a group has no {key}; a row has either a group or a plugin with its config",
                    draft.node.keys[key],
                    path,
                    hint=f"put it into a row inside the group (group: on line {draft.group_mark.line})"
                    if draft.group_mark
                    else None,
                )
        for child, member in draft.children.items():
            self._visit(f"{path}/{child}", child, member, here)

    def _plugin(self, path: str, name: str, draft: Draft, here: _Above) -> None:
        node = draft.node
        use, use_mark = name, draft.mark
        given = node.get("use")
        if given is not None:
            use_mark = given.mark
            if isinstance(given.value, str) and given.value.strip():
                use = given.value.strip()
            else:
                hint = f"write the name of a plugin, or leave it out to mean {name!r}"
                what = "an empty text" if given.value == "" else given.kind
                self._error("0215", f"use is {what} where the name of a plugin belongs", given.mark, path, hint)
        config = node.get("config")
        if config is None or config.value is None:
            config = Node({}, node.keys.get("config", draft.mark))
        elif not is_mapping(config, f"{path}.config", self._issues):
            config = Node({}, config.mark)
        self._add(path, use, draft.mark, use_mark, config, here)

    def _agent(self, path: str, draft: Draft) -> None:
        """A row of an entry of `agents`, whose other keys are the definition."""
        node = draft.node
        for key in ("use", "config", "group"):
            if key in node.mapping():
                hint = "a row of plugins: can have `use: agent` and the definition as its config"
                if key == "config":
                    hint = "write its fields one level up"
                self._error(
                    "0218", f"an entry of agents is the definition itself and has no {key}", node.keys[key], path, hint
                )
        fields = {key: value for key, value in node.mapping().items() if key not in ROW_KEYS}
        config = Node(fields, node.mark, {key: mark for key, mark in node.keys.items() if key in fields})
        self._add(path, "agent", draft.mark, draft.mark, config, self._inherit(path, node, _Above()), agent=True)

    def _add(
        self, path: str, use: str, mark: Mark, use_mark: Mark, config: Node, here: _Above, *, agent: bool = False
    ) -> None:
        file = self._paths.get(use_mark.file) or os.path.abspath(use_mark.file)
        disabled, too = _condition(here.disabled)
        inject: dict[str, Mark] = {}
        for service, place in here.inject:
            inject.setdefault(service, place)
        self._rows[path] = Row(
            path=path,
            use=use,
            mark=mark,
            use_mark=use_mark,
            base=os.path.dirname(file),
            config=config,
            inject=tuple(inject.items()),
            isolate=here.isolate,
            intercept=here.intercept,
            optional=here.optional,
            disabled=disabled,
            disabled_too=too,
            agent=agent,
        )

    # -- keys

    def _unknown(self, path: str, draft: Draft) -> None:
        for key, member in draft.node.mapping().items():
            if key in ROW_KEYS:
                continue
            hint = nearest(key, ROW_KEYS)
            if hint is None:
                hint = f"a row has {', '.join(ROW_KEYS)}"
                if draft.children is None:
                    hint += "; fields of its plugin stand under config:"
            self._error("0214", f"a row has no key {key!r}", draft.node.keys.get(key, member.mark), path, hint)

    def _inherit(self, path: str, node: Node, above: _Above) -> _Above:
        """What holds for a row or group, given what its groups hand down."""
        return replace(
            above,
            isolate=above.isolate + self._isolate(path, node.get("isolate")),
            intercept=above.intercept + self._intercept(path, node.get("intercept")),
            inject=above.inject + self._inject(path, node.get("inject")),
            optional=self._optional(path, node.get("optional"), above.optional),
            disabled=above.disabled + self._disabled(path, node.get("disabled")),
        )

    def _isolate(self, path: str, node: Node | None) -> tuple[tuple[str, str | None, str], ...]:
        if node is None or node.value is None:
            return ()
        place = f"{path}.isolate"
        if not node.is_mapping:
            if not is_list(node, place, self._issues, "a list of services, or a mapping of services to realms,"):
                return ()
            services = dict(names(place, node, self._issues))
            return tuple((service, None, path) for service in services)
        found: list[tuple[str, str | None, str]] = []
        for service, realm in node.mapping().items():
            if realm.value is None or (isinstance(realm.value, str) and realm.value.strip()):
                found.append((service, realm.value, path))
            else:
                hint = "write a name to share the instance under it, or null for one of its own"
                what = "an empty text" if realm.value == "" else realm.kind
                self._error(
                    "0204", f"{place}.{service} is {what} where the name of a realm belongs", realm.mark, path, hint
                )
        return tuple(found)

    def _intercept(self, path: str, node: Node | None) -> tuple[tuple[str, Node], ...]:
        place = f"{path}.intercept"
        if node is None or node.value is None:
            return ()
        if not is_mapping(node, place, self._issues, "a mapping of services to settings"):
            return ()
        return tuple(
            (service, layer)
            for service, layer in node.mapping().items()
            if layer.value is not None and is_mapping(layer, f"{place}.{service}", self._issues)
        )

    def _inject(self, path: str, node: Node | None) -> tuple[tuple[str, Mark], ...]:
        place = f"{path}.inject"
        if node is None or node.value is None or not is_list(node, place, self._issues, "a list of services"):
            return ()
        return tuple(names(place, node, self._issues))

    def _optional(self, path: str, node: Node | None, above: bool) -> bool:
        if node is None or node.value is None:
            return above
        if isinstance(node.value, bool):
            return node.value
        self._error(
            "0215", f"optional is {node.kind} where true or false belongs", node.mark, path, "write true or false"
        )
        return above

    def _disabled(self, path: str, node: Node | None) -> tuple[Node, ...]:
        if node is None or node.value is None:
            return ()
        if isinstance(node.value, bool) or (isinstance(node.value, str) and "${" in node.value):
            return (node,)
        hint = "write true or false, or a reference such as ${env:NAME:-false}"
        self._error("0215", f"disabled is {node.kind} where true or false belongs", node.mark, path, hint)
        return ()

    def _error(self, code: str, message: str, mark: Mark, path: str, hint: str | None = None) -> None:
        self._issues.error(code, message, mark, row=path, hint=hint)


def _condition(disabled: tuple[Node, ...]) -> tuple[Node | None, tuple[Node, ...]]:
    """The node that decides whether a row is disabled, and those that decide as well; the innermost comes first."""
    certain = next((node for node in disabled if node.value is True), None)
    if certain is not None:
        return certain, ()
    open_ones = [node for node in reversed(disabled) if node.value is not False]
    if open_ones:
        return open_ones[0], tuple(open_ones[1:])
    return (disabled[-1] if disabled else None), ()
