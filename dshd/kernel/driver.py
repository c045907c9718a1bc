"""The task of a fiber: wait for what it needs, activate it, and wait again for as long as it may open once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from .activation import Activation
from .effects import Effect
from .epochs import NEVER
from .states import FiberState

if TYPE_CHECKING:
    from .fiber import Fiber


async def drive(fiber: Fiber) -> None:
    """The whole life of a fiber: activations, and the waits between them."""
    try:
        while await _wait_until_ready(fiber):
            fiber.activation = activation = Activation(fiber)
            try:
                await activation.run()
            except anyio.get_cancelled_exc_class() as exc:
                _cancelled_from_outside(fiber, exc)
            finally:
                _reset(fiber)
            if fiber.ended:
                break
            if fiber.error is not None and not await _wait_to_retry(fiber):
                break
    except Exception as exc:
        # A fault of the kernel itself: it may end this fiber, but not the task group in which all the others run.
        fiber.error = exc
        fiber.report("the kernel failed in the task of a plugin; please report this", error=exc)
    finally:
        _finish(fiber)


def _cancelled_from_outside(fiber: Fiber, exc: BaseException) -> None:
    """Somebody cancelled the task itself, past every scope. Let that end one wait, never the task group we run in."""
    fiber.report("the task of a plugin was cancelled from outside", error=exc)


async def _pause(fiber: Fiber) -> None:
    try:
        await fiber.pulse()
    except anyio.get_cancelled_exc_class() as exc:
        _cancelled_from_outside(fiber, exc)


async def _wait_until_ready(fiber: Fiber) -> bool:
    if fiber.state is not FiberState.PENDING and not fiber.ended:
        fiber.enter_state(FiberState.PENDING)
    while not fiber.ended:
        if fiber.is_ready():
            return True
        fiber.rest()
        await _pause(fiber)
    return False


async def _wait_to_retry(fiber: Fiber) -> bool:
    """Stay failed until told to try again, a dependency changes, or, after having been active, for a while."""
    fiber.stirring = False
    fiber.enter_state(FiberState.FAILED)
    if fiber.keeper is not None:
        return False
    seen = _providers(fiber)
    delay = fiber.kernel.backoff.delay(fiber.crashes, fiber.kernel.random()) if fiber.crashes else None
    until = None if delay is None else anyio.current_time() + delay
    while not fiber.ended:
        if fiber.retry_asked or (until is not None and anyio.current_time() >= until):
            break
        if _providers(fiber) != seen and fiber.is_ready():
            break
        fiber.rest()
        with anyio.CancelScope() as scope:
            scope.deadline = float("inf") if until is None else until
            try:
                await fiber.pulse()
            except anyio.get_cancelled_exc_class() as exc:
                if scope.cancel_called:
                    raise
                _cancelled_from_outside(fiber, exc)
    fiber.retry_asked = False
    return not fiber.ended


def _providers(fiber: Fiber) -> list[Effect | None]:
    return [slot.find(fiber.view) for slot in fiber.slots]


def _reset(fiber: Fiber) -> None:
    """The activation is over: nothing is open."""
    fiber.activation = None
    fiber.opened = False
    fiber.lost = fiber.hidden = fiber.released = False
    if not fiber.ended:
        fiber.awaits_parent = False
        fiber.born = fiber.retired = NEVER
        if fiber.stage is not None and fiber.stage.alone:
            fiber.stage = None
        fiber.view = fiber.stage if fiber.stage is not None else fiber.kernel.now
        fiber.kernel.services.version += 1  # what it found with the eyes of the last life is not what it sees now
    fiber.on_publish = fiber.on_retire = None
    for slot in fiber.slots:
        fiber.kernel.wake_providers(slot)
    fiber.notify()


def _finish(fiber: Fiber) -> None:
    """The end: leave every table and tell those who wait."""
    fiber.ended = True
    for slot in fiber.slots:
        slot.consumers.pop(fiber, None)
        slot.pinned.pop(fiber, None)
        slot.retire()
    if fiber.parent is not None:
        fiber.parent.kids.pop(fiber, None)
        fiber.free_name()
    if fiber.mounted is not None:
        fiber.mounted.leave_books()
    if fiber.stage is not None:
        fiber.stage.progress(fiber, settled=True)
        if fiber.stage.alone or fiber.stage.over:
            fiber.stage = None
    fiber.kernel.forget(fiber)
    fiber.enter_state(FiberState.DISPOSED)
