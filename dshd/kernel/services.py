"""Who provides what: one slot a key and realm, with its providers of every generation and its consumers.

A view sees at most one provider of a slot. Consumers wait by key: a change wakes those whose key appeared and those
who lost their last provider, nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .epochs import Farewell, Lease, View
from .errors import ServiceConflictError
from .keys import Realm
from .states import FiberState
from .tables import Entry, Table

if TYPE_CHECKING:
    from .context import Context
    from .fiber import Fiber
    from .runtime import Kernel


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """Payload of `internal/service`: a binding appeared, vanished or was replaced."""

    key: str
    realm: Realm
    provider: Fiber | None
    previous: Fiber | None


class ServiceSlot(Table):
    """One service in one realm. The value of an entry makes the face a consumer gets."""

    __slots__ = ("consumers", "known", "pinned", "realm")

    def __init__(self, kernel: Kernel, name: str, realm: Realm) -> None:
        super().__init__(kernel, name)
        self.realm = realm
        self.consumers: dict[Fiber, None] = {}
        self.pinned: dict[Fiber, None] = {}
        self.known: Fiber | None = None  # the provider last told of by internal/service

    def find(self, view: View) -> Entry | None:
        """The provider that `view` sees."""
        if view is self.kernel.now:
            seen = self.present()
            return seen[0] if seen else None
        if isinstance(view, Lease):
            view.check()
        bucket = self._buckets.get(None)
        if bucket:
            farewell = isinstance(view, Farewell)
            for entry in bucket:
                if view.sees(entry.owner) and (farewell or not entry.withdrawn):
                    return entry
        return None

    def admit(self, challenger: Fiber) -> None:
        """Raise `ServiceConflictError` if somebody would see `challenger` beside another provider."""
        for entry in self._buckets.get(None, ()):
            if not entry.withdrawn and entry.owner.coexists(challenger):
                raise ServiceConflictError(self.name, entry.owner.path, challenger.path)

    def changed(self, entry: Entry) -> None:
        super().changed(entry)
        self.kernel.services.version += 1

    def announce(self) -> None:
        self.kernel.note_change(self)

    def taken_by(self, provider: Fiber) -> None:
        """A commit has made `provider` the one."""
        if self.kernel.service_listeners.size:
            self.announce()
        else:
            self.known = provider

    def touch(self, epoch: int) -> None:
        super().touch(epoch)
        self.kernel.services.version += 1

    def retire(self) -> None:
        if not self.consumers:
            self.kernel.services.drop(self)


class ServiceTable:
    """All slots. `version` changes whenever any reader's answer might, so that `ctx[KEY]` may keep what it found."""

    __slots__ = ("_kernel", "_slots", "version")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._slots: dict[tuple[str, Realm], ServiceSlot] = {}
        self.version = 1

    def slot(self, name: str, realm: Realm) -> ServiceSlot:
        """The slot, made if it is not there."""
        slot = self._slots.get((name, realm))
        if slot is None:
            slot = self._slots[name, realm] = ServiceSlot(self._kernel, name, realm)
        return slot

    def find(self, name: str, realm: Realm, view: View) -> Entry | None:
        """The provider that `view` sees, if any."""
        if isinstance(view, Lease):
            view.check()
        slot = self._slots.get((name, realm))
        return None if slot is None else slot.find(view)

    def slots(self) -> list[ServiceSlot]:
        return list(self._slots.values())

    def drop(self, slot: ServiceSlot) -> None:
        """Forget a slot nobody provides or waits for; one told of keeps its place until that is told too."""
        place = slot.name, slot.realm
        if not slot.size and not slot.consumers and slot.known is None and self._slots.get(place) is slot:
            del self._slots[place]


class Binding(Entry):
    """The entry of a provider. Withdrawing it alone lets its consumers close first."""

    __slots__ = ()
    table: ServiceSlot
    waits_elsewhere = True

    def __init__(self, owner: Fiber, slot: ServiceSlot, make: Callable[[Context], Any]) -> None:
        slot.admit(owner)
        owner.provided[slot] = self
        super().__init__(owner, f"provide {slot.name}", slot, make, slot.name)
        if owner.visible:
            owner.kernel.wake_consumers(slot)

    def undo(self) -> Any:
        owner, slot, kernel = self.owner, self.table, self.owner.kernel
        if owner.state is not FiberState.UNLOADING:
            self.withdrawn = True
            slot.changed(self)
            kernel.closing.lose(slot)
            kernel.tell_changes()
            closing = kernel.closing.closing_upon(owner, slot, within=True)
            if closing:
                return self._remove_after(closing)
        self._remove()
        return None

    def sever(self) -> bool:
        if self.leave_books():
            self._remove()
        return True

    def _remove(self) -> None:
        if self.owner.provided.get(self.table) is self:  # it may have been offered again
            del self.owner.provided[self.table]
        self.table.remove(self)

    async def _remove_after(self, closing: list[Fiber]) -> None:
        for consumer, life in [(consumer, consumer.activation) for consumer in closing]:
            await self.owner.kernel.closing.wait_closed(consumer, life)  # it may be open again by then
        self._remove()
