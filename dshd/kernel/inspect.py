"""A read-only picture of the live tree, for `status`, `tree` and people who ask why something does not run.

A picture is made of plain frozen values and holds on to nothing live.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .effects import Composite, Effect
from .errors import describe
from .states import FiberState
from .watchdog import place_of

if TYPE_CHECKING:
    from .context import Context
    from .fiber import Fiber
    from .runtime import Kernel
    from .services import ServiceSlot


@dataclass(frozen=True, kw_only=True)
class EffectPicture:
    """One contribution: what it is, how old it is in seconds, where it was made (in development), what it contains."""

    label: str
    age: float
    site: str | None
    parts: tuple[EffectPicture, ...]


@dataclass(frozen=True, kw_only=True)
class MissingService:
    """A service a fiber waits for: who declares to provide it, and the circle if its providers wait for this fiber."""

    key: str
    realm: str
    providers: tuple[str, ...]
    cycle: tuple[str, ...]
    """Alternating row paths and keys, from this fiber back to itself; empty when there is no circle."""

    def __str__(self) -> str:
        if self.cycle:
            return f"waits for {self.key!r} in a cycle: {' → '.join(self.cycle)}"
        who = " or ".join(map(repr, self.providers)) or "nobody that is mounted"
        where = f" in realm {self.realm}" if self.realm else ""
        return f"waits for service {self.key!r}{where}, which {who} could provide"


@dataclass(frozen=True, kw_only=True)
class FiberPicture:
    """One fiber. `at` is the place where its body waits while it opens, `reason` why it is in the state it is in."""

    path: str
    plugin: str
    state: FiberState
    reason: str | None
    error: str | None
    missing: tuple[MissingService, ...]
    at: str | None
    staged: bool
    draining: bool
    abandoned: bool
    crashes: int
    provides: tuple[str, ...]
    effects: tuple[EffectPicture, ...]
    children: tuple[FiberPicture, ...]


@dataclass(frozen=True, kw_only=True)
class LeasePicture:
    """Who holds an epoch open (`None` for a stage that has none yet), and for how many seconds."""

    who: str
    epoch: int | None
    age: float


@dataclass(frozen=True, kw_only=True)
class KeeperPicture:
    """A piece of shared state and the row paths of those who hold it."""

    key: str
    state: FiberState
    holders: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ServicePicture:
    """A service that is provided now, by whom, and for whom."""

    key: str
    realm: str
    provider: str
    consumers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The whole tree at one moment."""

    epoch: int
    fibers: tuple[FiberPicture, ...]
    services: tuple[ServicePicture, ...]
    leases: tuple[LeasePicture, ...]
    keepers: tuple[KeeperPicture, ...]
    abandoned: tuple[str, ...]
    listeners: int
    entries: int
    effects: int

    def find(self, path: str) -> FiberPicture | None:
        """The fiber at a row path; of several generations the one that is not draining."""
        found = [f for f in walk(self.fibers) if f.path == path]
        return min(found, key=lambda f: (f.draining or f.abandoned, f.staged), default=None)


def walk(fibers: tuple[FiberPicture, ...]) -> list[FiberPicture]:
    """Every fiber of a picture, parents first."""
    return [each for fiber in fibers for each in (fiber, *walk(fiber.children))]


def picture(ctx: Context) -> Picture:
    """What the kernel of `ctx` looks like now."""
    kernel, now = ctx.kernel, time.monotonic()
    rows = sorted((kid for kid in kernel.root.kids if kid.keeper is None), key=lambda fiber: fiber.order)
    return Picture(
        epoch=kernel.epoch,
        fibers=tuple(_fiber(kernel, fiber, now) for fiber in rows),
        services=tuple(filter(None, map(_service, _by_name(kernel.services.slots())))),
        leases=tuple(
            LeasePicture(who=lease.who, epoch=None if lease.stage is not None else lease.epoch, age=now - lease.since)
            for lease in kernel.leases
        ),
        keepers=tuple(
            KeeperPicture(key=str(key), state=keeper.fiber.state, holders=tuple(sorted(f.path for f in keeper.holders)))
            for key, keeper in sorted(kernel.keepers.items(), key=lambda item: str(item[0]))
        ),
        abandoned=tuple(kernel.abandoned.values()),
        listeners=sum(table.size for table in kernel.events.values()),
        entries=sum(table.size for table in kernel.registries.values()),
        effects=sum(len(fiber.effects) for fiber in kernel.fibers),
    )


