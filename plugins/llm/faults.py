"""Faults of adapters: whatever their code raises, as a failure or an error that says who raised it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from dshd import Aborted, Signal, errors, is_fault, obey
from dshd.capabilities.llm import FailureCode, LlmError, LlmFailure

T = TypeVar("T")


def aborted(cause: object) -> LlmFailure:
    """The failure of a call that was told to stop."""
    return LlmFailure(message=_words(Aborted, cause), code=FailureCode.ABORTED)


def _words(make: Callable[[object], BaseException], cause: object) -> str:
    try:
        return str(make(cause))
    except Exception:  # the cause is somebody else's object, and so are its words
        return f"aborted: {type(cause).__name__}"


def failure_of(error: BaseException) -> LlmFailure:
    """What an adapter raised, as a failure. An `LlmError` has its own, also out of a task group."""
    leaves = errors.leaves(error)
    for leaf in leaves:
        if isinstance(leaf, LlmError):
            return leaf.failure
        if isinstance(leaf, Aborted):
            return aborted(leaf.cause)
    return LlmFailure(message=words_of(leaves[0] if len(leaves) == 1 else error), code=FailureCode.PROVIDER)


def words_of(error: BaseException) -> str:
    """What an exception says, on one line, whatever its own code does when it is asked."""
    if is_cancellation(error):
        return "it was cancelled by something it used"
    try:
        return errors.describe(error)
    except Exception:
        return type(error).__name__


def is_cancellation(error: BaseException) -> bool:
    """Whether this is how a task learns that it is cancelled."""
    return isinstance(error, anyio.get_cancelled_exc_class())


def is_expected(error: BaseException) -> bool:
    """Whether an adapter said on purpose what went wrong, so that nobody needs its traceback."""
    return any(isinstance(leaf, (LlmError, Aborted)) for leaf in errors.leaves(error))


async def answer(what: str, ask: Callable[[], Awaitable[T]], signal: Signal | None = None) -> T:
    """Await what an adapter answers to `ask`.

    Raises `LlmError`: `ABORTED` at once when the signal says so, what the adapter raised of that kind, and for anything
    else a `PROVIDER_ERROR` that begins with `what`.
    """

    async def contained() -> T:
        try:
            return await ask()
        except BaseException as exc:
            if not is_fault(exc) or isinstance(exc, LlmError):
                raise
            failure = failure_of(exc)
            if failure.code == FailureCode.PROVIDER and not is_expected(exc):
                failure = LlmFailure(message=f"{what} failed: {failure.message}", code=failure.code)
            raise LlmError(failure) from exc

    if signal is None:
        return await contained()
    try:
        return await obey(signal, contained, cooperative=False)
    except Aborted as exc:
        raise LlmError(aborted(exc.cause)) from None
