"""The contract of `LLM`: the `llm` row keeps it, and it catches one that does not."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dshd import Config, Context, Signal, plugin
from dshd.capabilities.llm import (
    LLM,
    ROUTES,
    ChunkStream,
    ConfigurableProvider,
    DirectoryEntry,
    DiscoveredModel,
    EpochHeader,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    ModelDiscoveryRequest,
    ModelInfo,
    PreparedCall,
    ProviderInfo,
    ResolvedModel,
    RetryPolicy,
    Route,
    ToolSchema,
)
from dshd.capabilities.llm.service import Discoverer
from dshd.testing.contracts.llm import LlmContract
from dshd_plugins.llm import llm

pytestmark = pytest.mark.anyio


class TestLlm(LlmContract):
    plugin = llm


class Careless:
    """A service as one writes it in an afternoon: it keeps what it is given, and passes on what comes."""

    def __init__(self, consumer: Context, kept: dict[str, LlmAdapter]) -> None:
        self.consumer, self.kept = consumer, kept
        self.marked: list[GenerateOptions] = []

    def register_adapter(self, providers: Sequence[str], adapter: LlmAdapter) -> "Registered":
        for name in providers:
            self.kept[name] = adapter
            self.consumer.registry(ROUTES).add(name, Route(adapter, ProviderInfo(name, name), None))
        return Registered(self.kept, adapter)

    def register_configurable_providers(
        self,
        providers: Sequence[ConfigurableProvider],
        *,
        discover: Discoverer | None = None,
        apis: Sequence[str] = (),
    ) -> None: ...

    def list_providers(self) -> list[ProviderInfo]:
        return [ProviderInfo(name, name) for name in self.kept]

    def directory(self) -> list[DirectoryEntry]:
        return [DirectoryEntry(info, live=True, configurable=None) for info in self.list_providers()]

    async def list_models(self, provider: str | None = None) -> list[ModelInfo]:
        asked = list(self.kept) if provider is None else [provider]
        return [model for name in asked for model in await self.kept[name].list_models(name)]

    async def discover_models(self, request: ModelDiscoveryRequest) -> list[DiscoveredModel]:
        return list(await self.kept[request.provider or ""].discover_models(request))

    async def resolve_model(self, provider: str, model: str, signal: Signal | None = None) -> ResolvedModel | None:
        return await self.kept[provider].resolve_model(provider, model, signal)

    @asynccontextmanager
    async def prepare_call(
        self, proposal: LlmCallConfig, *, signal: Signal | None = None
    ) -> AsyncIterator[PreparedCall]:
        yield Prepared(self, proposal)

    @asynccontextmanager
    async def stream(self, request: GenerateOptions) -> AsyncIterator[ChunkStream]:
        chunks: Any = self.kept[request.provider].stream(request)
        yield chunks

    def mark_conversation(self, request: GenerateOptions) -> None:
        self.marked.append(request)

    def is_conversation(self, request: GenerateOptions) -> bool:
        return request in self.marked


class Registered:
    def __init__(self, kept: dict[str, LlmAdapter], adapter: LlmAdapter) -> None:
        self.kept, self.adapter = kept, adapter

    def replace(self, providers: Sequence[str]) -> None:
        self.release()
        self.kept |= dict.fromkeys(providers, self.adapter)

    def release(self) -> None:
        for name in [name for name, adapter in self.kept.items() if adapter is self.adapter]:
            del self.kept[name]


class Prepared:
    model: ResolvedModel | None = None
    retry_policy: RetryPolicy | None = None

    def __init__(self, service: Careless, config: LlmCallConfig) -> None:
        self.service, self.config = service, config

    def header(
        self, system: str | None = None, tools: Sequence[ToolSchema] = (), seeds: dict[str, object] | None = None
    ) -> EpochHeader:
        return EpochHeader(config=self.config)

    def stream(self, request: GenerateOptions) -> Any:
        return self.service.stream(request)


@plugin("careless", provides=[LLM])
async def careless(ctx: Context, config: Config) -> None:
    kept: dict[str, LlmAdapter] = {}
    ctx.provide_each(LLM, lambda consumer: Careless(consumer, kept))


class CarelessContract(LlmContract):
    plugin = careless
    patience = 0.3


@pytest.mark.parametrize("name", [name for name in dir(LlmContract) if name.startswith("test_")])
@pytest.mark.filterwarnings("ignore:coroutine method 'aclose'")
async def test_the_contract_catches_a_careless_service(name: str) -> None:
    caught = False
    try:
        await getattr(CarelessContract(), name)()
    except BaseException:  # what an adapter raises is not contained there, so it may be anything
        caught = True
    assert caught
