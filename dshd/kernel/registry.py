"""Registries: named contributions of many plugins to one thing, such as the tools on offer.

A registry belongs to the kernel, not to the plugin that gives it meaning: it is opened by a typed key and the realm of
whoever asks, lives as long as anybody has an entry in it, and each entry belongs to the fiber that added it. A provider
is behaviour over a registry; its successor finds the same entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .effects import Composite
from .errors import EntryConflictError, EntryGoneError
from .keys import Realm, RegistryKey
from .tables import FIRST, Entry, RegistryTable

if TYPE_CHECKING:
    from .context import Context
    from .effects import Effect, Scope
    from .fiber import Fiber

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """Payload of a registry's change notice: what is visible under this key and realm is not what it was."""

    key: str
    realm: Realm


class RegistryEntry(Entry, Generic[T]):
    """One named entry. `set(value)` swaps what it stands for in one step, visible to all, leases included."""

    __slots__ = ()
    table: RegistryTable

    def set(self, value: T) -> None:
        """Put another value in the entry's place.

        Raises `EntryGoneError` once the entry is gone, `InactiveFiberError` once its plugin is.
        """
        self.owner.check(self.label)
        if not self.live:
            raise EntryGoneError(f"{self.table.name} {self.name!r} of {self.owner.path!r} is no longer registered")
        self.value = value
        self.table.changed(self)
        self.owner.kernel.tell_changes()


class EntryGroup(Composite, Generic[T]):
    """Entries of one owner that come and go together: `replace` swaps the whole set in one step, which may be empty.

    They stand where the group was registered, in the order of the mapping, whatever sets came before.
    """

    __slots__ = ("_number", "_priority", "_table")

    def __init__(
        self,
        owner: Fiber,
        label: str,
        table: RegistryTable,
        priority: int,
        scope: Scope | None,
        values: Mapping[str, T],
    ) -> None:
        self._table = table
        self._priority = priority
        super().__init__(owner, label, (), scope)
        owner.contributions += 1
        self._number = owner.contributions
        self._swap(values)

    def replace(self, values: Mapping[str, T]) -> None:
        """Make the entries of this group exactly `values`, in this order, for every view of their owner at once.

        Raises `EntryConflictError`, having changed nothing, when somebody would see another entry of one of the names;
        `EntryGoneError` once the group is gone, `InactiveFiberError` once its plugin is.
        """
        values = dict(values)  # read once, and first: the caller's own mapping may do anything meanwhile
        self.owner.check(self.label, self.scope)
        if not self.live:
            raise EntryGoneError(f"{self.label!r} of {self.owner.path!r} is no longer registered")
        if self._table.dropped:
            self._table = self.owner.kernel.registry(self._table.key, self._table.realm)
        for name in values:
            check_free(self._table, name, self.owner, self.scope, group=self)
        self._swap(values)

    def _swap(self, values: Mapping[str, T]) -> None:
        table, owner = self._table, self.owner
        with owner.kernel.one_change():
            mine = {part.name: part for part in self._parts if isinstance(part, RegistryEntry)}
            kept: dict[Effect, None] = {}
            for place, (name, value) in enumerate(values.items()):
                entry = mine.pop(name, None)
                if entry is None:
                    label = f"{table.name} {name}"
                    entry = RegistryEntry(owner, label, table, value, name, self._priority, self.scope)
                    entry.number, entry.place = self._number, place
                    self.take(entry)
                elif entry.value is not value or entry.place != place:
                    entry.value, entry.place = value, place
                    table.changed(entry)
                kept[entry] = None
            for entry in mine.values():
                entry.release()
            self._parts = kept

    def take(self, part: Effect) -> None:
        super().take(part)
        if self.scope is not None:  # which ends the group, and with it the entries as one
            self.scope._effects.pop(part, None)

    def undo(self) -> None:
        with self.owner.kernel.one_change():
            for part in reversed(list(self._parts)):
                part.release()


