"""Dispatch: one request through the listeners of `llm/stream` to the adapter the call is bound to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from dshd import Context
from dshd.capabilities.llm import (
    LLM_STREAM,
    ROUTES,
    Aborted,
    ChunkStream,
    Failed,
    FailureCode,
    GenerateOptions,
    LlmFailure,
    Route,
    StreamChunk,
)
from dshd.capabilities.values import FINISH_KINDS

from .conversations import Conversations
from .faults import aborted
from .handover import Handover, Report
from .replay import shown_to
from .stream import AdapterStream, ListenerStream, over


@asynccontextmanager
async def dispatched(
    view: Context, route: Route | None, request: GenerateOptions, conversations: Conversations, report: Report
) -> AsyncIterator[ChunkStream]:
    """The chunks that answer `request`. Whatever was opened for them is closed when the block ends.

    Without a route the terminal answer is `NO_ADAPTER`. What a listener raises is raised as it is.
    """
    error: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        dispatch = _Dispatch(tasks, view, route, request, conversations, report)
        try:
            yield await dispatch.open()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # raised outside the task group, where nothing wraps it
            error = exc
        finally:
            dispatch.close()
    if error is not None:
        raise error


class _Dispatch:
    """What is open for one request: the adapter's stream, and that of the listeners where there are any."""

    def __init__(
        self,
        tasks: TaskGroup,
        view: Context,
        route: Route | None,
        request: GenerateOptions,
        conversations: Conversations,
        report: Report,
    ) -> None:
        self._tasks = tasks
        self._view = view
        self._route = route
        self._request = request
        self._conversations = conversations
        self._report = report
        self._asking = anyio.CancelScope()
        self._terminal: Handover | None = None
        self._served: list[ListenerStream] = []
        """What listeners gave, the innermost first. Each is driven and closed by a task of its own."""
        self._forget: Callable[[], object] = lambda: None

    async def open(self) -> ChunkStream:
        """Ask the listeners, if there are any; they may take their time, but not longer than the signal says."""
        signal = self._request.signal
        if signal is not None and signal.aborted:
            return over(Aborted(aborted(signal.cause)))
        if signal is not None:
            self._forget = signal.follow(self._interrupt)
        with self._asking:
            return self._driven(await self._view.waterfall(LLM_STREAM, self._request, self._answer, self._driven))
        return over(Aborted(aborted(None if signal is None else signal.cause)))

    def _driven(self, chunks: AsyncIterator[StreamChunk]) -> Handover:
        """What is passed outward, to a listener or to the reader."""
        if isinstance(chunks, Handover) and any(chunks is each for each in (self._terminal, *self._served)):
            return chunks
        self._served.append(ListenerStream(self._tasks, chunks, self._request.signal, self._report))
        return self._served[-1]

    async def _answer(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        """The innermost: what stands behind all listeners."""
        if self._route is None:
            self._terminal = over(Failed(_unserved(request, list(self._view.registry(ROUTES)))))
        else:
            adapter = self._route.adapter
            shown = shown_to(adapter, request, dict(self._view.registry(ROUTES).items()))
            self._conversations.pass_on(request, shown)
            self._terminal = AdapterStream(self._tasks, adapter, shown, self._view.registry(FINISH_KINDS), self._report)
        return self._terminal

    def _interrupt(self, cause: object) -> None:
        # The adapter first: a listener that passes its last chunk on should come to do so.
        if isinstance(self._terminal, AdapterStream):
            self._terminal.interrupt(cause)
        for served in self._served:
            served.interrupt(cause)
        self._asking.cancel()

    def close(self) -> None:
        """Nobody reads any more."""
        self._forget()
        for served in reversed(self._served):
            served.lose()
            served.stop()
        if isinstance(self._terminal, AdapterStream):
            self._terminal.stop()


def _unserved(request: GenerateOptions, there: list[str]) -> LlmFailure:
    routes = f"the routes are {', '.join(there)}" if there else "there is no route at all"
    message = f"no adapter serves route {request.provider!r}; {routes}"
    return LlmFailure(message=message, code=FailureCode.NO_ADAPTER)
