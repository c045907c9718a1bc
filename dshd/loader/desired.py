"""What should run, by a composed tree: references put in place, plugins found, configs validated, everything reported.

Pure but for what it reads through its arguments, and for the imports of plugins. A row that is wrong in some way keeps
no other from being looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from dshd.kernel.keys import ServiceKey
from dshd.kernel.plugin import Plugin

from .canonical import Canon, Path, digest
from .credentials import Credentials
from .expand import Expanded, Expander, dotted
from .files import Files
from .imports import ResolveError
from .issues import Issues, Mark
from .node import Node
from .resolve import Found, Resolver
from .row import Row, Tree
from .rules import RowView, Ruled, apply_rules
from .services import Around, Graph, Wired, realms_of
from .spec import Desired, Spec
from .validate import Check, flag, no_credentials

_EMPTY = Node({}, Mark("", 0, 0))


@dataclass(slots=True)
class Memo:
    """Specs of the last evaluation, to be used again for rows that have not changed. Only makes things faster."""

    specs: dict[str, tuple[Found, bytes, Spec]] = field(default_factory=dict)


def desire(
    tree: Tree,
    *,
    files: Files,
    environ: Mapping[str, str],
    credentials: Credentials | None,
    key: bytes,
    provided: frozenset[str],
    daemon_model: type[BaseModel] | None,
    plugins: Resolver,
    issues: Issues,
    memo: Memo | None = None,
    running: Mapping[str, Spec] | None = None,
) -> Desired:
    """The desired state that a tree describes. Blocks and imports plugins: call it in a worker thread.

    `credentials` is `None` where their presence must not be checked; `key` is that of the hashes which stand for
    secrets; `provided` are the services of the process itself; `running` only helps to say what a removal breaks.
    """
    work = _Work(tree, Expander(files, environ, credentials, issues), credentials, key, plugins, issues, memo or Memo())
    work.rows()
    settings = work.section(tree.settings, "settings")
    templates = {name: work.section(node, f"templates.{name}") for name, node in tree.templates.items()}
    work.graph(provided, running or {})
    work.rules({name: node.plain() for name, node in templates.items()}, settings.plain())
    daemon = work.daemon(daemon_model)
    canon = Canon(key)
    whole = {
        "rows": {path: spec.digest for path, spec in work.specs.items()},
        "settings": canon.node(settings),
        "templates": {name: canon.node(node) for name, node in templates.items()},
    }
    issues.via(tree.via)
    return Desired(
        tree=tree,
        specs=dict(sorted(work.specs.items())),
        daemon=daemon,
        settings=settings.plain(),
        templates={name: node.plain() for name, node in templates.items()},
        digest=digest(whole),
        issues=issues,
        referenced=work.referenced(),
        environment=tuple(sorted(work.expander.environment)),
        credentials=tuple(sorted(work.expander.credentials)),
    )


class _Work:
    """One evaluation."""

    def __init__(
        self,
        tree: Tree,
        expander: Expander,
        credentials: Credentials | None,
        key: bytes,
        plugins: Resolver,
        issues: Issues,
        memo: Memo,
    ) -> None:
        self.expander = expander
        self.specs: dict[str, Spec] = {}
        self._tree = tree
        self._credentials = credentials
        self._key = key
        self._plugins = plugins
        self._issues = issues
        self._memo = memo
        self._resolved: dict[tuple[str, str], Found | ResolveError] = {}
        self._found: dict[str, Found] = {}
        self._configs: dict[str, Node] = {}
        self._disabled: list[Row] = []
        self._extended: dict[tuple[int, tuple[str, ...]], Plugin[Any]] = {}

    # -- rows

    def rows(self) -> None:
        kept: dict[str, tuple[Found, bytes, Spec]] = {}
        for path, row in self._tree.rows.items():
            if self._is_disabled(row):
                self._disabled.append(row)
                continue
            found = self._resolve(row)
            before = len(self._issues.errors)
            config, layers = self._expanded(row)
            self._configs[path] = config
            if found is None:
                continue
            self._found[path] = found
            plain = config is row.config and all(new is old[1] for new, old in zip(layers, row.intercept, strict=True))
            spec = self._remembered(row, found) if plain else None
            if spec is None:
                spec = self._spec(row, found, config, layers)
            if spec is None or len(self._issues.errors) != before:
                continue
            self.specs[path] = spec
            if plain:
                kept[path] = (found, self._key, spec)
        self._memo.specs = kept

    def _is_disabled(self, row: Row) -> bool:
        """Whether a row is disabled. One that is need not be valid, nor its plugin be installed."""
        answers = [
            flag(
                self.expander.expand(node, row.path, ("disabled",)), issues=self._issues, row=row.path, name="disabled"
            )
            for node in (row.disabled, *row.disabled_too)
            if node is not None
        ]
        return any(answers)

    def _resolve(self, row: Row) -> Found | None:
        key = (row.use, row.base)
        answer = self._resolved.get(key)
        if answer is None:
            try:
                answer = self._plugins.resolve(row.use, row.base)
            except ResolveError as exc:
                answer = exc
            self._resolved[key] = answer
        if isinstance(answer, Found):
            return answer
        self._issues.error(answer.code, str(answer), row.use_mark, row=row.path, hint=answer.hint)
        return None

    def _expanded(self, row: Row) -> tuple[Node, list[Node]]:
        """The config and the intercept layers of a row with their references put in place."""
        config = self.expander.expand(row.config, row.path, () if row.agent else ("config",))
        layers = [self.expander.expand(layer, row.path, ("intercept", name)) for name, layer in row.intercept]
        for (name, before), layer in zip(row.intercept, layers, strict=True):
            if layer is not before:
                no_credentials(layer, f"intercept.{name}", issues=self._issues, row=row.path)
        if config is not row.config:
            self._check_credentials(row, config)
        return config, layers

    def _check_credentials(self, row: Row, config: Node) -> None:
        if self._credentials is None:
            return
        tell = self._issues.warn if row.optional else self._issues.error
        for path, leaf in config.leaves():
            if isinstance(leaf, Expanded) and leaf.handle is not None:
                for name in leaf.handle.names:
                    wrong = self._credentials.check(name)
                    if wrong is not None:
                        here = dotted(_inside(row, path))
                        hint = "a file, a variable or a line of credentials.yaml may hold it; see docs/configuration.md"
                        tell("0306", f"{here}: {wrong}", leaf.mark, row=row.path, hint=hint)

    def _spec(self, row: Row, found: Found, config: Node, layers: list[Node]) -> Spec | None:
        check = Check(
            config,
            expander=self.expander,
            key=self._key,
            issues=self._issues,
            row=row.path,
            prefix="" if row.agent else "config",
            mark=row.mark,
        )
        valid = check.by(found.plugin.config)
        if valid is None:
            return None
        realms = realms_of(row)
        canon = Canon(self._key)
        canonical = {
            "plugin": found.plugin.name,
            "origin": found.origin,
            "code": found.version,
            "config": valid.canonical,
            "isolate": {name: [realm.name, realm.path] for name, realm in realms.items()},
            "intercept": [[name, canon.node(layer)] for (name, _), layer in zip(row.intercept, layers, strict=True)],
            "inject": sorted(name for name, _ in row.inject),
            "optional": row.optional,
        }
        return Spec(
            path=row.path,
            row=row,
            plugin=self._plugin(row, found),
            config=valid.config,
            realms=realms,
            layers=tuple((name, layer.plain()) for (name, _), layer in zip(row.intercept, layers, strict=True)),
            optional=row.optional,
            digest=digest(canonical),
            canonical=canonical,
            code=found.code,
        )

    def _plugin(self, row: Row, found: Found) -> Plugin[Any]:
        """The plugin, which also waits for what the row injects."""
        names = tuple(name for name, _ in row.inject)
        plugin = found.plugin
        own = {key.name for key in plugin.inject}
        if not set(names) - own:
            return plugin
        known = self._extended.get((id(plugin), names))
        if known is None:
            more = tuple(ServiceKey[Any](name) for name in names if name not in own)
            known = replace(plugin, inject=plugin.inject + more)
            self._extended[id(plugin), names] = known
        return known

    def _remembered(self, row: Row, found: Found) -> Spec | None:
        """The spec of the last evaluation, if nothing about the row has changed but where it stands in its file."""
        known = self._memo.specs.get(row.path)
        if known is None or known[0] is not found or known[1] != self._key:
            return None
        spec = known[2]
        if row is spec.row or row == spec.row:
            return spec
        return Spec(**{**vars(spec), "row": row}) if _alike(row, spec.row) else None

    # -- between rows

    def graph(self, provided: frozenset[str], running: Mapping[str, Spec]) -> None:
        wired = [self._wired(row, found) for row, found in self._enabled()]
        unresolved = [path for path in self._configs if path not in self._found]
        running_slots = {path: [(key.name, realm) for key, realm in spec.offers()] for path, spec in running.items()}
        around = Around(
            disabled=self._wired_disabled,
            unresolved=unresolved,
            running=running_slots,
            installed=self._plugins.names,
        )
        Graph(wired, provided, self._issues, around).check()

    def _enabled(self) -> Iterable[tuple[Row, Found]]:
        return ((self._tree.rows[path], found) for path, found in self._found.items())

    def _wired(self, row: Row, found: Found) -> Wired:
        return Wired(row=row, plugin=self._plugin(row, found), realms=realms_of(row))

    def _wired_disabled(self) -> list[Wired]:
        """The disabled rows whose plugin is there."""
        wired = []
        for row in self._disabled:
            try:
                wired.append(self._wired(row, self._plugins.resolve(row.use, row.base)))
            except ResolveError:
                continue
        return wired

    def rules(self, templates: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        ruled = [
            Ruled(row=row, node=self._configs[row.path], prefix=_prefix(row), rule=rule, code=found.code)
            for row, found in self._enabled()
            if row.path in self.specs and (rule := getattr(found.plugin, "validate", None)) is not None
        ]
        if ruled:
            views = {path: self._view(self._tree.rows[path]) for path in self._configs}
            apply_rules(ruled, views, templates=templates, settings=settings, issues=self._issues)

    def _view(self, row: Row) -> RowView:
        found, spec = self._found.get(row.path), self.specs.get(row.path)
        return RowView(
            path=row.path,
            plugin=None if found is None else found.plugin.name,
            config=None if spec is None else spec.config,
            agent=row.agent,
            provides=() if found is None else tuple(key.name for key in found.plugin.provides),
            intercept=() if spec is None else spec.layers,
            source=row,
        )

    # -- sections that are data

    def section(self, node: Node | None, name: str) -> Node:
        """A section that no model validates, with its references put in place."""
        if node is None or not node.is_mapping:
            return _EMPTY
        expanded = self.expander.expand(node, name, (name,))
        if expanded is not node:
            no_credentials(expanded, name, issues=self._issues, row=name)
        return expanded

    def daemon(self, model: type[BaseModel] | None) -> Mapping[str, Any]:
        """The fields that `daemon:` sets, validated."""
        node = self._tree.daemon
        if node is None or not node.is_mapping:
            return {}
        expanded = self.expander.expand(node, "daemon", ("daemon",))
        if model is None:
            no_credentials(expanded, "daemon", issues=self._issues, row="daemon")
            return dict(expanded.plain())
        check = Check(
            expanded,
            expander=self.expander,
            key=self._key,
            issues=self._issues,
            row="daemon",
            prefix="daemon",
            mark=node.mark,
        )
        valid = check.by(model)
        return {} if valid is None else {name: getattr(valid.config, name) for name in valid.config.model_fields_set}

    def referenced(self) -> tuple[str, ...]:
        """The files that references and credentials name, existing or not."""
        files = dict.fromkeys(self.expander.referenced)
        if self._credentials is not None:
            for name in self.expander.credentials:
                files.update(dict.fromkeys(map(str, self._credentials.files(name))))
        return tuple(sorted(files))


def _prefix(row: Row) -> str:
    return "" if row.agent else "config"


def _inside(row: Row, path: Path) -> Path:
    """A path in the config of a row, from the row."""
    return path if row.agent else ("config", *path)


def _alike(row: Row, old: Row) -> bool:
    """Whether two rows say the same, wherever in the same files they say it."""
    return (
        (row.use, row.base, row.optional, row.agent, row.isolate)
        == (old.use, old.base, old.optional, old.agent, old.isolate)
        and [name for name, _ in row.inject] == [name for name, _ in old.inject]
        and [name for name, _ in row.intercept] == [name for name, _ in old.intercept]
        and _same(row.config, old.config)
        and all(_same(new[1], before[1]) for new, before in zip(row.intercept, old.intercept, strict=True))
    )


def _same(new: Node, old: Node) -> bool:
    if new is old:
        return True
    a, b = new.value, old.value
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b and new.mark.file == old.mark.file