def check_free(
    table: RegistryTable, name: str, owner: Fiber, scope: Scope | None, group: EntryGroup[Any] | None = None
) -> None:
    """Raise `EntryConflictError` if somebody would see another entry of this name beside one of `owner`."""
    for rival in table.rivals(scope, name):
        if rival.owner.coexists(owner) and (group is None or rival.container is not group):
            raise EntryConflictError(table.key.name, name, rival.owner.path, owner.path)


class Registry(Generic[T]):
    """One registry as one context sees it: a light face, asked for at each use.

    Reads go through the context's view and scope; entries of the scope come before global ones of the same name. What
    is added belongs to the context's fiber. Iteration is over names, ordered by priority, row path and order in the
    body.
    """

    __slots__ = ("_context", "_table", "key")

    def __init__(self, context: Context, key: RegistryKey[T]) -> None:
        self._context = context
        self.key = key
        self._table: RegistryTable = context.kernel.registry(key, context.realm(key))

    def _live(self) -> RegistryTable:
        if self._table.dropped:
            self._table = self._context.kernel.registry(self.key, self._context.realm(self.key))
        return self._table

    def _visible(self) -> dict[str, Entry]:
        table = self._live()
        context = self._context
        return table.by_name(table.read(context.view, context.scope))

    def add(self, name: str, value: T, *, priority: int = 0, prepend: bool = False) -> RegistryEntry[T]:
        """Register `value` under `name` for the life of the fiber, or of the context's scope if that ends first.

        Raises `EntryConflictError` when somebody would see another entry of this name, and `InactiveFiberError` when
        the fiber cannot register.
        """
        context = self._context
        label = f"{self.key.name} {name}"
        owner = context.owner
        owner.check(label, context.scope)
        table = self._live()
        check_free(table, name, owner, context.scope)
        return RegistryEntry(owner, label, table, value, name, FIRST if prepend else priority, context.scope)

    def add_group(self, label: str, values: Mapping[str, T], *, priority: int = 0) -> EntryGroup[T]:
        """Register several entries as one, to be replaced and taken back together. Raises what `add` raises, whole."""
        context = self._context
        values = dict(values)
        context.owner.check(label, context.scope)
        table = self._live()
        for name in values:
            check_free(table, name, context.owner, context.scope)
        return EntryGroup(context.owner, label, table, priority, context.scope, values)

    def binding(self) -> list[T]:
        """For policy: the values visible now, and of those this context leased the ones that have no successor now.

        One that was added binds at once, one that was removed still covers what was leased before. In order; of several
        under one name all.
        """
        context = self._context
        return [entry.value for entry in self._live().read_policy(context.view, context.scope)]

    def get(self, name: str) -> T | None:
        """The value visible under `name`, or `None`."""
        entry = self._visible().get(name)
        return None if entry is None else entry.value

    def __getitem__(self, name: str) -> T:
        try:
            value: T = self._visible()[name].value
        except KeyError:
            raise KeyError(f"no {self.key.name} {name!r}") from None
        return value

    def owner(self, name: str) -> str | None:
        """The row path of who registered `name`."""
        entry = self._visible().get(name)
        return None if entry is None else entry.owner.path

    def keys(self) -> list[str]:
        return list(self._visible())

    def items(self) -> Iterator[tuple[str, T]]:
        return iter([(name, entry.value) for name, entry in self._visible().items()])

    def values(self) -> Iterator[T]:
        return iter([entry.value for entry in self._visible().values()])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._visible()))

    def __contains__(self, name: object) -> bool:
        return name in self._visible()

    def __len__(self) -> int:
        return len(self._visible())

    def __repr__(self) -> str:
        return f"<registry {self.key.name}: {', '.join(map(str, self._visible()))}>"


def change_of(table: RegistryTable) -> tuple[Any, RegistryChange] | None:
    """The notice owed for a changed registry, with its event, if its key declares one."""
    if table.key.changed is None:
        return None
    return table.key.changed, RegistryChange(table.key.name, table.realm)
