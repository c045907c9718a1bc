"""`ctx[LLM]`: who answers for which route, what they offer, and how a call is prepared and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dshd.kernel.events import Emit, Waterfall
from dshd.kernel.keys import RegistryKey, ServiceKey
from dshd.kernel.registry import RegistryChange
from dshd.kernel.signal import Signal

from .adapter import LlmAdapter
from .catalog import (
    ConfigurableProvider,
    DiscoveredModel,
    ModelDiscoveryRequest,
    ModelInfo,
    ProviderInfo,
    ResolvedModel,
    RetryPolicy,
)
from .request import EpochHeader, GenerateOptions, LlmCallConfig, ToolSchema
from .stream import StreamChunk


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One provider route, as the registry holds it: the adapter instance that serves it, and how it is shown."""

    adapter: LlmAdapter
    info: ProviderInfo
    retry_policy: RetryPolicy | None


Discoverer: TypeAlias = Callable[[ModelDiscoveryRequest], Awaitable[Sequence[DiscoveredModel]]]


@dataclass(frozen=True, slots=True, eq=False)
class ConfigurableOffer:
    """One configurable provider, as the registry holds it, with whoever can interrogate a draft of it."""

    provider: ConfigurableProvider
    discover: Discoverer | None
    apis: frozenset[str]


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A route that is live, or could be."""

    info: ProviderInfo
    live: bool
    configurable: ConfigurableProvider | None
    """How it is configured, if an adapter says so."""


class AdapterRegistration(Protocol):
    """What `register_adapter` gives. It acts on the entries, so it works across replacements of the `llm` row."""

    def replace(self, providers: Sequence[str]) -> None:
        """Serve exactly these routes from now on, with the same adapter instance; an empty set keeps the registration.

        Everything is validated first and swapped in one synchronous section. Raises `LlmError`, with the old routes in
        place: `DUPLICATE_ADAPTER`, `INVALID_REGISTRATION`, or `REGISTRATION_DISPOSED` once it was released.
        """

    def release(self) -> None:
        """Give up all routes. A second call does nothing."""


class ChunkStream(Protocol):
    """The chunks of one call, an async iterator. They end with exactly one `Finish`, unless middleware served them.

    Whoever waits for a chunk may give up waiting and ask again: nothing is lost. When the signal of the request says
    stop, an aborted finish comes at once in place of what had not been read.
    """

    def __aiter__(self) -> AsyncIterator[StreamChunk]: ...

    async def __anext__(self) -> StreamChunk: ...


class PreparedCall(Protocol):
    """A call bound to the registration that resolved it, until its block ends. To be streamed once."""

    @property
    def config(self) -> LlmCallConfig:
        """What is in effect: proposed, intercepted, and completed by the adapter's defaults."""

    @property
    def model(self) -> ResolvedModel | None:
        """What the adapter knows of the exact model; `None` where nobody does."""

    @property
    def retry_policy(self) -> RetryPolicy | None:
        """The policy of the registration it is bound to; `None` if it is bound to none."""

    def header(
        self, system: str | None = None, tools: Sequence[ToolSchema] = (), seeds: dict[str, object] | None = None
    ) -> EpochHeader:
        """The header to log before dispatch."""

    def stream(self, request: GenerateOptions) -> AbstractAsyncContextManager[ChunkStream]:
        """Dispatch `request`, whose config must be exactly this call's.

        Whatever the adapter's code does, and a missing adapter, is a `Finish` with `Failed` or `Aborted`; what a
        listener raises is raised. When the block ends everything that was opened for the stream is closed. Raises
        `LlmError` with `INVALID_PREPARED_CALL` for another config, a second use, or after the block of the call.
        """


class Llm(Protocol):
    """The service, as one consumer sees it: what is registered through it belongs to the consumer."""

    # -- registration

    def register_adapter(self, providers: Sequence[str], adapter: LlmAdapter) -> AdapterRegistration:
        """Serve these routes with one adapter instance, for the life of the consumer.

        Raises `LlmError`, having registered nothing: `INVALID_REGISTRATION` for an empty set, a bad name or bad
        metadata, `DUPLICATE_ADAPTER` for a route somebody serves.
        """

    def register_configurable_providers(
        self,
        providers: Sequence[ConfigurableProvider],
        *,
        discover: Discoverer | None = None,
        apis: Sequence[str] = (),
    ) -> None:
        """Say which routes configuration could activate, and who can interrogate a draft of one, or of an api."""

    # -- what there is

    def list_providers(self) -> list[ProviderInfo]:
        """The live routes."""

    def directory(self) -> list[DirectoryEntry]:
        """Live routes and those that configuration could activate."""

    async def list_models(self, provider: str | None = None) -> list[ModelInfo]:
        """The catalogs of one route or of all. A catalog that cannot be read is logged and left out.

        Raises `LlmError` with `NO_ADAPTER` for a route that is named and not live.
        """

    async def discover_models(self, request: ModelDiscoveryRequest) -> list[DiscoveredModel]:
        """The models of a draft: asked of the adapter of its route, else of who could activate it, else of its api.

        Raises `LlmError`, without the credential: `NO_DISCOVERY`, `ABORTED`, or what the adapter raises.
        """

    async def resolve_model(self, provider: str, model: str, signal: Signal | None = None) -> ResolvedModel | None:
        """What the serving adapter knows of one exact model; `None` for nothing, also where no adapter is.

        Raises `LlmError`: `ABORTED`, what the adapter raises, and `PROVIDER_ERROR` for an answer that cannot be right.
        """

    # -- calls

    def prepare_call(
        self, proposal: LlmCallConfig, *, signal: Signal | None = None
    ) -> AbstractAsyncContextManager[PreparedCall]:
        """Validate a proposal with its adapter and bind the call to that registration until the block ends.

        The consumer's `intercept` layers over `llm` are laid over the proposal (the smaller cap wins), then the adapter
        fills in effort and output cap. Without an adapter the proposal stays as it is, for a listener to serve.
        Raises `LlmError`: `INVALID_CALL_CONFIG` for a layer that is none and where provider or model are still
        missing, `UNSUPPORTED_EFFORT`, `ABORTED`, or what the adapter answers to the question about its model.
        """

    def stream(self, request: GenerateOptions) -> AbstractAsyncContextManager[ChunkStream]:
        """Prepare and dispatch a call in one, with the effective config in place of the request's.

        What `prepare_call` raises is a terminal finish here.
        """

    # -- whose request it is

    def mark_conversation(self, request: GenerateOptions) -> None:
        """Remember that this very object is a request of an agent's loop."""

    def is_conversation(self, request: GenerateOptions) -> bool:
        """Whether this very object was marked."""


LLM = ServiceKey[Llm]("llm")

ADAPTERS_UPDATED = Emit[RegistryChange]("llm/adapters-updated")
ROUTES = RegistryKey[Route]("route", of=LLM, changed=ADAPTERS_UPDATED)
CONFIGURABLE_PROVIDERS = RegistryKey[ConfigurableOffer]("configurable provider", of=LLM)

LLM_STREAM = Waterfall[GenerateOptions, "AsyncIterator[StreamChunk]"](
    "llm/stream", subject=lambda request: request.scope
)
"""Around every streaming call. `await next()` gives the iterator of chunks; a listener may return its own instead.

Whatever a listener returns is driven by a task of its own, and closed when the consumer's block ends.
"""
