"""One prepared call: bound to the registration that resolved it, streamed once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dshd import Context, Signal
from dshd.capabilities.llm import (
    LLM,
    LLM_STREAM,
    ROUTES,
    Failed,
    FailureCode,
    Finish,
    GenerateOptions,
    LlmCallConfig,
    LlmError,
    LlmFailure,
    ResolvedModel,
    RetryPolicy,
    Route,
    StreamChunk,
    ToolSchema,
)
from dshd.capabilities.llm.request import EpochHeader

from .layers import overlay
from .models import complete, resolve
from .replay import shown_to
from .stream import AdapterStream, CallStream, Report, close


class Call:
    """See `PreparedCall`. Its view keeps open what it was prepared with."""

    def __init__(
        self,
        view: Context,
        config: LlmCallConfig,
        route: Route | None,
        model: ResolvedModel | None,
        defaults: frozenset[str],
        intercepted: Mapping[str, Any],
        report: Report,
    ) -> None:
        self.config = config
        self.model = model
        self.retry_policy: RetryPolicy | None = None if route is None else route.retry_policy
        self.spent: str | None = None
        """Why it may not be streamed any more."""
        self._view = view
        self._route = route
        self._defaults = defaults
        self._intercepted = intercepted
        self._report = report

    def header(
        self, system: str | None = None, tools: Sequence[ToolSchema] = (), seeds: dict[str, object] | None = None
    ) -> EpochHeader:
        return EpochHeader(
            config=self.config,
            adapter_defaults=self._defaults,
            intercepted=dict(self._intercepted),
            seeds=seeds or {},
            system=system,
            tools=tuple(tools),
        )

    @asynccontextmanager
    async def stream(self, request: GenerateOptions) -> AsyncIterator[CallStream]:
        self._spend(request)
        adapters: list[AdapterStream] = []

        async def terminal(asked: GenerateOptions) -> AsyncIterator[StreamChunk]:
            if self._route is None:
                return _unserved(asked)
            shown = shown_to(self._route.adapter, asked, dict(self._view.registry(ROUTES).items()))
            stream = AdapterStream(self._route.adapter, shown, self._report)
            adapters.append(stream)
            return stream

        chunks: Any = None
        stream: CallStream | None = None
        try:
            chunks = await self._view.waterfall(LLM_STREAM, request, terminal)
            if not hasattr(chunks, "__anext__"):
                raise TypeError(f"a listener of 'llm/stream' gave {type(chunks).__name__}, not an iterator of chunks")
            stream = CallStream(chunks, request.signal, adapters)
            yield stream
        finally:
            if stream is not None:
                stream.detach()
            try:
                if chunks not in adapters:
                    await close(chunks, self._report, "what a listener of 'llm/stream' gave")
            finally:
                for adapter in adapters:
                    await adapter.aclose()

    def _spend(self, request: GenerateOptions) -> None:
        reason = self.spent
        if reason is None and request.config != self.config:
            reason = "the request's config is not the one it was prepared with"
        if reason is not None:
            raise LlmError(f"this prepared call cannot be streamed: {reason}", FailureCode.INVALID_PREPARED_CALL)
        self.spent = "it was streamed before; prepare another one"


async def _unserved(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
    message = f"no adapter serves route {request.provider!r}"
    yield Finish(Failed(LlmFailure(message=message, code=FailureCode.NO_ADAPTER)))


@asynccontextmanager
async def prepared(
    consumer: Context, proposal: LlmCallConfig, signal: Signal | None, report: Report
) -> AsyncIterator[Call]:
    """See `Llm.prepare_call`."""
    with consumer.leased(f"model call of {consumer.owner.path}") as view:
        overlaid = overlay(proposal, consumer.layers(LLM))
        config, defaults = overlaid.config, frozenset[str]()
        route = None if config.provider is None else view.registry(ROUTES).get(config.provider)
        model: ResolvedModel | None = None
        if route is not None and config.provider is not None and config.model is not None:
            model = await resolve(route.adapter, config.provider, config.model, signal)
            if model is not None:
                config, defaults, overlaid = complete(overlaid, model)
        call = Call(view, config, route, model, defaults, overlaid.intercepted, report)
        try:
            yield call
        finally:
            call.spent = "its block is over"
