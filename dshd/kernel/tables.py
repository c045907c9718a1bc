"""Tables of owned entries: the one structure behind services, registries and listeners.

A table holds the entries of every generation at once and shows a reader those whose owner the reader's view sees. What
the present sees is cached as one tuple per scope and dropped only by fibers that own an entry here; a lease reuses that
tuple while no fiber with entries here was published or retired since the lease was taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .effects import Effect, Scope
from .epochs import NEVER, Lease, View
from .paths import Order

if TYPE_CHECKING:
    from .fiber import Fiber
    from .keys import Realm, RegistryKey
    from .runtime import Kernel

FIRST = -(1 << 30)
"""The priority of what was registered with `prepend=True`."""


class Entry(Effect):
    """A contribution to a table: a listener, a registered value, a provided service.

    `priority` (lower is earlier), the owner's row path, `number` (its order in the body) and `place` (within a group)
    put it in order among the others.
    """

    __slots__ = ("name", "number", "place", "priority", "table", "value", "withdrawn")

    def __init__(
        self,
        owner: Fiber,
        label: str,
        table: Table,
        value: Any,
        name: str = "",
        priority: int = 0,
        scope: Scope | None = None,
    ) -> None:
        self.table = table
        self.value = value
        self.name = name
        self.priority = priority
        self.withdrawn = False
        self.place = 0
        owner.contributions += 1
        self.number = owner.contributions
        super().__init__(owner, label, scope)
        table.add(self)
        owner.kernel.tell_changes()

    def undo(self) -> Any:
        self.table.remove(self)
        self.owner.kernel.tell_changes()

    def sever(self) -> bool:
        if self.leave_books():
            self.table.remove(self)
        return True

    def order(self) -> tuple[int, Order, int, int]:
        return (self.priority, self.owner.order, self.number, self.place)

    @property
    def culprit(self) -> str:
        """The owner and the function, for messages about a listener."""
        code = getattr(self.value, "__code__", None)
        place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        return f"{getattr(self.value, '__qualname__', self.value)!r} of {self.owner.path!r}{place}"


class Table:
    """Entries of one event, one registry or one service slot, by scope.

    `now` is what the present sees without a scope, or `None` when that has to be worked out again.
    """

    __slots__ = ("_buckets", "_scoped", "changed_at", "kernel", "name", "now", "size", "version")

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self._buckets: dict[Scope | None, dict[Entry, None]] = {}
        self.now: tuple[Entry, ...] | None = ()
        self._scoped: dict[Scope, tuple[Entry, ...]] = {}
        self.changed_at = 0
        self.version = 0
        self.size = 0

    # -- writing

    def add(self, entry: Entry) -> None:
        self._buckets.setdefault(entry.scope, {})[entry] = None
        self.size += 1
        owner = entry.owner
        owner.tables[self] = owner.tables.get(self, 0) + 1
        if owner.retired != NEVER:  # a lease must not take the present for what it sees
            self.changed_at = max(self.changed_at, owner.retired)
        elif owner.visible:
            self.changed_at = max(self.changed_at, owner.born)
        self.changed(entry)

    def remove(self, entry: Entry) -> None:
        bucket = self._buckets[entry.scope]
        del bucket[entry]
        if not bucket:
            del self._buckets[entry.scope]
        self.size -= 1
        tables = entry.owner.tables
        if tables[self] == 1:
            del tables[self]
        else:
            tables[self] -= 1
        self.changed(entry)
        if not self.size:
            self._scoped.clear()
            self.retire()

    def changed(self, entry: Entry) -> None:
        """An entry came or went, or changed what it stands for, at run time: at once for every view of its owner."""
        self.version += 1
        if entry.owner.visible:
            self._drop(entry.scope)
            self.announce()

    def _drop(self, scope: Scope | None) -> None:
        if scope is None:
            self.now = None
            self._scoped.clear()
        else:
            self._scoped.pop(scope, None)

    def touch(self, epoch: int) -> None:
        """A fiber with entries here was published, retired or disposed of."""
        self.version += 1
        self.changed_at = epoch
        self._drop(None)

    def announce(self) -> None:
        """What is visible here has changed; told once the section that changed it is over."""

    def retire(self) -> None:
        """The last entry has left."""

    # -- reading

    def entries(self) -> list[Entry]:
        """Every entry of every generation and scope, in no particular order."""
        return [entry for bucket in self._buckets.values() for entry in bucket]

    def present(self, scope: Scope | None = None) -> tuple[Entry, ...]:
        """What is visible now, without a scope or with one, in order."""
        if scope is None or scope not in self._buckets:
            found = self.now
            if found is None:
                found = self.now = self.select(self.kernel.now, None)
            return found
        found = self._scoped.get(scope)
        if found is None:
            found = self._scoped[scope] = self.select(self.kernel.now, scope)
        return found

    def read(self, view: View, scope: Scope | None = None) -> tuple[Entry, ...]:
        """What `view` sees, without a scope or with one, in order."""
        if view is self.kernel.now:
            return self.present(scope)
        if isinstance(view, Lease):
            view.check()
            if view.stage is not None:
                return self.select(view, scope)
            if self.changed_at <= view.epoch:
                return self.present(scope)
            return view.remember(self, scope)
        return self.select(view, scope)

    def read_policy(self, view: View, scope: Scope | None = None) -> tuple[Entry, ...]:
        """Everything visible now, and of what `view` sees those whose row has no successor now.

        So a new guard binds at once, a removed one still covers what was leased, a replaced one is asked in its new
        form only.
        """
        present = self.present(scope)
        seen = self.read(view, scope)
        if seen is present:
            return present
        now = self.kernel.now
        extra = [e for e in seen if not now.sees(e.owner) and not self.kernel.has_successor(e.owner)]
        if not extra:
            return present
        return tuple(sorted([*present, *extra], key=Entry.order))

    def select(self, view: View, scope: Scope | None) -> tuple[Entry, ...]:
        sees = view.sees
        found = [e for e in self._buckets.get(None, ()) if not e.withdrawn and sees(e.owner)]
        if scope is not None:
            found += [e for e in self._buckets.get(scope, ()) if not e.withdrawn and sees(e.owner)]
        if len(found) > 1:
            found.sort(key=Entry.order)
        return tuple(found)


class RegistryTable(Table):
    """The entries of one registry key in one realm: named, and unique among those that somebody could see together."""

    __slots__ = ("_maps", "_names", "_owned", "dropped", "key", "realm")

    def __init__(self, kernel: Kernel, key: RegistryKey[Any], realm: Realm) -> None:
        super().__init__(kernel, key.name)
        self.key = key
        self.realm = realm
        self._names: dict[tuple[Scope | None, str], dict[Entry, None]] = {}
        self._owned: dict[Fiber, dict[Entry, None]] = {}
        self._maps: dict[int, tuple[tuple[Entry, ...], dict[str, Entry]]] = {}
        self.dropped = False

    def add(self, entry: Entry) -> None:
        self._names.setdefault((entry.scope, entry.name), {})[entry] = None
        self._owned.setdefault(entry.owner, {})[entry] = None
        super().add(entry)

    def remove(self, entry: Entry) -> None:
        same = self._names[entry.scope, entry.name]
        del same[entry]
        if not same:
            del self._names[entry.scope, entry.name]
        own = self._owned[entry.owner]
        del own[entry]
        if not own:
            del self._owned[entry.owner]
        super().remove(entry)

    def rivals(self, scope: Scope | None, name: str) -> tuple[Entry, ...]:
        """Every entry of this name and scope, of every generation."""
        return tuple(self._names.get((scope, name), ()))

    def rivals_of(self, fiber: Fiber) -> list[Entry]:
        """Entries of others under the names that `fiber` has here."""
        mine = self._owned.get(fiber, ())
        return [e for own in mine for e in self._names[own.scope, own.name] if e.owner is not fiber]

    def by_name(self, entries: tuple[Entry, ...]) -> dict[str, Entry]:
        """The entries by name, those of a scope before global ones of the same name. Not to be changed."""
        known = self._maps.get(id(entries))
        if known is not None and known[0] is entries:
            return known[1]
        winners: dict[str, Entry] = {}
        for entry in entries:
            if entry.scope is not None or entry.name not in winners:
                winners[entry.name] = entry
        named = {e.name: e for e in entries if winners[e.name] is e}
        if len(self._maps) > 64:
            self._maps.clear()
        self._maps[id(entries)] = (entries, named)
        return named

    def announce(self) -> None:
        if self.key.changed is not None:
            self.kernel.note_change(self)

    def touch(self, epoch: int) -> None:
        super().touch(epoch)
        self._maps.clear()
        self.announce()

    def retire(self) -> None:
        self._maps.clear()
        self.dropped = True
        self.kernel.registries.pop((self.key.name, self.realm), None)
