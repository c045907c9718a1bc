"""The verbs of events, as part of every context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from . import dispatch, internal
from .effects import Effect, Scope
from .epochs import View
from .errors import UnscopedEventError
from .events import Bail, Emit, ListenerAdded, Next, Parallel, Serial, Waterfall, check_colour
from .tables import FIRST, Entry

if TYPE_CHECKING:
    from .fiber import Fiber
    from .runtime import Kernel

E = TypeVar("E")
R = TypeVar("R")


class Bus:
    """Listening and speaking for a fiber: facts go to the present, questions to the view of who asks."""

    __slots__ = ("_view", "fiber", "kernel", "owner", "scope")

    def __init__(self, fiber: Fiber, owner: Fiber, scope: Scope | None, view: View | None) -> None:
        self.kernel: Kernel = fiber.kernel
        self.fiber = fiber
        self.owner = owner
        self.scope = scope
        self._view = view

    @property
    def view(self) -> View:
        """What this context sees of the tree."""
        return self.fiber.view if self._view is None else self._view

    @overload
    def on(
        self, event: Emit[E], listener: Callable[[E], None], *, priority: int = 0, prepend: bool = False
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: Parallel[E],
        listener: Callable[[E], Awaitable[object]],
        *,
        priority: int = 0,
        prepend: bool = False,
    ) -> Effect: ...
    @overload
    def on(
        self, event: Bail[E, R], listener: Callable[[E], R | None], *, priority: int = 0, prepend: bool = False
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: Serial[E, R],
        listener: Callable[[E], Awaitable[R | None]],
        *,
        priority: int = 0,
        prepend: bool = False,
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: Waterfall[E, R],
        listener: Callable[[E, Next[R]], Awaitable[R]],
        *,
        priority: int = 0,
        prepend: bool = False,
    ) -> Effect: ...
    def on(self, event: Any, listener: Callable[..., Any], *, priority: int = 0, prepend: bool = False) -> Effect:
        """Listen for the life of the fiber. Lower priorities come first; `prepend` is the first priority.

        Raises `EventModeError` for a listener of the wrong colour, and `UnscopedEventError` for a scoped one on an
        event that is about nobody.
        """
        label = f"on {event.name}"
        self.owner.check(label, self.scope)
        check_colour(event, listener)
        if self.scope is not None and event.subject is None:
            raise UnscopedEventError(
                f"{event.name!r} says nothing about whom it is about, so a listener of {self.scope!r} would never run"
            )
        kernel = self.kernel
        table = kernel.listeners(event)
        table.check(event)
        entry = Entry(self.owner, label, table, listener, event.name, FIRST if prepend else priority, self.scope)
        added = kernel.events.get(internal.LISTENER.name)
        if added is not None and added.size:
            dispatch.deliver(kernel, added.present(), ListenerAdded(event.name, self.owner.path))
        return entry

    @overload
    def once(
        self, event: Emit[E], listener: Callable[[E], None], *, priority: int = 0, prepend: bool = False
    ) -> Effect: ...
    @overload
    def once(
        self,
        event: Parallel[E],
        listener: Callable[[E], Awaitable[object]],
        *,
        priority: int = 0,
        prepend: bool = False,
    ) -> Effect: ...
    @overload
    def once(
        self, event: Bail[E, R], listener: Callable[[E], R | None], *, priority: int = 0, prepend: bool = False
    ) -> Effect: ...
    @overload
    def once(
        self,
        event: Serial[E, R],
        listener: Callable[[E], Awaitable[R | None]],
        *,
        priority: int = 0,
        prepend: bool = False,
    ) -> Effect: ...
    @overload
    def once(
        self,
        event: Waterfall[E, R],
        listener: Callable[[E, Next[R]], Awaitable[R]],
        *,
        priority: int = 0,
        prepend: bool = False,
    ) -> Effect: ...
    def once(self, event: Any, listener: Callable[..., Any], *, priority: int = 0, prepend: bool = False) -> Effect:
        """Listen to one dispatch: the listener is removed before its first call."""
        check_colour(event, listener)

        async def abstain() -> None:
            pass

        @wraps(listener)
        def heard(*args: Any) -> Any:
            if effect.live:
                effect.release()
                return listener(*args)
            # Another dispatch had selected this listener before the first call removed it.
            if isinstance(event, Waterfall):
                return args[1]()
            return None if isinstance(event, (Emit, Bail)) else abstain()

        effect: Effect = self.on(event, heard, priority=priority, prepend=prepend)
        return effect

    def emit(self, event: Emit[E], payload: E) -> None:
        """Tell everybody who listens now."""
        listeners = dispatch.told(self, event, payload)
        if listeners:
            if event.veto:
                dispatch.deliver_veto(listeners, payload)
            else:
                dispatch.deliver(self.kernel, listeners, payload)

    async def parallel(self, event: Parallel[E], payload: E) -> None:
        """Tell everybody who listens now and wait for all; raises their errors together as an `ExceptionGroup`."""
        listeners = dispatch.told(self, event, payload)
        if listeners:
            await dispatch.parallel(self, event, listeners, payload)

    def bail(self, event: Bail[E, R], payload: E) -> R | None:
        """The first answer that is not `None`."""
        return cast("R | None", dispatch.bail(dispatch.asked(self, event, payload), payload))

    async def serial(self, event: Serial[E, R], payload: E) -> R | None:
        """Ask one listener after another; the first answer that is not `None`."""
        listeners = dispatch.asked(self, event, payload)
        return cast("R | None", await dispatch.serial(self, event, listeners, payload)) if listeners else None

    async def waterfall(
        self,
        event: Waterfall[E, R],
        payload: E,
        inner: Callable[[E], Awaitable[R]],
        passing: Callable[[R], R] | None = None,
    ) -> R:
        """What the outermost listener makes of the inner ones, and they of `inner(payload)`.

        With `passing` each listener is given what that makes of the answer within.
        """
        listeners = dispatch.asked(self, event, payload)
        if not listeners:
            return await inner(payload)
        return cast(R, await dispatch.waterfall(self, event, listeners, payload, inner, passing))
