"""One prepared call: bound to the registration that resolved it, streamed once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dshd import Context, Signal
from dshd.capabilities.llm import (
    LLM,
    ROUTES,
    ChunkStream,
    FailureCode,
    GenerateOptions,
    LlmCallConfig,
    LlmError,
    ResolvedModel,
    RetryPolicy,
    Route,
    ToolSchema,
)
from dshd.capabilities.llm.request import EpochHeader

from .conversations import Conversations
from .dispatch import dispatched
from .faults import aborted
from .handover import Report
from .layers import overlay
from .models import complete, resolve


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
        conversations: Conversations,
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
        self._conversations = conversations
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
    async def stream(self, request: GenerateOptions) -> AsyncIterator[ChunkStream]:
        self._spend(request)
        async with dispatched(self._view, self._route, request, self._conversations, self._report) as chunks:
            yield chunks

    def _spend(self, request: GenerateOptions) -> None:
        reason = self.spent
        if reason is None:
            found, mine = request.config.to_json(), self.config.to_json()
            other = [name for name in {**mine, **found} if found.get(name) != mine.get(name)]
            if other:
                told = ", ".join(f"{name} is {found.get(name)!r} and not {mine.get(name)!r}" for name in other)
                reason = f"the request is another one than it was prepared for: {told}"
        if reason is not None:
            raise LlmError(f"this prepared call cannot be streamed: {reason}", FailureCode.INVALID_PREPARED_CALL)
        self.spent = "it was streamed before; prepare another one"


@asynccontextmanager
async def prepared(
    consumer: Context, proposal: LlmCallConfig, signal: Signal | None, conversations: Conversations, report: Report
) -> AsyncIterator[Call]:
    """See `Llm.prepare_call`."""
    overlaid = overlay(proposal, consumer.layers(LLM), consumer.owner.path)
    config = overlaid.config
    provider, model = config.provider, config.model
    if provider is None or model is None:
        lacks = " and ".join(name for name in ("provider", "model") if getattr(config, name) is None)
        message = f"a model call needs a provider and a model, and this one has no {lacks}"
        raise LlmError(message, FailureCode.INVALID_CALL_CONFIG)
    if signal is not None and signal.aborted:
        raise LlmError(aborted(signal.cause))
    with consumer.leased(f"model call {provider}/{model}") as view:
        route = view.registry(ROUTES).get(provider)
        known: ResolvedModel | None = None
        defaults = frozenset[str]()
        if route is not None:
            known = await resolve(route.adapter, provider, model, signal)
            if known is not None:
                config, defaults, overlaid = complete(overlaid, known)
        call = Call(view, config, route, known, defaults, overlaid.intercepted, conversations, report)
        try:
            yield call
        finally:
            call.spent = "its block is over"
