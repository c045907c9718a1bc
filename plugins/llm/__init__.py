"""The `llm` service: routes to adapters, catalogs, prepared calls and their streams.

registration   which adapter instance serves which routes
catalog        what there is, and drafts of what could be
layers         what `intercept` lays over a proposal
models         exact models, and what they fill in
call           a prepared call and its dispatch
stream         chunks, made to obey the protocol
replay         replay state, shown to its owner only
conversations  which requests are an agent's own
faults         what adapters raise
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from typing import Any

from dshd import Config, Context, SharedKey, Signal, plugin
from dshd.capabilities.llm import (
    LLM,
    ROUTES,
    Aborted,
    ChunkStream,
    ConfigurableProvider,
    DirectoryEntry,
    DiscoveredModel,
    Failed,
    FailureCode,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    LlmError,
    ModelDiscoveryRequest,
    ModelInfo,
    PreparedCall,
    ProviderInfo,
    ResolvedModel,
    StreamChunk,
)
from dshd.capabilities.llm.service import Discoverer

from . import catalog, models
from .call import prepared
from .conversations import Conversations
from .layers import problem
from .registration import Registration, register, register_configurable
from .stream import CallStream


class Service:
    """The service as one consumer sees it. See `Llm`."""

    __slots__ = ("_consumer", "_conversations", "_log")

    def __init__(self, consumer: Context, conversations: Conversations, log: Any) -> None:
        self._consumer = consumer
        self._conversations = conversations
        self._log = log

    def register_adapter(self, providers: Sequence[str], adapter: LlmAdapter) -> Registration:
        return register(self._consumer, providers, adapter)

    def register_configurable_providers(
        self,
        providers: Sequence[ConfigurableProvider],
        *,
        discover: Discoverer | None = None,
        apis: Sequence[str] = (),
    ) -> None:
        register_configurable(self._consumer, providers, discover, apis)

    def list_providers(self) -> list[ProviderInfo]:
        return [route.info for route in self._consumer.registry(ROUTES).values()]

    def directory(self) -> list[DirectoryEntry]:
        return catalog.directory(self._consumer)

    async def list_models(self, provider: str | None = None) -> list[ModelInfo]:
        with self._consumer.leased("model catalogs") as view:
            return await catalog.list_models(view, provider, self._log.warning)

    async def discover_models(self, request: ModelDiscoveryRequest) -> list[DiscoveredModel]:
        with self._consumer.leased("model discovery") as view:
            return await catalog.discover_models(view, request)

    async def resolve_model(self, provider: str, model: str, signal: Signal | None = None) -> ResolvedModel | None:
        with self._consumer.leased("model resolution") as view:
            route = view.registry(ROUTES).get(provider)
            return None if route is None else await models.resolve(route.adapter, provider, model, signal)

    def prepare_call(
        self, proposal: LlmCallConfig, *, signal: Signal | None = None
    ) -> AbstractAsyncContextManager[PreparedCall]:
        return prepared(self._consumer, proposal, signal, self._log.warning)

    @asynccontextmanager
    async def stream(self, request: GenerateOptions) -> AsyncIterator[ChunkStream]:
        config = request.config
        async with AsyncExitStack() as stack:
            try:
                call = await stack.enter_async_context(self.prepare_call(config, signal=request.signal))
            except LlmError as exc:
                yield CallStream(_refused(exc), None, [])
                return
            if call.config != config:
                request = replace(request, **{each.name: getattr(call.config, each.name) for each in fields(config)})
            yield await stack.enter_async_context(call.stream(request))

    def mark_conversation(self, request: GenerateOptions) -> None:
        self._conversations.add(request)

    def is_conversation(self, request: GenerateOptions) -> bool:
        return request in self._conversations


async def _refused(error: LlmError) -> AsyncIterator[StreamChunk]:
    aborted = error.code == FailureCode.ABORTED
    yield Finish(Aborted(error.failure) if aborted else Failed(error.failure))


def _check(view: Any) -> None:
    """Refuse a tree in which a row's `intercept` says of `llm` what no call can follow."""
    for path, row in view.rows.items():
        for service, layer in row.intercept:
            wrong = problem(layer) if service == LLM.name else None
            if wrong is not None:
                view.refuse_layer(path, service, *wrong)


@plugin("llm", provides=[LLM], validate=_check)
async def llm(ctx: Context, config: Config) -> None:
    async def open_conversations(_keeper: Context) -> AsyncIterator[Conversations]:
        yield Conversations()

    key = SharedKey[Conversations]("llm conversations", (ctx.realm(LLM),))
    conversations = await ctx.shared(key, open_conversations)
    ctx.provide_each(LLM, lambda consumer: Service(consumer, conversations, ctx.log))
