"""One activation of a fiber: the body opened, live and closed, in one frame of one task.

A fiber whose provider went away, or that failed after having been active, is activated again; everything that belongs
to one opening only is here. The structure of `run` is the structure of a life: open, publish, live, drain, unwind,
close. Two scopes surround it: `limit`, cancelled by the watchdog when a deadline has passed, and `valve` inside it,
shut when the task ignored that, since asyncio would deliver the cancellation again at every turn of the loop.
"""

from __future__ import annotations

import contextvars
import inspect
import math
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any

import anyio

from .effects import Effect
from .epochs import NEVER
from .errors import (
    EXITS,
    AbandonedError,
    CommitRefusedError,
    FiberFailure,
    LoadTimeoutError,
    PluginExitError,
    StrayCancellationError,
    UnloadTimeoutError,
)
from .stage import Stage
from .states import FiberState

if TYPE_CHECKING:
    from .fiber import Fiber
    from .watchdog import Alarm


class Activation:
    """What exists between the opening and the closing of one body."""

    __slots__ = (
        "_body", "_close_by", "_cut", "_foreign", "_generator", "_limit", "_loaded", "_pending", "_valves", "alarm",
        "failure", "fiber", "late", "since", "task_id", "was_active",
    )  # fmt: skip

    def __init__(self, fiber: Fiber) -> None:
        self.fiber = fiber
        self.failure: BaseException | None = None
        self.since = time.monotonic()
        self.task_id = 0
        self.late = False  # a deadline has passed
        self.was_active: float | None = None  # when it became visible
        self.alarm: Alarm | None = None
        self._loaded = False
        self._body: Coroutine[Any, Any, Any] | None = None
        self._generator: AsyncGenerator[None, None] | None = None
        self._limit = anyio.CancelScope()
        self._valves = [anyio.CancelScope()]
        self._cut = False
        self._foreign: BaseException | None = None  # a cancellation by a scope of the body's own
        self._pending: BaseException | None = None  # our own cancellation, to be handed to the scope that asked for it
        self._close_by = math.inf
        fiber.error = None

    # -- told by others

    def cut(self) -> None:
        """What is being opened is not wanted any more: its deadline is now."""
        self._cut = True
        self._limit.cancel()

    def crash(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.fiber.wake()

    def expire(self) -> None:
        """The watchdog: the deadline of the present phase has passed."""
        self.late = self._loaded
        self._limit.cancel()

    def abandon(self) -> None:
        """The watchdog: the task ignored its cancellation. Stop delivering it."""
        for valve in self._valves:
            valve.shield = True

    @property
    def _interrupted(self) -> bool:
        """Whether a plain `await` in this task would raise, because a scope around it is cancelled."""
        return self._foreign is not None or self._limit.cancel_called

    @property
    def phase(self) -> str:
        return "unloading" if self._loaded else "loading"

    def abandoned_error(self) -> AbandonedError:
        path = self.fiber.path
        return AbandonedError(path, f"plugin {path!r} ignored its cancellation while {self.phase} and was abandoned")

    @property
    def waiting_in(self) -> Any:
        """The coroutine or generator of the body, for finding the place where it waits."""
        return self._body if self._body is not None else self._generator

    # -- the life

    async def run(self) -> None:
        fiber, kernel = self.fiber, self.fiber.kernel
        if fiber.stage is None:
            fiber.enter(Stage(kernel, alone=True))
        self.task_id = anyio.get_current_task().id
        with self._limit, self._valves[0]:
            await self._open()
            if self.failure is None:
                self._publish()
            if self.failure is None:
                await self._live()
            self._leave()
            await self._drain()
            await self._close()
            if self._pending is not None:
                raise self._pending
        self._judge()

    async def _open(self) -> None:
        fiber = self.fiber
        fiber.enter_state(FiberState.LOADING)
        fiber.kernel.watchdog.arm(self, fiber.kernel.timing.load)
        try:
            body: Any = fiber.plugin.body(fiber.ctx, fiber.config)
            if fiber.plugin.yields:
                self._generator = body
                try:
                    await body.__anext__()
                except StopAsyncIteration:
                    self._generator = None
            else:
                self._body = body
                await body
        except BaseException as exc:
            self._generator = None
            self._failed(exc)
        self._body = None
        fiber.kernel.watchdog.disarm(self)
        fiber.vars = contextvars.copy_context()
        if self.failure is None and self._limit.cancel_called:  # it went on all the same
            self.failure = self._too_late()
        self._loaded = True

    def _too_late(self) -> FiberFailure:
        path, timing = self.fiber.path, self.fiber.kernel.timing
        if self._cut:
            return LoadTimeoutError(path, f"plugin {path!r} was ended while it was loading")
        if self._loaded:
            return UnloadTimeoutError(path, f"plugin {path!r} did not finish unloading in {timing.unload:g} s")
        return LoadTimeoutError(path, f"plugin {path!r} did not finish loading in {timing.load:g} s")

    def _failed(self, exc: BaseException) -> None:
        """Sort what came out of the plugin: its failure, our deadline, or what must end the process."""
        fiber = self.fiber
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            if self._limit.cancel_called:
                self._pending = exc
                exc = self._too_late()
            else:
                stray = StrayCancellationError(
                    fiber.path, f"plugin {fiber.path!r} was cancelled while {self.phase} by something it awaited"
                )
                stray.__cause__ = exc
                exc = stray
        elif isinstance(exc, EXITS):
            left = PluginExitError(fiber.path, f"plugin {fiber.path!r} asked the process to end: {exc!r}")
            left.__cause__ = exc
            exc = left
        elif isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
            self._failed(exc.exceptions[0])
            return
        elif not isinstance(exc, (Exception, BaseExceptionGroup)):
            raise exc
        if self.failure is None or isinstance(self.failure, StrayCancellationError):
            self.failure = exc
        elif exc is not self.failure and not isinstance(exc, FiberFailure):
            fiber.report("failed again while closing", error=exc)

    def _publish(self) -> None:
        fiber = self.fiber
        if fiber.abandoned:
            self.failure = self.abandoned_error()
            return
        if fiber.ended or fiber.lost:
            return
        stage = fiber.stage
        if stage is None:  # its parent was published while it was still loading
            stage = Stage(fiber.kernel, alone=True)
            fiber.enter(stage)
        fiber.opened = True
        fiber.state = FiberState.ACTIVE
        if stage.alone and next(iter(stage.incoming)) is fiber:
            try:
                stage.commit_alone()
            except CommitRefusedError as exc:
                self.failure = exc
        else:
            fiber.kernel.wake_staged(stage, fiber)
        fiber.tell_state(FiberState.LOADING)

    def _stale(self) -> bool:
        fiber = self.fiber
        return self.failure is not None or fiber.ended or fiber.lost or fiber.retired != NEVER

    async def _sleep(self) -> None:
        """Wait to be woken, also when a scope that the body holds open was cancelled: a failed task group, mostly."""
        try:
            if self._interrupted:
                with anyio.CancelScope(shield=True):
                    await self.fiber.pulse()
            else:
                await self.fiber.pulse()
        except anyio.get_cancelled_exc_class() as exc:
            self._foreign = exc
            self._failed(exc)

    async def _live(self) -> None:
        while not self._stale():
            await self._sleep()

    def _leave(self) -> None:
        """Become invisible, unless a commit has seen to that."""
        fiber = self.fiber
        if fiber.retired == NEVER and not fiber.hidden:
            fiber.kernel.closing.withdraw(fiber)

    async def _drain(self) -> None:
        """Stay open for those who still use it: leases, consumers that close on it, the parent it is part of."""
        fiber = self.fiber
        kernel = fiber.kernel
        while fiber.opened and kernel.closing.is_held(fiber):  # what never opened is used by nobody
            kernel.draining[fiber] = None
            kernel.closing.untangle(fiber)
            await self._sleep()
        kernel.draining.pop(fiber, None)

    async def _close(self) -> None:
        fiber = self.fiber
        fiber.enter_state(FiberState.UNLOADING)
        self._begin_closing(fiber.kernel.timing.unload)
        for child in list(fiber.kids):
            if child.mounted is None and child.keeper is None:  # prepared in a stage, and not ours yet
                child.end()
                child.release()
        await self._unwind()
        if self._generator is not None:
            try:
                if self._foreign is not None:
                    await self._generator.athrow(self._foreign)
                else:
                    await self._generator.__anext__()
                await self._second_yield()
            except StopAsyncIteration:
                pass
            except BaseException as exc:
                self._failed_closing(exc)
        await self._unwind(last=True)
        fiber.kernel.watchdog.disarm(self)
        for child in list(fiber.kids):  # of the root: keepers, last of all
            child.end()
            child.release()
        for child in list(fiber.kids):
            with anyio.CancelScope(shield=True):
                await child.closing()

    def _begin_closing(self, seconds: float) -> None:
        self._close_by = anyio.current_time() + seconds
        self.fiber.kernel.watchdog.arm(self, seconds)

    def _failed_closing(self, exc: BaseException) -> None:
        """An error after the `yield` does not undo the end of a plugin: it is logged, unless it explains a failure."""
        before = self.failure
        self._failed(exc)
        if before is None:
            self.fiber.report("cleanup failed", effect="the code after the yield", error=self.failure)
            self.failure = None

    async def _second_yield(self) -> None:
        generator, self._generator = self._generator, None
        assert generator is not None
        frame = getattr(generator, "ag_frame", None)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
        self.fiber.report("the body yielded a second time", place=place)
        await generator.aclose()

    async def _unwind(self, *, last: bool = False) -> None:
        effects = self.fiber.effects
        while (effect := next((e for e in reversed(effects) if last or not e.lasting), None)) is not None:
            try:
                result = effect.release()
                if inspect.isawaitable(result):
                    await self._bounded(effect, result)
            except (Exception, *EXITS) as exc:
                self.fiber.report("cleanup failed", effect=effect.label, error=exc)
            except anyio.get_cancelled_exc_class() as exc:
                if self._limit.cancel_called:
                    self._pending = exc
                    self._overdue(effect)
                else:
                    self.fiber.report("cleanup was cancelled by something it awaited", effect=effect.label, error=exc)

    async def _bounded(self, effect: Effect, result: Any) -> None:
        """Await a cleanup. A cancelled scope around it does not reach it; the deadline of the closing does."""
        if effect.waits_elsewhere:
            await self._wait_elsewhere(result)
        elif effect.unwinds_in_place or self.late:
            await result
        else:
            valve = anyio.CancelScope()
            self._valves.append(valve)
            with anyio.CancelScope(shield=True, deadline=self._close_by) as own, valve:
                await result
            self._valves.remove(valve)
            if own.cancelled_caught:
                self._overdue(effect)

    async def _wait_elsewhere(self, result: Any) -> None:
        """Wait for other fibers, which have deadlines of their own; ours stands still meanwhile."""
        left = self._close_by - anyio.current_time()
        self.fiber.kernel.watchdog.disarm(self)
        with anyio.CancelScope(shield=True):
            await result
        self._begin_closing(max(left, 0))

    def _overdue(self, effect: Effect) -> None:
        self.fiber.report("cleanup did not finish in time", effect=effect.label)
        effect.overdue()

    def _judge(self) -> None:
        """What this life leaves behind: an error, and whether it counts as a crash after having been active."""
        fiber = self.fiber
        if self.failure is None:
            return
        fiber.error = self.failure
        if fiber.keeper is not None:
            fiber.keeper.failed(self.failure)
        if not self._cut:
            fiber.report("plugin failed", error=self.failure)
        if self.was_active is not None:
            if anyio.current_time() - self.was_active > fiber.kernel.backoff.reset:
                fiber.crashes = 0
            fiber.crashes += 1
