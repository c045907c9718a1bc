"""What runs, as the JSON of `/status`, `/tree` and `/rows`. Reads the kernel's picture and the reconciler."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio

from dshd.kernel.fiber import Fiber
from dshd.kernel.inspect import EffectPicture, FiberPicture, Picture, picture
from dshd.kernel.states import FiberState
from dshd.loader.imports import described

from .metrics import Moment
from .settings import LIVE, DaemonSettings

if TYPE_CHECKING:
    from .daemon import Daemon


def rows_of(daemon: Daemon) -> list[Fiber]:
    """The fibers that are rows, old instances and staged ones included."""
    return [fiber for fiber in daemon.root.kernel.root.kids if fiber.keeper is None]


def moment(daemon: Daemon) -> Moment:
    """What the metrics read. Cheaper than a picture: a scrape must not make the loop late."""
    kernel, now = daemon.root.kernel, anyio.current_time()
    draining = {fiber: daemon.retired_at(fiber) for fiber in kernel.draining if fiber.draining}
    return Moment(
        generation=daemon.generation,
        states=Counter(fiber.state for fiber in rows_of(daemon)),
        generations_live=len({fiber.retired for fiber in draining}) + bool(daemon.generation),
        effects=sum(len(fiber.effects) for fiber in kernel.fibers),
        drain_oldest=max((now - since for since in draining.values()), default=0.0),
    )


def status_json(daemon: Daemon) -> dict[str, Any]:
    """The body of `/api/v1/status`."""
    reconciler, shown = daemon.reconciler, picture(daemon.root)
    last = reconciler.last
    settings = daemon.settings
    return {
        "version": daemon.version,
        "pid": os.getpid(),
        "state": daemon.state,
        "started": daemon.since,
        "uptime_seconds": round(time.monotonic() - daemon.began, 3),
        "generation": daemon.generation,
        "digest": reconciler.digest,
        "degraded": reconciler.degraded,
        "confirm_by": reconciler.confirm_by,
        "pending_restart": list(reconciler.pending_restart),
        "config": list(daemon.places.config),
        "sources": sorted(reconciler.texts),
        "watch": reconciler.watch_mode,
        "state_dir": str(daemon.places.state),
        "socket": str(daemon.places.socket),
        "listeners": daemon.listening(),
        "settings": {name: getattr(settings, name) for name in DaemonSettings.model_fields},
        "settings_live": sorted(LIVE),
        "settings_from_environment": sorted(daemon.overrides),
        "last_reload": None
        if last is None
        else {
            "attempt": last.attempt,
            "trigger": last.trigger,
            "result": last.result.value,
            "time": last.time,
            "errors": sum(issue.severity == "error" for issue in last.issues),
            "warnings": sum(issue.severity == "warning" for issue in last.issues),
            "issues": [issue.as_json() for issue in last.issues],
        },
        "rows": {
            "total": len(reconciler.specs),
            "by_state": dict(Counter(fiber.state.value for fiber in shown.fibers)),
            "not_active": [_brief(daemon, fiber) for fiber in shown.fibers if not _fine(fiber)],
        },
        "draining": [_brief(daemon, fiber) for fiber in shown.fibers if fiber.draining],
        "leases": [
            {"who": lease.who, "age_seconds": round(lease.age, 3)}
            for lease in sorted(shown.leases, key=lambda lease: -lease.age)
        ],
        "keepers": [
            {"key": keeper.key, "state": keeper.state.value, "holders": list(keeper.holders)}
            for keeper in shown.keepers
        ],
        "abandoned": list(shown.abandoned),
        "effects": shown.effects,
    }


def rows_json(daemon: Daemon) -> list[dict[str, Any]]:
    """The body of `/api/v1/tree`: every row with what it contains and contributes."""
    return [_row(daemon, fiber) for fiber in picture(daemon.root).fibers]


def row_json(daemon: Daemon, path: str) -> dict[str, Any] | None:
    """One row, or a plugin mounted inside one, with what it needs and who uses it; `None` if there is none."""
    shown = picture(daemon.root)
    fiber = shown.find(path)
    if fiber is None:
        return None
    return {**_row(daemon, fiber), "instances": _instances(shown, path), "used_by": _users(shown, path)}


def _row(daemon: Daemon, fiber: FiberPicture) -> dict[str, Any]:
    spec = daemon.reconciler.specs.get(fiber.path)
    found = _fiber(daemon, fiber)
    if spec is not None:
        found |= {
            "use": spec.row.use,
            "optional": spec.optional,
            "digest": spec.digest,
            "code": spec.code,
            "declared_at": str(spec.row.mark),
            "needs": [key.name for key in spec.plugin.inject],
        }
    return found


def _fiber(daemon: Daemon, fiber: FiberPicture) -> dict[str, Any]:
    return {
        **_brief(daemon, fiber),
        "at": fiber.at,
        "staged": fiber.staged,
        "draining": fiber.draining,
        "abandoned": fiber.abandoned,
        "crashes": fiber.crashes,
        "provides": list(fiber.provides),
        "missing": [str(missing) for missing in fiber.missing],
        "effects": [_effect(effect) for effect in fiber.effects],
        "children": [_fiber(daemon, child) for child in fiber.children],
    }


def _brief(daemon: Daemon, fiber: FiberPicture) -> dict[str, Any]:
    return {"row": fiber.path, "plugin": fiber.plugin, "state": fiber.state.value, "reason": _reason(daemon, fiber)}


def _reason(daemon: Daemon, fiber: FiberPicture) -> str | None:
    """Why it stands where it does; an error with the last place in the row's own source."""
    live, spec = daemon.reconciler.fiber(fiber.path), daemon.reconciler.specs.get(fiber.path)
    if fiber.reason is None or fiber.error is None or live is None or live.error is None or spec is None:
        return fiber.reason
    return fiber.reason.replace(fiber.error, described(live.error, spec.code), 1)


def _effect(effect: EffectPicture) -> dict[str, Any]:
    return {
        "label": effect.label,
        "age_seconds": round(effect.age, 3),
        "site": effect.site,
        "parts": [_effect(part) for part in effect.parts],
    }


def _fine(fiber: FiberPicture) -> bool:
    return fiber.state is FiberState.ACTIVE and not fiber.abandoned


def _instances(shown: Picture, path: str) -> int:
    return sum(fiber.path == path for fiber in shown.fibers)


def _users(shown: Picture, path: str) -> list[dict[str, Any]]:
    return [
        {"service": service.key, "realm": service.realm, "consumers": list(service.consumers)}
        for service in shown.services
        if service.provider == path
    ]
