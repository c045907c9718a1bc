"""The five ways an event reaches its listeners. `Context` has a method for each; the rules are in `events`.

Every awaited dispatch is a lease for its duration: what it selected stays open until it is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import anyio

from .effects import Scope
from .epochs import Lease
from .errors import EXITS, EventModeError, NextCalledTwiceError, PluginExitError, StrayCancellationError
from .events import Dispatched, Event
from .stray import is_stray
from .tables import Entry, Table

if TYPE_CHECKING:
    from .bus import Bus
    from .runtime import Kernel

Inner = Callable[[Any], Awaitable[Any]]


class EventTable(Table):
    """The listeners of one event. `mode` is the class of the event: one name has one mode."""

    __slots__ = ("mode",)

    def __init__(self, kernel: Kernel, event: Event) -> None:
        super().__init__(kernel, event.name)
        self.mode: type = type(event)

    def check(self, event: Event) -> None:
        """Raise `EventModeError` if this name was declared in another mode."""
        if type(event) is not self.mode:
            raise EventModeError(
                f"{event.name!r} is used as {type(event).__name__} but was declared {self.mode.__name__}"
            )

    def announce(self) -> None:
        if self is self.kernel.readers:  # what consumers have read may have to be replaced
            self.kernel.services.version += 1

    def touch(self, epoch: int) -> None:
        super().touch(epoch)
        self.announce()


def _scope(event: Event, payload: object) -> Scope | None:
    return None if event.subject is None else event.subject(payload)


def told(ctx: Bus, event: Event, payload: object) -> tuple[Entry, ...]:
    """Who hears a fact: the listeners visible now; from a stage, the stage's own only."""
    kernel = ctx.kernel
    table = kernel.events.get(event.name)
    if kernel.spies.size:
        spy(ctx, event, payload)
    if table is None:
        return ()
    table.check(event)
    stage = ctx.fiber.stage
    if stage is not None:
        return tuple(e for e in table.read(stage, _scope(event, payload)) if e.owner.stage is stage)
    return table.present(_scope(event, payload))


def asked(ctx: Bus, event: Any, payload: object) -> tuple[Entry, ...]:
    """Who is asked a question: what the asker's view sees, by the policy rule if the event says so."""
    kernel = ctx.kernel
    table = kernel.events.get(event.name)
    if kernel.spies.size:
        spy(ctx, event, payload)
    view = ctx.view
    if table is None:
        if isinstance(view, Lease):
            view.check()
        return ()
    table.check(event)
    if event.policy:
        return table.read_policy(view, _scope(event, payload))
    return table.read(view, _scope(event, payload))


def spy(ctx: Bus, event: Event, payload: object) -> None:
    """Tell `internal/dispatch`; neither the kernel's own events nor those of the listeners being told."""
    kernel = ctx.kernel
    if event.name.startswith("internal/") or kernel.spying:
        return
    kernel.spying = True
    try:
        deliver(kernel, kernel.spies.present(), Dispatched(event.name, type(event).__name__, payload, ctx.fiber.path))
    finally:
        kernel.spying = False


def deliver(kernel: Kernel, listeners: tuple[Entry, ...], payload: object) -> None:
    """Call each listener; what one raises is logged with its owner and the rest still run."""
    for listener in listeners:
        try:
            listener.value(payload)
        except (Exception, *EXITS, anyio.get_cancelled_exc_class()) as exc:
            listener.owner.report("listener failed", of=listener.table.name, listener=listener.culprit, error=exc)


def deliver_veto(listeners: tuple[Entry, ...], payload: object) -> None:
    """Call each listener; the first that raises stops the rest and its exception reaches the emitter."""
    for listener in listeners:
        try:
            listener.value(payload)
        except EXITS as exc:
            raise _exited(listener, exc) from exc
        except anyio.get_cancelled_exc_class() as exc:
            raise _strayed(listener) from exc


def bail(listeners: tuple[Entry, ...], payload: object) -> Any:
    for listener in listeners:
        try:
            answer = listener.value(payload)
        except EXITS as exc:
            raise _exited(listener, exc) from exc
        except anyio.get_cancelled_exc_class() as exc:
            raise _strayed(listener) from exc
        if answer is not None:
            return answer
    return None


