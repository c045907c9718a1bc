"""Typed names. A key is a value, equal by name, so it survives a reload of the module that declares it.

Frozen without slots on purpose: `ServiceKey[Llm]("llm")` fails on Python 3.11 and 3.12 for a class that is frozen,
slotted and generic at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .events import Emit

T = TypeVar("T")


@dataclass(frozen=True)
class ServiceKey(Generic[T]):
    """The name of a service of type `T`: `LLM = ServiceKey[Llm]("llm")`, read as `ctx[LLM]`."""

    name: str

    @property
    def isolated_with(self) -> str:
        """The name under which its realm is known: its own."""
        return self.name


@dataclass(frozen=True)
class RegistryKey(Generic[T]):
    """The name of a registry whose entries are of type `T`.

    `changed`, if given, is emitted with a `RegistryChange` once after each commit, and after each change at run time,
    that altered what is visible. `isolate` separates a registry together with the service `of` which it is, by default
    the one of the same name.
    """

    name: str
    changed: Emit[Any] | None = field(default=None, compare=False)
    of: ServiceKey[Any] | None = field(default=None, compare=False, kw_only=True)

    @property
    def isolated_with(self) -> str:
        """The name of the service whose realm it shares."""
        return self.name if self.of is None else self.of.name


@dataclass(frozen=True)
class SharedKey(Generic[T]):
    """The name of state that outlives instances, with everything opening it depends on.

    `SharedKey[Database]("sqlite", path)` is another keeper for another path.
    """

    name: str
    depends_on: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        parts = [part for part in map(str, self.depends_on) if part]
        return f"{self.name}({', '.join(parts)})" if parts else self.name


@dataclass(frozen=True)
class Realm:
    """Which instance of an isolated service is meant: equal by its given name, or by (row path, key).

    A private realm has the path of the row or group that asked for it; a named one has none and is shared by everyone
    who says the name.
    """

    name: str
    path: str | None = None

    def __str__(self) -> str:
        return self.name if self.path is None else f"{self.path}#{self.name}"


DEFAULT_REALM = Realm("")
"""Where every service lives that nobody isolated."""
