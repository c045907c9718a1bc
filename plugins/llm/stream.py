"""The chunks of one call: as an adapter gives them, made to obey the protocol, and as the consumer reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio

from dshd import Signal, is_fault
from dshd.capabilities.llm import (
    Aborted,
    Failed,
    FailureCode,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmFailure,
    StreamChunk,
)
from dshd.capabilities.llm.stream import check_chunk
from dshd.capabilities.values import MalformedValueError

from .faults import aborted, failure_of, is_expected

CLOSING = 5.0
"""Seconds a stream may take to give back what it holds."""

Report = Callable[..., object]


class AdapterStream:
    """What an adapter answers to one request, ended by exactly one `Finish` whatever its code does.

    A signal cancels the wait for a chunk at once. Each wait has a cancel scope of its own, so that the consumer may use
    scopes around it as it likes.
    """

    def __init__(self, adapter: LlmAdapter, request: GenerateOptions, report: Report) -> None:
        self._adapter = adapter
        self._request = request
        self._report = report
        self._chunks: AsyncIterator[StreamChunk] | None = None
        self._scope: anyio.CancelScope | None = None
        self._over = False
        self._forget: Callable[[], None] = lambda: None

    def __aiter__(self) -> AdapterStream:
        return self

    async def __anext__(self) -> StreamChunk:
        if self._over:
            raise StopAsyncIteration
        signal = self._request.signal
        try:
            if signal is None:
                chunk = await self._next()
            elif signal.aborted:
                return self._end(Aborted(aborted(signal.cause)))
            else:
                if self._chunks is None:
                    self._forget = signal.follow(self._interrupt)
                with anyio.CancelScope() as scope:
                    self._scope = scope
                    try:
                        chunk = await self._next()
                    finally:
                        self._scope = None
                if scope.cancelled_caught:
                    return self._end(Aborted(aborted(signal.cause)))
        except StopAsyncIteration:
            return self._end(Failed(_truncated(self._request)))
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if signal is not None and signal.aborted:
                return self._end(Aborted(aborted(signal.cause)))
            return self._failed(exc)
        try:
            check_chunk(chunk, f"the adapter of route {self._request.provider!r}")
        except MalformedValueError as exc:
            return self._failed(exc)
        if type(chunk) is Finish:
            self._over = True
        return chunk

    async def _next(self) -> StreamChunk:
        if self._chunks is None:
            chunks: Any = self._adapter.stream(self._request)
            if not hasattr(chunks, "__anext__"):
                if hasattr(chunks, "close"):
                    chunks.close()  # a coroutine that would complain of never being awaited
                raise TypeError(f"stream() gave {type(chunks).__name__}, which is no asynchronous iterator of chunks")
            self._chunks = chunks
        return await self._chunks.__anext__()

    def _failed(self, error: BaseException) -> Finish:
        if not is_expected(error):
            self._report("an adapter failed", route=self._request.provider, exc_info=error)
        failure = failure_of(error)
        return self._end(Aborted(failure) if failure.code == FailureCode.ABORTED else Failed(failure))

    def _end(self, reason: Aborted | Failed) -> Finish:
        self._over = True
        return Finish(reason)

    def _interrupt(self, _cause: object) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def aclose(self) -> None:
        """Give back what the adapter holds. Never raises what the adapter raises."""
        self._over = True
        self._forget()
        chunks, self._chunks = self._chunks, None
        await close(chunks, self._report, f"the stream of route {self._request.provider!r}")


class CallStream:
    """The chunks of a call as its consumer reads them: those of the adapter, or of whoever stands before it.

    While an adapter serves it, the adapter's stream minds the signal and what listeners made of its chunks goes
    through. Where a listener serves chunks of its own, the wait for them is cancelled here.
    """

    def __init__(
        self, chunks: AsyncIterator[StreamChunk], signal: Signal | None, adapters: list[AdapterStream]
    ) -> None:
        self._chunks = chunks
        self._signal = signal
        self._adapters = adapters
        self._scope: anyio.CancelScope | None = None
        self._over = False
        self._forget = signal.follow(self._interrupt) if signal is not None else lambda: None

    def __aiter__(self) -> CallStream:
        return self

    async def __anext__(self) -> StreamChunk:
        if self._over:
            raise StopAsyncIteration
        signal = self._signal
        if signal is None or self._adapters:
            chunk = await self._chunks.__anext__()
        else:
            cancelled = signal.aborted
            if not cancelled:
                with anyio.CancelScope() as scope:
                    self._scope = scope
                    try:
                        chunk = await self._chunks.__anext__()
                    finally:
                        self._scope = None
                cancelled = scope.cancelled_caught
            if cancelled:
                self._over = True
                return Finish(Aborted(aborted(signal.cause)))
        if type(chunk) is Finish:
            self._over = True
        return chunk

    def _interrupt(self, _cause: object) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def detach(self) -> None:
        self._over = True
        self._forget()


async def close(chunks: Any, report: Report, what: str) -> None:
    """Close an iterator of chunks, also while the task is being cancelled; what that raises is reported."""
    if chunks is None or not hasattr(chunks, "aclose"):
        return
    with anyio.move_on_after(CLOSING, shield=True) as limit:
        try:
            await chunks.aclose()
        except BaseException as exc:
            if not is_fault(exc):
                raise
            report("a stream did not close well", stream=what, exc_info=exc)
    if limit.cancelled_caught:
        report("a stream did not close in time", stream=what, seconds=CLOSING)


def _truncated(request: GenerateOptions) -> LlmFailure:
    message = f"the answer of route {request.provider!r} ended without saying why"
    return LlmFailure(message=message, code=FailureCode.TRUNCATED)