async def parallel(ctx: Bus, event: Event, listeners: tuple[Entry, ...], payload: object) -> None:
    errors: list[Exception] = []

    async def run(listener: Entry) -> None:
        try:
            await _call(listener, payload)
        except Exception as exc:
            exc.add_note(f"raised by listener {listener.culprit}")
            errors.append(exc)

    lease = Lease(ctx.kernel, ctx.kernel.now if ctx.fiber.stage is None else ctx.fiber.stage, event.name)
    try:
        if len(listeners) == 1:
            await run(listeners[0])
        else:
            async with anyio.create_task_group() as tasks:
                for listener in listeners:
                    tasks.start_soon(run, listener, name=f"{event.name} {listener.owner.path}")
    finally:
        lease.release()
    if errors:
        raise ExceptionGroup(f"listeners of {event.name!r} failed", errors)


async def serial(ctx: Bus, event: Any, listeners: tuple[Entry, ...], payload: object) -> Any:
    leases = _hold(ctx, event)
    try:
        for listener in listeners:
            answer = await _call(listener, payload)
            if answer is not None:
                if event.answers:
                    return answer
                listener.owner.report("listener answered an event that takes no answer", listener=listener.culprit)
        return None
    finally:
        for lease in leases:
            lease.release()


async def waterfall(
    ctx: Bus,
    event: Any,
    listeners: tuple[Entry, ...],
    payload: object,
    inner: Inner,
    passing: Callable[[Any], Any] | None = None,
) -> Any:
    following = _Delegation(listeners, 1, payload, inner, passing)
    if not event.policy:
        lease = Lease(ctx.kernel, ctx.view, event.name)
        try:
            return await _call(listeners[0], payload, following)
        finally:
            lease.release()
    leases = _hold(ctx, event)
    try:
        return await _call(listeners[0], payload, following)
    finally:
        for lease in leases:
            lease.release()


def _hold(ctx: Bus, event: Any) -> tuple[Lease, ...]:
    kernel, view = ctx.kernel, ctx.view
    if event.policy and view is not kernel.now:
        return Lease(kernel, view, event.name), Lease(kernel, kernel.now, event.name)
    return (Lease(kernel, view, event.name),)


class _Delegation:
    """The `next` of a waterfall: what is left of the chain, to be asked once."""

    __slots__ = ("_index", "_inner", "_listeners", "_passing", "_payload", "_used")

    def __init__(
        self,
        listeners: tuple[Entry, ...],
        index: int,
        payload: object,
        inner: Inner,
        passing: Callable[[Any], Any] | None,
    ) -> None:
        self._listeners = listeners
        self._index = index
        self._payload = payload
        self._inner = inner
        self._passing = passing
        self._used = False

    def __call__(self) -> Awaitable[Any]:
        index = self._index
        if self._used:
            raise NextCalledTwiceError(self._listeners[0].table.name, self._listeners[index - 1].culprit)
        self._used = True
        if index == len(self._listeners):
            answer = self._inner(self._payload)
        else:
            following = _Delegation(self._listeners, index + 1, self._payload, self._inner, self._passing)
            answer = _call(self._listeners[index], self._payload, following)
        return answer if self._passing is None else self._passed(answer, self._passing)

    @staticmethod
    async def _passed(answer: Awaitable[Any], passing: Callable[[Any], Any]) -> Any:
        return passing(await answer)


async def _call(listener: Entry, *args: object) -> Any:
    """Await one listener. `sys.exit` and a cancellation nobody asked for become that listener's error."""
    try:
        answer = listener.value(*args)
        if type(answer) is not CoroutineType and not hasattr(answer, "__await__"):
            raise EventModeError(f"listener {listener.culprit} of {listener.table.name!r} must be `async def`")
        return await answer
    except EXITS as exc:
        raise _exited(listener, exc) from exc
    except anyio.get_cancelled_exc_class() as exc:
        if is_stray():
            raise _strayed(listener) from exc
        raise


def _strayed(listener: Entry) -> StrayCancellationError:
    text = f"listener {listener.culprit} was cancelled by something it used"
    return StrayCancellationError(listener.owner.path, text)


def _exited(listener: Entry, exc: BaseException) -> PluginExitError:
    return PluginExitError(listener.owner.path, f"listener {listener.culprit} asked the process to end: {exc!r}")
