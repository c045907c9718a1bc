"""What an adapter is: one object that turns requests for the routes it serves into streams of chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence

from dshd.kernel.signal import Signal

from .catalog import DiscoveredModel, ModelDiscoveryRequest, ModelInfo, ProviderInfo, ResolvedModel, RetryPolicy
from .failure import FailureCode, LlmError
from .request import GenerateOptions
from .stream import StreamChunk


class LlmAdapter(ABC):
    """Base of adapters. Only `stream` is needed; the rest says more about routes and models.

    One call of `stream` is one attempt: an adapter does not retry.
    """

    @abstractmethod
    def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        """Answer a request, chunk by chunk; best an async generator.

        Emits usage before `Finish`, and nothing after it. A failure is a `Finish` with `Failed` or `Aborted`, or any
        exception: `LlmError` keeps its failure, another one becomes a `PROVIDER_ERROR`. The service ends the stream by
        cancelling and closing it, so connections belong into `async with` and `finally`.
        """

    def provider_info(self, provider: str) -> ProviderInfo:
        """How a route of this adapter is shown."""
        return ProviderInfo(provider, provider)

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        """How failed calls of a route are to be retried; `None` leaves that to whoever retries."""
        return None

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        """The catalog of a route, which need not be complete."""
        return ()

    async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
        """What is known of one exact model, listed or not; `None` if nothing is."""
        return None

    async def discover_models(self, request: ModelDiscoveryRequest) -> Sequence[DiscoveredModel]:
        """The models of a draft. By default, where it edits a route of this adapter, those that its catalog lists.

        An adapter that can ask an endpoint says so here. Raises `LlmError` with `NO_DISCOVERY` where it cannot tell.
        """
        listed = () if request.provider is None else await self.list_models(request.provider)
        if listed:
            return [DiscoveredModel(id=model.id, name=model.name) for model in listed]
        raise LlmError("this adapter cannot ask an endpoint for its models", FailureCode.NO_DISCOVERY)
