"""Time as readers see it: epochs, views and leases.

Each fiber carries two integers on a private clock: `born` and `retired`. A reader has a view, and every table shows an
entry exactly when the view sees its owner. Views never copy anything; moving the integers of a hundred fibers in one
synchronous section changes what everybody sees, at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from .errors import LeaseEndedError

if TYPE_CHECKING:
    from .effects import Scope
    from .fiber import Fiber
    from .runtime import Kernel
    from .stage import Stage
    from .tables import Entry, Table

NEVER = 1 << 62
"""The epoch of what has not happened."""


class View(Protocol):
    """Which fibers a reader sees."""

    def sees(self, fiber: Fiber, /) -> bool: ...

    def anchor(self) -> tuple[int, Stage | None]:
        """What a lease of this view holds: an epoch, and the stage if it has none of its own yet."""


class Now:
    """The present: whatever is published and neither retired nor disposed of."""

    __slots__ = ("_kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def sees(self, fiber: Fiber) -> bool:
        return fiber.born <= self._kernel.epoch < fiber.retired

    def anchor(self) -> tuple[int, Stage | None]:
        return self._kernel.epoch, None


class Farewell:
    """The last epoch a fiber belonged to: its own view from its retirement on, also in its cleanup.

    Unlike a lease it still sees what an owner disposed of, for a consumer closes on what it was built on. A fiber that
    was still opening keeps seeing its own stage as well.
    """

    __slots__ = ("epoch", "stage")

    def __init__(self, epoch: int, stage: Stage | None = None) -> None:
        self.epoch = epoch
        self.stage = stage

    def sees(self, fiber: Fiber) -> bool:
        if fiber.born <= self.epoch < fiber.retired:
            return True
        return self.stage is not None and fiber.stage is self.stage and fiber.opened

    def anchor(self) -> tuple[int, Stage | None]:
        return self.epoch, None


class Lease:
    """A view frozen to one epoch, which keeps open what it sees until it is released.

    A fiber retired by a commit stays open while a lease of some `e` with `born <= e < retired` is held. What an owner
    disposes of is gone for leases too. A lease taken inside a stage sees the stage beside what there was when it was
    taken, and is of the stage's epoch once that is committed.
    """

    __slots__ = ("_cache", "_kernel", "epoch", "held", "since", "stage", "who")

    def __init__(self, kernel: Kernel, view: View, who: str) -> None:
        self._kernel = kernel
        self.who = who
        self.since = time.monotonic()
        self.held = True
        self._cache: dict[tuple[Table, Scope | None], tuple[int, tuple[Entry, ...]]] | None = None
        self.epoch: int
        self.stage: Stage | None
        if view is kernel.now:
            self.epoch, self.stage = kernel.epoch, None
        else:
            self.epoch, self.stage = view.anchor()
        if self.stage is not None:
            self.stage.leases[self] = None
        kernel.held[self.epoch] = kernel.held.get(self.epoch, 0) + 1
        kernel.leases[self] = None

    def sees(self, fiber: Fiber) -> bool:
        if self.stage is not None:
            if fiber.stage is self.stage:
                return fiber.opened and not fiber.hidden
            if self.stage.retires(fiber):
                return False
        return fiber.born <= self.epoch < fiber.retired and not fiber.hidden

    def anchor(self) -> tuple[int, Stage | None]:
        self.check()
        return self.epoch, self.stage

    def remember(self, table: Table, scope: Scope | None) -> tuple[Entry, ...]:
        """What this lease sees in a table that has changed since, kept until it changes again."""
        if self._cache is None:
            self._cache = {}
        known = self._cache.get((table, scope))
        if known is not None and known[0] == table.version:
            return known[1]
        found = table.select(self, scope)
        self._cache[table, scope] = (table.version, found)
        return found

    def settle(self, epoch: int) -> None:
        """The stage this lease was taken in became `epoch`."""
        before, self.epoch, self.stage = self.epoch, epoch, None
        self._kernel.held[epoch] = self._kernel.held.get(epoch, 0) + 1
        self._let_go(before)

    def check(self) -> None:
        """Raise `LeaseEndedError` once the lease is released."""
        if not self.held:
            raise LeaseEndedError(f"the view leased by {self.who!r} has ended; read within its `with` block")

    def release(self) -> None:
        """Let go; what only this lease kept open may now close."""
        if not self.held:
            return
        self.held = False
        kernel = self._kernel
        del kernel.leases[self]
        if self.stage is not None:
            del self.stage.leases[self]
        self._let_go(self.epoch)

    def _let_go(self, epoch: int) -> None:
        kernel = self._kernel
        left = kernel.held[epoch] - 1
        if left:
            kernel.held[epoch] = left
            return
        del kernel.held[epoch]
        for fiber in list(kernel.draining):
            if not kernel.closing.is_leased(fiber):
                fiber.wake()
