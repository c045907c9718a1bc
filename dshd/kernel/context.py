"""What a plugin sees and does: a small immutable object over one fiber. Deriving one never changes another.

A context reads with the eyes of a fiber (its view, its declared services, its realms) and registers for an owner; both
are the same fiber unless a factory acts for its caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import structlog
from pydantic import BaseModel

from . import internal
from .bus import Bus
from .effects import AsyncEntered, Cleanup, Composite, Deferred, Effect, Entered, Mounted, Scope
from .epochs import NEVER, Lease, View
from .errors import (
    EntryConflictError,
    InactiveFiberError,
    PluginDefinitionError,
    ServiceNotDeclaredError,
    ServiceUnavailableError,
    WrongTaskError,
)
from .fiber import Fiber
from .keepers import shared
from .keys import DEFAULT_REALM, Realm, RegistryKey, ServiceKey, SharedKey
from .plugin import Plugin
from .registry import Registry
from .services import Binding
from .stage import Stage
from .states import FiberState
from .tables import Entry
from .tasks import SpawnedTask

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .services import ServiceTable

T = TypeVar("T")
E = TypeVar("E")
R = TypeVar("R")
C = TypeVar("C", bound=BaseModel)

_NO_REALMS: Mapping[str, Realm] = MappingProxyType({})
Layers = tuple[tuple[str, Mapping[str, Any]], ...]


class Context(Bus):
    """A plugin's window on the kernel: services, registries, events, effects, and contexts derived from it."""

    __slots__ = ("_found", "_layers", "_log", "_optional", "_realms", "_services", "_version")

    def __init__(
        self,
        fiber: Fiber,
        owner: Fiber | None = None,
        realms: Mapping[str, Realm] = _NO_REALMS,
        layers: Layers = (),
        scope: Scope | None = None,
        view: View | None = None,
    ) -> None:
        super().__init__(fiber, fiber if owner is None else owner, scope, view)
        self._realms = realms
        self._layers = layers
        self._services: ServiceTable = fiber.kernel.services
        self._version = 0
        self._found: dict[str, Any] = {}
        self._optional: dict[str, Any] | None = None
        self._log: FilteringBoundLogger | None = None

    # -- services

    def __getitem__(self, key: ServiceKey[T]) -> T:
        """The declared service `key`: ask at each use.

        Raises `ServiceNotDeclaredError` for a key that is not in `inject`, `ServiceUnavailableError` when nobody
        provides it in this view.
        """
        if self._version == self._services.version:
            try:
                return cast(T, self._found[key.name])
            except KeyError:
                pass
        return self._read(key)

    def _read(self, key: ServiceKey[T]) -> T:
        fiber = self.fiber
        if key not in fiber.plugin.inject:
            way = "add it to inject=[…], or use ctx.get for one it can do without"
            raise ServiceNotDeclaredError(
                key.name,
                f"plugin {fiber.path!r} reads service {key.name!r} without declaring it; "
                f"{way if fiber.parent is not None else 'the root asks with ctx.get'}",
            )
        entry = self._services.find(key.name, self.realm(key), self.view)
        if entry is None:
            raise ServiceUnavailableError(key.name, f"service {key.name!r} has no provider that {fiber.path!r} can see")
        value, keep = self._face(key, entry)
        if keep:
            self._refresh()
            self._found[key.name] = value
        return cast(T, value)

    def get(self, key: ServiceKey[T]) -> T | None:
        """The service `key`, or `None` while nobody provides it. Needs no declaration; ask at each use."""
        if self._version == self._services.version and self._optional is not None:
            try:
                return cast("T | None", self._optional[key.name])
            except KeyError:
                pass
        entry = self._services.find(key.name, self.realm(key), self.view)
        value, keep = (None, True) if entry is None else self._face(key, entry)
        if keep:
            self._refresh()
            if self._optional is None:
                self._optional = {}
            self._optional[key.name] = value
        return cast("T | None", value)

    def _refresh(self) -> None:
        if self._version != self._services.version:
            self._version = self._services.version
            self._found.clear()
            self._optional = None

    def _face(self, key: ServiceKey[Any], entry: Entry) -> tuple[Any, bool]:
        """What the provider makes for this consumer, and whether that may be kept."""
        value, kernel = entry.value(self), self.kernel
        if not kernel.readers.size or kernel.reading:
            return value, not kernel.readers.size
        kernel.reading = True
        try:
            answer = self.bail(internal.GET, internal.ServiceRead(key, self.realm(key), self.fiber, value))
        finally:
            kernel.reading = False
        return (value if answer is None else answer), False

    def provide(self, key: ServiceKey[T], value: T) -> Effect:
        """Publish `value` as the service `key` for the life of the fiber.

        Raises `ServiceNotDeclaredError` for a key that is not in `provides`, `ServiceConflictError` when somebody
        would see two providers.
        """
        value = self._offered(key, value)
        return self._bind(key, lambda _consumer: value)

    def provide_each(self, key: ServiceKey[T], make: Callable[[Context], T]) -> Effect:
        """Publish `make(consumer)` as the service `key`: a light face for each consumer's context.

        What a method of the face registers through that context belongs to the consumer. `make` is called again
        whenever services have changed, so it must be cheap and keep nothing.
        """
        return self._bind(key, self._offered(key, make))

    def _offered(self, key: ServiceKey[Any], value: T) -> T:
        table = self.kernel.events.get(internal.SET.name)
        if table is None or not table.size:
            return value
        answer = self.bail(internal.SET, internal.ServiceOffered(key, self.realm(key), self.owner, value))
        return value if answer is None else cast(T, answer)

    def _bind(self, key: ServiceKey[Any], make: Callable[[Context], Any]) -> Effect:
        owner = self.owner
        owner.check(f"provide {key.name}", self.scope)
        if key not in owner.plugin.provides and owner.parent is not None:
            raise ServiceNotDeclaredError(
                key.name,
                f"plugin {owner.path!r} provides service {key.name!r} without declaring it; add it to provides=[…]",
            )
        return Binding(owner, self._services.slot(key.name, self.realm(key)), make)

    def registry(self, key: RegistryKey[T]) -> Registry[T]:
        """The registry `key` as this context sees it; what is added through it belongs to this context's owner."""
        return Registry(self, key)

    async def shared(self, key: SharedKey[T], open: Callable[[Context], AsyncIterator[T]]) -> T:
        """State that outlives this instance: opened once by an async generator, held until this fiber unwinds.

        `open` gets the context of a keeper, not of this row; everything it depends on belongs into the key. Raises what
        opening raised. If the state fails later, every fiber that holds it is re-opened.
        """
        return await shared(self, key, open)

    # -- what it stands on

    @property
    def root(self) -> Context:
        return self.kernel.root.ctx

    @property
    def log(self) -> FilteringBoundLogger:
        """A structlog logger that names the plugin and its row."""
        if self._log is None:
            self._log = structlog.get_logger("dshd.plugin").bind(plugin=self.owner.name, row=self.owner.path)
        return self._log

    def realm(self, key: ServiceKey[Any] | RegistryKey[Any]) -> Realm:
        """Which instance of an isolated service or registry this context means."""
        return self._realms.get(key.isolated_with, DEFAULT_REALM) if self._realms else DEFAULT_REALM

    # -- derived contexts

    def _derive(self, **changes: Any) -> Context:
        parts: dict[str, Any] = {
            "fiber": self.fiber, "owner": self.owner, "realms": self._realms, "layers": self._layers,
            "scope": self.scope, "view": self._view,
        }  # fmt: skip
        return Context(**{**parts, **changes})

    def adopted(self, fiber: Fiber) -> Context:
        """The context of a fiber mounted through this one: its own view, these realms, layers and scope."""
        return Context(fiber, None, self._realms, self._layers, self.scope)

    def isolate(self, key: ServiceKey[Any], realm: Realm | str | None = None) -> Context:
        """A context with its own instance of `key`, or the one shared by everybody who names `realm`."""
        if realm is None:
            realm = Realm(key.name, self.owner.path)
        elif isinstance(realm, str):
            realm = Realm(realm)
        return self._derive(realms=MappingProxyType({**self._realms, key.name: realm}))

    def intercept(self, key: ServiceKey[Any], **layer: Any) -> Context:
        """A context that overlays settings for `key`; its provider reads the layers of each consumer."""
        return self._derive(layers=(*self._layers, (key.name, MappingProxyType(layer))))

    def layers(self, key: ServiceKey[Any]) -> tuple[Mapping[str, Any], ...]:
        """The layers laid over `key`, the outermost first."""
        return tuple(layer for name, layer in self._layers if name == key.name)

    def intercepted(self, key: ServiceKey[Any], base: C) -> C:
        """`base` with the layers over `key` merged in, the innermost last. Raises pydantic's `ValidationError`."""
        layers = self.layers(key)
        if not layers:
            return base
        merged = base.model_dump()
        for layer in layers:
            merged.update(layer)
        return type(base).model_validate(merged)

    def scoped(self, scope: Scope) -> Context:
        """A context whose listeners and entries count for `scope` only, shadow global ones and also end with it."""
        return self._derive(scope=scope)

    def acting_for(self, consumer: Context) -> Context:
        """A context that reads as this plugin and registers for `consumer`: for factories reached through a service."""
        return self._derive(owner=consumer.owner, scope=consumer.scope)

    @contextmanager
    def leased(self, who: str) -> Iterator[Context]:
        """A context frozen to what this one sees now; what it sees stays open until the block ends.

        `who` is shown in `status`. Facts still go to the present, and policy events bind what is new at once.
        """
        lease = Lease(self.kernel, self.view, who)
        leased = self._derive(view=lease)
        try:
            yield leased
        finally:
            lease.release()
            leased._version = 0  # what it has found is not to be used any more

    # -- effects

    def defer(self, cleanup: Cleanup, label: str | None = None) -> Effect:
        """Run `cleanup`, sync or async, when the fiber unwinds."""
        label = label or f"defer {getattr(cleanup, '__qualname__', type(cleanup).__name__)}"
        self.owner.check(label, self.scope)
        return Deferred(self.owner, label, cleanup, self.scope)

    def enter(self, manager: AbstractContextManager[T], label: str | None = None) -> T:
        """Enter a context manager for the life of the fiber; return what it gives."""
        label = label or f"enter {_name_of(manager)}"
        self.owner.check(label, self.scope)
        value = manager.__enter__()
        Entered(self.owner, label, manager, self.scope)
        return value

    async def aenter(self, manager: AbstractAsyncContextManager[T], label: str | None = None) -> T:
        """Enter an asynchronous context manager for the life of the fiber; only in a body that returns.

        Raises `WrongTaskError` anywhere else: a body that yields uses `async with`, as does a task.
        """
        owner = self.owner
        label = label or f"enter {_name_of(manager)}"
        owner.check(label)
        activation = owner.activation
        inside = activation is not None and anyio.get_current_task().id == activation.task_id
        if not inside or owner.plugin.yields or owner.state is not FiberState.LOADING:
            raise WrongTaskError(
                f"plugin {owner.path!r}: aenter() belongs into a body that returns; use `async with` "
                f"{'around the yield' if owner.plugin.yields else 'in tasks and callbacks'}"
            )
        value = await manager.__aenter__()
        AsyncEntered(owner, label, manager)
        return value

    def compose(self, label: str, parts: Iterable[Effect]) -> Effect:
        """Bind effects of this fiber into one; undoing it undoes the parts, the last first."""
        self.owner.check(label)
        return Composite(self.owner, label, parts)

    def spawn(
        self, func: Callable[..., Awaitable[object]], *args: Any, name: str | None = None, while_open: bool = False
    ) -> Effect:
        """Run `func(*args)` as a task of this fiber.

        It starts with the commit that publishes the fiber and is cancelled when the fiber is retired. With `while_open`
        it runs from now to the release, to serve work in flight. An error it raises unloads the fiber in order.
        """
        self.owner.check(f"task {name or getattr(func, '__qualname__', func)}", self.scope)
        return SpawnedTask(self.owner, func, args, name, while_open, self.scope)

    async def published(self) -> None:
        """Wait until a commit has made this fiber visible. For tasks `while_open`; the body itself may not wait."""
        fiber = self.owner
        if fiber.activation is not None and anyio.get_current_task().id == fiber.activation.task_id:
            raise WrongTaskError(f"plugin {fiber.path!r}: the body opens before it is published; wait in a task")
        if not fiber.visible and fiber.retired == NEVER:
            if fiber.on_publish is None:
                fiber.on_publish = anyio.Event()
            await fiber.on_publish.wait()

    async def retired(self) -> None:
        """Wait until this fiber has become invisible, by a commit or by its owner."""
        fiber = self.owner
        if not (fiber.hidden or fiber.retired != NEVER):
            if fiber.on_retire is None:
                fiber.on_retire = anyio.Event()
            await fiber.on_retire.wait()

    def plugin(
        self,
        plugin: Plugin[C],
        config: C | dict[str, Any] | None = None,
        *,
        id: str | None = None,
        stage: Stage | None = None,
        optional: bool = False,
    ) -> Fiber:
        """Mount a plugin as a child of this context's owner; return its fiber at once.

        `id` is the last part of its row path, by default the plugin's name, numbered where that is taken. `stage` opens
        it there, invisible until the stage commits; an `optional` one does not hold that commit up. Raises pydantic's
        `ValidationError` for a config the plugin does not take.
        """
        if not isinstance(plugin, Plugin):
            raise PluginDefinitionError(f"{plugin!r} is no plugin; decorate its body with @plugin(name)")
        parent = self.owner
        label = f"plugin {id or plugin.name}"
        parent.check(label, self.scope)
        if stage is not None and stage.over:
            raise InactiveFiberError("the stage", "over", label)
        parsed = plugin.parse(config)
        if id is None:
            identity = parent.child_names().vacant(plugin.name)
        else:
            identity = (id, 1)
            self._admit(parent, identity, stage)
        fiber = Fiber(
            self.kernel, parent, plugin, parsed, self, identity=identity, stage=stage,
            optional=optional,
        )  # fmt: skip
        Mounted(parent, fiber, self.scope)
        return fiber

    def _admit(self, parent: Fiber, identity: tuple[str, int], stage: Stage | None) -> None:
        """Raise `EntryConflictError` if somebody would see two siblings of one id."""
        if not parent.child_names().taken(identity):
            return
        for kid in parent.kids:
            mine = kid.stage is None or kid.stage.alone or kid.stage is stage
            leaving = kid.ended or kid.retired != NEVER or (stage is not None and stage.retires(kid))
            if kid.identity == identity and mine and not leaving:
                raise EntryConflictError("plugin", kid.path, parent.path, parent.path)

    def __repr__(self) -> str:
        return f"<context of {self.fiber.path}{'' if self.scope is None else f' for {self.scope.name}'}>"


def _name_of(manager: object) -> str:
    """What a context manager is called: the function it was made of, or its class."""
    function = getattr(manager, "func", None)
    return str(getattr(function, "__qualname__", type(manager).__name__))