def _by_name(slots: list[ServiceSlot]) -> list[ServiceSlot]:
    return sorted(slots, key=lambda slot: (slot.name, str(slot.realm)))


def _service(slot: ServiceSlot) -> ServicePicture | None:
    found = slot.present()
    if not found:
        return None
    return ServicePicture(
        key=slot.name,
        realm=str(slot.realm),
        provider=found[0].owner.path,
        consumers=tuple(sorted(consumer.path for consumer in slot.consumers)),
    )


def _fiber(kernel: Kernel, fiber: Fiber, now: float) -> FiberPicture:
    missing = tuple(_missing(kernel, fiber, slot) for slot in fiber.missing()) if _waits(fiber) else ()
    activation = fiber.activation
    return FiberPicture(
        path=fiber.path,
        plugin=fiber.plugin.name,
        state=fiber.state,
        reason="; ".join(map(str, missing)) or _reason(kernel, fiber),
        error=None if fiber.error is None else describe(fiber.error),
        missing=missing,
        at=None if activation is None else place_of(activation.waiting_in),
        staged=fiber.stage is not None,
        draining=fiber.draining,
        abandoned=fiber.abandoned,
        crashes=fiber.crashes,
        provides=tuple(slot.name for slot in fiber.provided),
        effects=tuple(_effect(effect, now) for effect in fiber.effects),
        children=tuple(_fiber(kernel, kid, now) for kid in sorted(fiber.kids, key=lambda kid: kid.order)),
    )


def _waits(fiber: Fiber) -> bool:
    return fiber.state is FiberState.PENDING and not fiber.ended


def _reason(kernel: Kernel, fiber: Fiber) -> str | None:
    if fiber.error is not None:
        crashes = "a crash" if fiber.crashes == 1 else f"{fiber.crashes} crashes"
        again = f"; re-opened with back-off after {crashes}" if fiber.crashes else ""
        return f"{describe(fiber.error)}{again}"
    if fiber.draining:
        holders = [
            lease.who for lease in kernel.leases if lease.stage is None and fiber.born <= lease.epoch < fiber.retired
        ]
        return f"draining, held by {', '.join(holders)}" if holders else "draining"
    if fiber.stage is not None and fiber.state is FiberState.ACTIVE:
        return "staged, not committed"
    return None


def _effect(effect: Effect, now: float) -> EffectPicture:
    parts = effect.parts if isinstance(effect, Composite) else ()
    return EffectPicture(
        label=effect.label, age=now - effect.since, site=effect.site, parts=tuple(_effect(part, now) for part in parts)
    )


def _missing(kernel: Kernel, fiber: Fiber, slot: ServiceSlot) -> MissingService:
    return MissingService(
        key=slot.name,
        realm=str(slot.realm),
        providers=tuple(dict.fromkeys(other.path for other in could_provide(kernel, slot))),
        cycle=tuple(_cycle(kernel, fiber, slot)),
    )


def could_provide(kernel: Kernel, slot: ServiceSlot) -> list[Fiber]:
    """Mounted fibers whose plugin declares to provide this service in this realm."""
    return [
        fiber
        for fiber in kernel.fibers
        if not fiber.ended
        and any(key.name == slot.name and fiber.ctx.realm(key) == slot.realm for key in fiber.plugin.provides)
    ]


def _cycle(kernel: Kernel, fiber: Fiber, slot: ServiceSlot) -> list[str]:
    """The shortest circle from `fiber` over pending providers of `slot` back to it, as paths and keys."""
    queue: list[tuple[ServiceSlot, list[str]]] = [(slot, [fiber.path, slot.name])]
    seen: set[Fiber] = set()
    while queue:
        wanted, path = queue.pop(0)
        for provider in could_provide(kernel, wanted):
            if provider is fiber:
                return [*path, fiber.path]
            if provider in seen or not _waits(provider):
                continue
            seen.add(provider)
            queue += [(missing, [*path, provider.path, missing.name]) for missing in provider.missing()]
    return []


def still_opening(ctx: Context, after: float = 0.0) -> list[FiberPicture]:
    """What has been opening for more than `after` seconds, with the place where it waits, and what is pending."""
    kernel, now = ctx.kernel, time.monotonic()
    found = [
        fiber
        for fiber in kernel.fibers
        if _waits(fiber)
        or (
            fiber.state is FiberState.LOADING and fiber.activation is not None and now - fiber.activation.since >= after
        )
    ]
    return [_fiber(kernel, fiber, now) for fiber in sorted(found, key=lambda fiber: fiber.order)]
