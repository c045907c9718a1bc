"""Tasks of a plugin: owned by its fiber, named, and running only while the fiber may act.

A task starts with the commit that publishes its fiber and is cancelled when the fiber is retired; one spawned
`while_open` serves work in flight from the body to the release. It runs in the context variables of its fiber, not in
those of whoever called `spawn`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from .effects import Effect, Scope
from .epochs import NEVER
from .errors import EXITS, InactiveFiberError, PluginDefinitionError, PluginExitError, StrayCancellationError
from .states import FiberState

if TYPE_CHECKING:
    from .fiber import Fiber


class SpawnedTask(Effect):
    """One task as an effect: undoing it cancels the task and waits for its end."""

    __slots__ = (
        "_args",
        "_finished",
        "_func",
        "_limit",
        "_started",
        "_task_id",
        "_valve",
        "_vars",
        "coroutine",
        "name",
    )

    def __init__(
        self,
        owner: Fiber,
        func: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        name: str | None,
        while_open: bool,
        scope: Scope | None,
    ) -> None:
        from .fiber import current_fiber

        self.name = name or getattr(func, "__qualname__", type(func).__name__)
        if not while_open and owner.retired != NEVER:
            raise InactiveFiberError(owner.path, "retired", f"task {self.name}")
        self._func = func
        self._args = args
        self._limit = anyio.CancelScope()
        self._valve = anyio.CancelScope()
        self._finished = anyio.Event()
        self._started = False
        self._task_id = 0
        self.coroutine: Any = None
        inside = owner.state is FiberState.LOADING and current_fiber.get() is owner
        self._vars = contextvars.copy_context() if inside else None
        super().__init__(owner, f"task {self.name}", scope)
        if not while_open:
            owner.visible_tasks[self] = None
        if while_open or owner.visible:
            self.start()

    def start(self) -> None:
        """Let the task run; called once the fiber may act."""
        if self._started or self._limit.cancel_called:
            return
        self._started = True
        fiber = self.owner
        variables = self._vars if self._vars is not None else fiber.vars.copy()
        self._vars = None
        fiber.kernel.start(self._run, f"{fiber.path} {self.name}", variables)

    def cancel(self) -> None:
        """Ask the task to end; it may take its time."""
        self._limit.cancel()
        if not self._started:
            self._ended()

    def abandon(self) -> None:
        """The task ignores its cancellation: stop delivering it, and show the task by name until it ends."""
        if not self._finished.is_set():
            self._valve.shield = True
            self.owner.kernel.leave_behind(self, f"task {self.name!r} of {self.owner.path!r}")

    async def undo(self) -> None:
        self.cancel()
        if anyio.get_current_task().id != self._task_id:  # a task that undoes itself ends, it cannot wait for that
            await self._finished.wait()

    def sever(self) -> bool:
        self.cancel()
        self.overdue()
        return True

    def overdue(self) -> None:
        self.abandon()

    def _ended(self) -> None:
        self.leave_books()
        self.owner.visible_tasks.pop(self, None)
        self._finished.set()

    async def _run(self) -> None:
        self._task_id = anyio.get_current_task().id
        try:
            with self._limit, self._valve:
                if not self._limit.cancel_called:
                    self.coroutine = self._func(*self._args)
                    if not hasattr(self.coroutine, "__await__"):
                        raise PluginDefinitionError(f"task {self.name!r} must be `async def`")
                    await self.coroutine
        except EXITS as exc:
            left = PluginExitError(
                self.owner.path, f"task {self.name!r} of {self.owner.path!r} asked the process to end: {exc!r}"
            )
            left.__cause__ = exc
            self._failed(left)
        except Exception as exc:
            self._failed(exc)
        except anyio.get_cancelled_exc_class() as exc:
            stray = StrayCancellationError(
                self.owner.path, f"task {self.name!r} of {self.owner.path!r} was cancelled by something it awaited"
            )
            stray.__cause__ = exc
            self._failed(stray)
        finally:
            self.coroutine = None
            self._ended()
            self.owner.kernel.found_again(self)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            inner = error.exceptions[0]
            if isinstance(inner, Exception):
                error = inner
        if self._limit.cancel_called:
            self.owner.report("task failed while it was being stopped", task=self.name, error=error)
        else:
            self.owner.crash(error)
