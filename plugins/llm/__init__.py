"""The `llm` service: routes to adapters, catalogs, prepared calls and their streams.

registration   which adapter instance serves which routes
catalog        what there is: routes, and the models they list
discovery      the models of a draft
layers         what `intercept` lays over a proposal
models         exact models, and what they fill in
call           a prepared call, bound to one registration
dispatch       one request through the listeners to its adapter
stream         what adapters and listeners give, made to obey the protocol
handover       chunks from the task that drives an iterator to whoever reads
replay         replay state, shown to its owner only
conversations  which requests are an agent's own
faults         what adapters raise
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from typing import Any
from weakref import WeakSet

from dshd import Config, Context, SharedKey, Signal, plugin
from dshd.capabilities.llm import (
    LLM,
    ROUTES,
    ChunkStream,
    ConfigurableProvider,
    DirectoryEntry,
    DiscoveredModel,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    LlmError,
    ModelDiscoveryRequest,
    ModelInfo,
    PreparedCall,
    ProviderInfo,
    ResolvedModel,
)
from dshd.capabilities.llm.service import Discoverer

from . import catalog, models
from .call import prepared
from .conversations import Conversations
from .discovery import discover_models
from .layers import problems
from .registration import Registration, register, register_configurable
from .stream import finish_of, over


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
            return await discover_models(view, request)

    async def resolve_model(self, provider: str, model: str, signal: Signal | None = None) -> ResolvedModel | None:
        with self._consumer.leased("model resolution") as view:
            route = view.registry(ROUTES).get(provider)
            return None if route is None else await models.resolve(route.adapter, provider, model, signal)

    def prepare_call(
        self, proposal: LlmCallConfig, *, signal: Signal | None = None
    ) -> AbstractAsyncContextManager[PreparedCall]:
        return prepared(self._consumer, proposal, signal, self._conversations, self._log.warning)

    @asynccontextmanager
    async def stream(self, request: GenerateOptions) -> AsyncIterator[ChunkStream]:
        config, refused = request.config, None
        async with AsyncExitStack() as stack:
            try:
                call = await stack.enter_async_context(self.prepare_call(config, signal=request.signal))
            except LlmError as exc:
                refused = finish_of(exc.failure)
            if refused is not None:
                yield over(refused)
                return
            effective = request
            if call.config != config:
                changes = {each.name: getattr(call.config, each.name) for each in fields(config)}
                effective = replace(request, **changes)
                self._conversations.pass_on(request, effective)
            yield await stack.enter_async_context(call.stream(effective))

    def mark_conversation(self, request: GenerateOptions) -> None:
        self._conversations.add(request)

    def is_conversation(self, request: GenerateOptions) -> bool:
        return request in self._conversations


def _check(view: Any) -> None:
    """Refuse a tree in which a row's `intercept` says of `llm` what no call can follow."""
    for path, row in view.rows.items():
        for index, (service, layer) in enumerate(row.intercept):
            if service == LLM.name:
                for key, why in problems(layer).items():
                    view.refuse_layer(path, index, key, why)


@plugin("llm", provides=[LLM], validate=_check)
async def llm(ctx: Context, config: Config) -> None:
    async def open_marks(_keeper: Context) -> AsyncIterator[WeakSet[GenerateOptions]]:
        yield WeakSet()

    key = SharedKey[WeakSet[GenerateOptions]]("llm conversations", (ctx.realm(LLM),))
    conversations = Conversations(await ctx.shared(key, open_marks))
    ctx.provide_each(LLM, lambda consumer: Service(consumer, conversations, ctx.log))
