"""Effects: what a fiber contributed, and how each is undone.

Registering, owning and undoing are one thing: every contribution of a plugin is an `Effect` in the dictionary of its
fiber, undone once, last first, each awaited before the next. The kinds that belong to a table, a task or a keeper
are declared beside these; here are the effect itself, the generic kinds, the child and the composite.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from .errors import EXITS, ClosedScopeError
from .stray import is_stray

if TYPE_CHECKING:
    from .fiber import Fiber

Cleanup: TypeAlias = Callable[[], Awaitable[object] | object]
"""What `ctx.defer` takes: a function, sync or async, whose result is dropped."""

_KERNEL = __name__.rpartition(".")[0]


def creation_site() -> str:
    """`file:line` of the innermost caller outside the kernel."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_KERNEL):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Effect:
    """One reversible contribution: undone by its owner's end, or earlier by `dispose()`; once only.

    `label` says what it is, `since` is `time.monotonic()` at its creation, `site` its place in development.
    """

    __slots__ = ("container", "label", "live", "owner", "scope", "since", "site")

    unwinds_in_place = False
    """Whether undoing must see the cancellation of the scopes around it (what was entered must be left in order)."""

    lasting = False
    """Whether it is undone after the code behind the `yield`, which may still use it."""

    waits_elsewhere = False
    """Whether undoing waits for other fibers, which have deadlines of their own."""

    def __init__(self, owner: Fiber, label: str, scope: Scope | None = None) -> None:
        self.owner = owner
        self.label = label
        self.scope = scope
        self.since = time.monotonic()
        self.site = creation_site() if owner.kernel.development else None
        self.container: Composite | None = None
        self.live = True
        owner.effects[self] = None
        if scope is not None:
            scope._effects[self] = None

    def undo(self) -> Awaitable[object] | object:
        """Take the contribution back; an awaitable result is awaited by whoever disposes."""

    def leave_books(self) -> bool:
        """Stop being an effect of anybody, without undoing anything; answers whether it was one."""
        if not self.live:
            return False
        self.live = False
        if self.container is None:
            self.owner.effects.pop(self, None)
        else:
            self.container._parts.pop(self, None)
        if self.scope is not None:
            self.scope._effects.pop(self, None)
        return True

    def release(self) -> Awaitable[object] | object:
        """Leave the books and undo. Returns what `undo` returned; `None` if it was undone before."""
        return self.undo() if self.leave_books() else None

    def sever(self) -> bool:
        """Undo without the owner's task, which was abandoned; answers whether that was possible."""
        return False

    def overdue(self) -> None:
        """Undoing it did not end before the deadline of the closing."""

    async def dispose(self) -> None:
        """Undo now. A second call does nothing and does not wait for a teardown already under way."""
        result = self.release()
        if inspect.isawaitable(result):
            await result

    def __repr__(self) -> str:
        return f"<{self.label} of {self.owner.path}>"


class Deferred(Effect):
    """A cleanup of the plugin's own."""

    __slots__ = ("_cleanup",)

    def __init__(self, owner: Fiber, label: str, cleanup: Cleanup, scope: Scope | None = None) -> None:
        self._cleanup = cleanup
        super().__init__(owner, label, scope)

    def undo(self) -> Awaitable[object] | object:
        return self._cleanup()


class Entered(Effect):
    """A context manager entered for the life of the fiber."""

    __slots__ = ("_manager",)

    def __init__(self, owner: Fiber, label: str, manager: AbstractContextManager[Any], scope: Scope | None) -> None:
        self._manager = manager
        super().__init__(owner, label, scope)

    def undo(self) -> None:
        self._manager.__exit__(None, None, None)


class AsyncEntered(Effect):
    """An asynchronous context manager entered by the body; left by the same task, in order."""

    __slots__ = ("_manager",)
    unwinds_in_place = True

    def __init__(self, owner: Fiber, label: str, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        super().__init__(owner, label)

    def undo(self) -> Awaitable[object]:
        return self._manager.__aexit__(None, None, None)


class Composite(Effect):
    """Effects bound into one, so that the order of their teardown is fixed by structure: the last part first.

    The parts themselves move in (they are no longer effects of the fiber beside it); each may still end earlier.
    """

    __slots__ = ("_parts",)

    def __init__(self, owner: Fiber, label: str, parts: Iterable[Effect], scope: Scope | None = None) -> None:
        self._parts: dict[Effect, None] = {}
        super().__init__(owner, label, scope)
        for part in parts:
            if part.owner is not owner or not part.live:
                raise ValueError(f"{part!r} is not a live effect of {owner.path!r}")
            self.take(part)

    def take(self, part: Effect) -> None:
        """Make `part`, a live effect of the same owner, a part of this one; it is undone first."""
        if part.container is None:
            self.owner.effects.pop(part, None)
        else:
            part.container._parts.pop(part, None)
        part.container = self
        self._parts[part] = None

    @property
    def parts(self) -> tuple[Effect, ...]:
        return tuple(self._parts)

    def undo(self) -> Awaitable[object] | object:
        return unwind(self._parts)

    def sever(self) -> bool:
        severed = [part.sever() for part in reversed(list(self._parts))]
        return self.leave_books() and all(severed)

    def overdue(self) -> None:
        for part in reversed(list(self._parts)):
            if not part.sever():
                part.owner.report("cleanup did not finish in time", effect=part.label)


class Mounted(Effect):
    """A child plugin, as its parent's effect. After an update it stands for the new instance."""

    __slots__ = ("child",)
    waits_elsewhere = True

    def __init__(self, owner: Fiber, child: Fiber, scope: Scope | None = None) -> None:
        self.child = child
        child.mounted = self
        super().__init__(owner, f"plugin {child.path}", scope)

    def undo(self) -> Awaitable[None]:
        closing = self.owner.kernel.closing
        closing.release(self.child)
        return closing.wait_closed(self.child)

    def sever(self) -> bool:
        self.child.end()
        self.child.release()
        return self.leave_books()

    def pass_to(self, successor: Fiber) -> None:
        self.child.mounted = None
        self.child = successor
        successor.mounted = self


class Scope:
    """What some contributions are about, such as one agent: they count for it only and end with it.

    Effects registered through `ctx.scoped(scope)` stay those of the plugin that made them, and end with the plugin or
    with the scope, whichever is first. Two scopes are never equal.
    """

    __slots__ = ("_effects", "closed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self._effects: dict[Effect, None] = {}

    def check(self, what: str) -> None:
        """Raise `ClosedScopeError` if nothing may be registered here any more."""
        if self.closed:
            raise ClosedScopeError(self.name, what)

    async def close(self) -> None:
        """End what was contributed for this scope, last first, whoever contributed it."""
        self.closed = True
        await unwind(self._effects)  # also what an earlier closing was cancelled before

    def __repr__(self) -> str:
        return f"<scope {self.name}>"


async def unwind(effects: dict[Effect, None]) -> None:
    """Undo all of `effects`, last first, each awaited before the next; what raises is logged and the rest still run."""
    while effects:
        effect = next(reversed(effects))
        effects.pop(effect)
        try:
            await effect.dispose()
        except (Exception, *EXITS) as exc:
            effect.owner.report("cleanup failed", effect=effect.label, error=exc)
        except anyio.get_cancelled_exc_class() as exc:
            if not is_stray():
                raise
            effect.owner.report("cleanup was cancelled by something it awaited", effect=effect.label, error=exc)
