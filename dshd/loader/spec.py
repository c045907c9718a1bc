"""Specs: rows resolved to plugins with validated configs, ready to be compared and mounted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from dshd.kernel.keys import Realm, ServiceKey
from dshd.kernel.plugin import Plugin

from .issues import Issues
from .row import Row, Tree


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One row as it would be mounted. Two rows are the same if their paths and digests are."""

    path: str
    row: Row
    plugin: Plugin[Any]
    """The plugin, with the row's own `inject` added to what it needs."""
    config: BaseModel
    realms: Mapping[str, Realm]
    """Service name → realm, for every service the row or its groups isolate."""
    layers: tuple[tuple[str, Mapping[str, Any]], ...]
    """Intercept layers, the outermost first."""
    optional: bool
    digest: str
    """Hash of the canonical spec: comments, order, quoting and the split into files never count."""
    canonical: Mapping[str, Any] = field(repr=False)
    """What was hashed, for saying which fields changed; secrets are keyed hashes or names in it."""
    code: str | None = None
    """The plugin's source file, or directory of a package, when it is known."""

    def needs(self) -> list[tuple[ServiceKey[Any], Realm]]:
        return [(key, self.realm(key)) for key in self.plugin.inject]

    def offers(self) -> list[tuple[ServiceKey[Any], Realm]]:
        return [(key, self.realm(key)) for key in self.plugin.provides]

    def realm(self, key: ServiceKey[Any]) -> Realm:
        return self.realms.get(key.name, Realm(""))


@dataclass(frozen=True, kw_only=True)
class Desired:
    """The outcome of the pure steps on one set of inputs: what should run, or why it may not."""

    tree: Tree
    specs: Mapping[str, Spec]
    """Enabled rows by path, in order of their paths."""
    daemon: Mapping[str, Any]
    """The `daemon:` section, validated."""
    settings: Mapping[str, Any]
    templates: Mapping[str, Any]
    digest: str
    """Hash over all specs, settings and templates; not over `daemon:`, which no reload applies."""
    issues: Issues
    referenced: tuple[str, ...] = ()
    """Files named by `${file:…}`, absolute; credentials' files as well."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that were read."""
    credentials: tuple[str, ...] = ()
    """Names of the credentials that are referenced."""

    @property
    def ok(self) -> bool:
        return not self.issues.errors
