"""What the kernel itself announces, for the loader, for pictures and for plugins that watch the tree.

The last four cost one test while nobody listens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from .events import Bail, Dispatched, Emit, ListenerAdded, Waterfall
from .keys import Realm, ServiceKey
from .services import ServiceChange
from .states import FiberState

if TYPE_CHECKING:
    from .fiber import Fiber


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A fiber's state changed. Told for staged fibers as well."""

    fiber: Fiber
    old: FiberState
    new: FiberState


@dataclass(frozen=True, slots=True)
class ConfigUpdate:
    """A fiber is about to be opened anew with `config`; `fiber.config` is what it has."""

    fiber: Fiber
    config: BaseModel


@dataclass(frozen=True, slots=True)
class ServiceRead:
    """The row at `reader` reads the service `key` in `realm` and would get `value`."""

    key: ServiceKey[Any]
    realm: Realm
    reader: Fiber
    value: object


@dataclass(frozen=True, slots=True)
class ServiceOffered:
    """The row at `provider` provides `value` (the object, or the function that makes a face) under `key` in `realm`."""

    key: ServiceKey[Any]
    realm: Realm
    provider: Fiber
    value: object


PLUGIN = Emit["Fiber"]("internal/plugin")
"""A fiber was created."""
STATUS = Emit[StatusChange]("internal/status")
"""A fiber changed state."""
SERVICE = Emit[ServiceChange]("internal/service")
"""A service binding appeared, vanished or was replaced; told after the commit or change that did it."""
UPDATE = Waterfall[ConfigUpdate, BaseModel]("internal/update")
"""A config update is about to be applied: the value returned is applied, an exception vetoes."""
GET = Bail[ServiceRead, object]("internal/get")
"""An answer replaces the value a consumer reads."""
SET = Bail[ServiceOffered, object]("internal/set")
"""An answer replaces the value being provided; an exception refuses it."""
LISTENER = Emit[ListenerAdded]("internal/listener")
"""A listener was registered."""
DISPATCH = Emit[Dispatched]("internal/dispatch")
"""An event is being dispatched; not told of `internal/*` events."""
