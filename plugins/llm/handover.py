"""Chunks on their way: an iterator driven by one task of its own, and the hand-over to whoever reads.

What an iterator keeps open around its chunks (connections, cancel scopes, task groups) is opened and closed by that one
task. Whoever reads may wait under scopes of its own and give up waiting: nothing is lost, and the iterator goes on.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from dshd import Signal, errors
from dshd.capabilities.llm import Aborted, Finish, StreamChunk

from .faults import aborted, is_cancellation

AHEAD = 32
"""Chunks that may be waiting for the reader; an iterator is not asked for more."""

CLOSING = 5.0
"""Seconds an iterator may take to give back what it holds."""

Report = Callable[..., object]
"""Logs an event with fields."""


class Handover:
    """The reader's end: an iterator of chunks that ends after the first `Finish`.

    Under a signal that says stop it ends at once, with an aborted finish in place of whatever had not been read.
    """

    def __init__(self, signal: Signal | None = None, ready: tuple[StreamChunk, ...] = ()) -> None:
        """`ready` are chunks that nobody has to wait for; without a task behind it there are no others."""
        self._signal = signal
        self._ready: deque[StreamChunk] = deque(ready)
        self._error: BaseException | None = None
        self._arrived: anyio.Event | None = None
        self._ended = True
        self._finished = False
        """Whether the reader has had its finish, or the end."""
        self._cut = False
        """Whether nothing more reaches the reader, whatever comes."""

    def __aiter__(self) -> Handover:
        return self

    async def __anext__(self) -> StreamChunk:
        while True:
            signal = self._signal
            if signal is not None and signal.aborted and not self._finished:
                self._finished = True
                self._cut_off()
                return Finish(Aborted(aborted(signal.cause)))
            if self._ready:
                chunk = self._ready.popleft()
                self._taken()
                if not self._finished:
                    self._finished = type(chunk) is Finish
                    return chunk
            elif self._ended:
                # The task behind it may have been cancelled together with the reader, for whom it is not the end then.
                await anyio.lowlevel.checkpoint_if_cancelled()
                self._finished = True
                if self._cut or self._error is None:
                    raise StopAsyncIteration
                error, self._error = self._error, None
                raise error
            else:
                self._wanted()
                if self._arrived is None:
                    self._arrived = anyio.Event()
                await self._arrived.wait()

    async def aclose(self) -> None:
        """There is nothing to give back. Any chunks that `next()` gives to a listener can be closed."""

    def _taken(self) -> None:
        """The reader has taken a chunk."""

    def _wanted(self) -> None:
        """The reader is about to wait."""

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    def _end(self) -> None:
        """Nothing comes after what is ready."""
        self._ended = True
        self._wake()

    def _cut_off(self) -> None:
        """For the reader it is over at once."""
        self._cut = True
        self._end()


class Driven(Handover, ABC):
    """Chunks of an iterator that a task of `tasks` drives, from the first wait of the reader on."""

    def __init__(self, tasks: TaskGroup, signal: Signal | None, report: Report, what: str) -> None:
        super().__init__(signal)
        self._tasks = tasks
        self._report = report
        self._what = what
        """Whose chunks they are, for messages."""
        self._ended = False
        self._started = False
        self._stopped = False
        """Whether nobody wants more."""
        self._asking = False
        """Whether the task waits for the iterator to give a chunk."""
        self._scope = anyio.CancelScope()
        self._iterator: Any = None
        self._room: anyio.Event | None = None
        self._over = anyio.Event()

    # -- what kind of iterator it is

    @abstractmethod
    def _open(self) -> object:
        """Make the iterator."""

    @abstractmethod
    def _take(self, chunk: Any) -> bool:
        """Hand a chunk over; whether it was the last."""

    @abstractmethod
    def _exhausted(self) -> None:
        """The iterator has no more."""

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """The iterator raised this."""

    # -- ending it

    def stop(self) -> None:
        """Nobody wants more: a wait for the next chunk is cancelled at once, anything else may come to its end."""
        if self._stopped:
            return
        self._stopped = True
        if not self._started and self._iterator is None:
            self._over.set()
            self._end()
        elif not self._started:
            self._start()  # somebody has to close it
        elif self._asking:
            self._scope.cancel()
        else:
            self._scope.deadline = anyio.current_time() + CLOSING
        if self._room is not None:
            self._room.set()

    async def aclose(self) -> None:
        """Stop, and wait until the iterator has given back what it holds."""
        self.stop()
        await self._over.wait()

    # -- the task

    def _wanted(self) -> None:
        if not self._started and not self._stopped:
            self._start()

    def _start(self) -> None:
        self._started = True
        self._tasks.start_soon(self._drive, name=self._what)

    def _taken(self) -> None:
        if self._room is not None and len(self._ready) <= AHEAD // 2:
            self._room.set()

    def _put(self, chunk: StreamChunk) -> None:
        if not self._ended:
            self._ready.append(chunk)
            self._wake()

    async def _drive(self) -> None:
        try:
            with self._scope:
                error = await self._pulled()
                if error is not None:
                    self._failed(error)
            if self._scope.cancelled_caught and self._scope.deadline != math.inf:
                self._report("a stream did not close in time", stream=self._what, seconds=CLOSING)
        except Exception as exc:  # an iterator that has left scopes of its own behind
            self._report("a stream did not close well", stream=self._what, exc_info=exc)
        finally:
            self._over.set()
            self._end()

    async def _pulled(self) -> BaseException | None:
        """Everything the iterator gives, until it is closed again; what it raised, unless we are cancelled."""
        error: BaseException | None = None
        try:
            await self._pull()
        except BaseException as exc:
            error = exc
        await self._close()
        # Only now is every scope of the iterator left, so that a cancelled one around us is not one of those.
        if error is not None and is_cancellation(error) and _is_cancelled():
            raise error
        return error

    async def _pull(self) -> None:
        if self._stopped:
            return
        if self._iterator is None:
            self._iterator = iterator_of(self._open())
        chunks = self._iterator
        while not self._stopped:
            self._asking = not self._ended  # after its finish it is only to come to its end
            try:
                chunk = await chunks.__anext__()
            except StopAsyncIteration:
                self._exhausted()
                return
            finally:
                self._asking = False
            if self._take(chunk):
                return
            if len(self._ready) >= AHEAD:
                await self._until_there_is_room()

    async def _until_there_is_room(self) -> None:
        while len(self._ready) >= AHEAD and not self._stopped and not self._ended:
            self._room = anyio.Event()
            try:
                await self._room.wait()
            finally:
                self._room = None

    async def _close(self) -> None:
        close = getattr(self._iterator, "aclose", None)
        if close is None:
            return
        try:
            closing = close()
            if inspect.isawaitable(closing):
                await closing
        except BaseException as exc:
            if is_cancellation(exc) and _is_cancelled():
                raise
            if not all(isinstance(leaf, GeneratorExit) for leaf in errors.leaves(exc)):  # as task groups pass that on
                self._report("a stream did not close well", stream=self._what, exc_info=exc)


def iterator_of(chunks: object) -> AsyncIterator[Any]:
    """An asynchronous iterator over `chunks`. Raises `TypeError` for what cannot be iterated."""
    if hasattr(chunks, "__anext__"):
        return chunks  # type: ignore[return-value]
    if hasattr(chunks, "__aiter__"):
        return aiter(chunks)
    if inspect.iscoroutine(chunks):
        chunks.close()
        raise TypeError("a coroutine is no asynchronous iterator of chunks; write an `async def` that yields them")
    raise TypeError(f"{type(chunks).__name__} is no asynchronous iterator of chunks")


def _is_cancelled() -> bool:
    return anyio.current_effective_deadline() == -math.inf
