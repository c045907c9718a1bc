"""The two kinds of chunks in a call: those an adapter gives, made to obey the protocol, and those of a listener."""

from __future__ import annotations

from typing import Any

from anyio.abc import TaskGroup

from dshd import Registry, Signal, errors
from dshd.capabilities.llm import (
    Aborted,
    Failed,
    FailureCode,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmFailure,
)
from dshd.capabilities.llm.stream import check_chunk
from dshd.capabilities.values import Extension, Kind

from .faults import failure_of, is_cancellation, is_expected
from .handover import Driven, Handover, Report, iterator_of


class AdapterStream(Driven):
    """What an adapter answers to one request: it ends with exactly one `Finish`, whatever the adapter's code does.

    A signal that says stop cancels the adapter at once.
    """

    def __init__(
        self, tasks: TaskGroup, adapter: LlmAdapter, request: GenerateOptions, finishes: Registry[Kind], report: Report
    ) -> None:
        super().__init__(tasks, request.signal, report, f"the adapter of route {request.provider!r}")
        self._adapter = adapter
        self._finishes = finishes
        self._request = request
        self._complete = False
        """Whether the adapter has given its finish."""

    def interrupt(self, _cause: object) -> None:
        """The signal says stop."""
        self.stop()
        self._wake()

    def _open(self) -> object:
        return self._adapter.stream(self._request)

    def _take(self, chunk: Any) -> bool:
        if self._complete:
            self._report("an adapter goes on after its finish", stream=self._what, chunk=type(chunk).__name__)
            return True
        check_chunk(chunk, self._what)
        if type(chunk) is Finish and isinstance(chunk.reason, Extension):
            kind = self._finishes.get(chunk.reason.kind)
            if kind is not None:
                kind.check(chunk.reason)  # the log would not take it
        self._put(chunk)
        if type(chunk) is Finish:
            self._complete = True
            self._end()
        return False

    def _exhausted(self) -> None:
        if not self._complete:
            message = f"{self._what} ended its answer without saying why"
            self._put(Finish(Failed(LlmFailure(message=message, code=FailureCode.TRUNCATED))))

    def _failed(self, error: BaseException) -> None:
        if self._complete or not is_expected(error):
            self._report("an adapter failed", stream=self._what, finished=self._complete, exc_info=error)
        self._put(Finish(finish_of(failure_of(error))))


class ListenerStream(Driven):
    """What a listener of `llm/stream` made of the chunks, or gave in their place. What it raises reaches the reader."""

    def __init__(self, tasks: TaskGroup, chunks: object, signal: Signal | None, report: Report) -> None:
        """Raises `TypeError` for what is no iterator of chunks."""
        super().__init__(tasks, signal, report, "a listener of 'llm/stream'")
        try:
            self._iterator = iterator_of(chunks)
        except TypeError as exc:
            raise TypeError(f"{self._what} gave no chunks: {exc}") from None

    def interrupt(self, _cause: object) -> None:
        """The signal says stop: the reader is told at once; the listener, whose adapter is, may come to its end."""
        if self._finished:
            self._cut_off()
        self._wake()

    def lose(self) -> None:
        """Nobody reads any more: report what the reader has not been told."""
        error, self._error = self._error, None
        if error is not None:
            self._report("a listener failed after the last chunk was read", stream=self._what, exc_info=error)

    def _open(self) -> object:
        return self._iterator

    def _take(self, chunk: Any) -> bool:
        check_chunk(chunk, self._what)
        self._put(chunk)
        return False

    def _exhausted(self) -> None:
        pass

    def _failed(self, error: BaseException) -> None:
        if is_cancellation(error):
            self._error = errors.StrayCancellationError("llm/stream", f"{self._what} was cancelled by what it used")
        elif isinstance(error, errors.EXITS):
            self._error = errors.PluginExitError("llm/stream", f"{self._what} asked the process to end: {error!r}")
        else:
            self._error = error
        if self._stopped:
            self.lose()


def finish_of(failure: LlmFailure) -> Aborted | Failed:
    """The reason of a finish that reports `failure`."""
    return Aborted(failure) if failure.code == FailureCode.ABORTED else Failed(failure)


def over(reason: Aborted | Failed) -> Handover:
    """A stream that is over before it began."""
    return Handover(ready=(Finish(reason),))
