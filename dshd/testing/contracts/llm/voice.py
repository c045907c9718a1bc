"""What the suite is made of: an adapter that says what a test wants, and rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import anyio
from structlog.testing import capture_logs

from dshd.capabilities.llm import (
    LLM,
    Aborted,
    BlockAssembler,
    Failed,
    Finish,
    GenerateOptions,
    Llm,
    LlmAdapter,
    LlmError,
    LlmFailure,
    ModelInfo,
    ModelReasoning,
    ProviderInfo,
    ReasoningEffort,
    ResolvedModel,
    RetryPolicy,
    Stop,
    StreamChunk,
    TextDelta,
)
from dshd.capabilities.values import text_of, user_message
from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.kernel.signal import Signal
from dshd.testing.kernel import running

Script: TypeAlias = Callable[[GenerateOptions], AsyncIterator[StreamChunk]]

# -- what tests are made of


async def hello(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
    """The plainest answer."""
    yield TextDelta(0, "hello")
    yield Finish(Stop())


async def stalled(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
    """An answer of which the end never comes."""
    yield TextDelta(0, "hello")
    await anyio.sleep_forever()


def raising(error: BaseException) -> Script:
    """An answer that breaks off with this error."""

    async def script(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield TextDelta(0, "hello")
        raise error

    return script


class Voice(LlmAdapter):
    """An adapter that answers by a script, and knows what it was asked and how many of its answers are open."""

    def __init__(
        self,
        script: Script = hello,
        *,
        models: Sequence[ResolvedModel] = (),
        retry: RetryPolicy | None = None,
        shown: Callable[[str], Any] = lambda provider: ProviderInfo(provider, provider.title()),
    ) -> None:
        self.script = script
        self.models = models
        self.retry = retry
        self.shown = shown
        self.requests: list[GenerateOptions] = []
        self.open = 0

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.requests.append(request)
        self.open += 1
        try:
            async with aclosing(self.script(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        finally:
            self.open -= 1

    def provider_info(self, provider: str) -> ProviderInfo:
        info: ProviderInfo = self.shown(provider)
        return info

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        return self.retry

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        return [ModelInfo(provider=provider, id=model.id, name=model.name) for model in self.models]

    async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
        return next((replace(each, provider=provider) for each in self.models if each.id == model), None)


def model(id: str = "m", efforts: Sequence[str] = (), default: str | None = None, **more: Any) -> ResolvedModel:
    """What an adapter knows of a model."""
    known = tuple(ReasoningEffort(effort, effort.title()) for effort in efforts)  # type: ignore[arg-type]
    reasoning = ModelReasoning(known, default) if efforts or default else None  # type: ignore[arg-type]
    return ResolvedModel(provider="", id=id, name=id.title(), reasoning=reasoning, **more)


def row(name: str, set_up: Callable[[Context], object] = lambda ctx: None) -> Plugin[Config]:
    """A row that injects the service and does something with its context."""

    @plugin(name, inject=[LLM])
    async def body(ctx: Context, config: Config) -> None:
        set_up(ctx)

    return body


def serving(name: str, adapter: LlmAdapter, *routes: str) -> Plugin[Config]:
    """A row that registers an adapter, by default under the name of the row."""
    return row(name, lambda ctx: ctx[LLM].register_adapter(list(routes or (name,)), adapter))


def service(ctx: Context) -> Llm:
    """The service as `ctx` sees it."""
    found = ctx.get(LLM)
    assert found is not None, "nobody provides the llm service"
    return found


async def consumer(root: Context, name: str = "consumer") -> Context:
    """The context of a row that does nothing by itself."""
    found: list[Context] = []
    await root.plugin(row(name, found.append)).settled()
    return found[-1]


def asking(provider: str = "voice", **more: Any) -> GenerateOptions:
    """A request."""
    return GenerateOptions(**{"provider": provider, "model": "m", "messages": [user_message("hi")], **more})


async def ask(ctx: Context, request: GenerateOptions | None = None) -> list[StreamChunk]:
    """Everything that comes of a request."""
    async with service(ctx).stream(request or asking()) as chunks:
        return [chunk async for chunk in chunks]


def text(chunks: Sequence[StreamChunk]) -> str:
    """The visible text of an answer."""
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return text_of(assembler.result().content)


def failure(chunks: Sequence[StreamChunk], kind: type[Aborted] | type[Failed] = Failed) -> LlmFailure:
    """The failure with which an answer ends; it has exactly one finish."""
    finishes = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    assert len(finishes) == 1, f"an answer has one finish: {chunks}"
    assert chunks[-1] is finishes[0], f"an answer ends with its finish: {chunks}"
    reason = finishes[0].reason
    assert isinstance(reason, kind), f"wanted {kind.__name__}, but this came: {reason!r}"
    return reason.failure


@contextmanager
def refused(code: str, *words: str) -> Iterator[list[LlmError]]:
    """The block raises an `LlmError` of this code that has all these words; it is in the list afterwards."""
    caught: list[LlmError] = []
    error: LlmError | None = None
    try:
        yield caught
    except LlmError as exc:
        error = exc
        caught.append(exc)
    assert error is not None, f"nothing raised {code}"
    assert error.code == code, f"wanted {code}, but this came: {error.code}: {error}"
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{str(error)!r} does not name {missing}"


def routes(ctx: Context) -> list[str]:
    return [provider.id for provider in service(ctx).list_providers()]


async def replaced(root: Context, fiber: Fiber) -> Fiber:
    """Put another instance in the place of a row, by a commit; give it."""
    async with root.kernel.stage() as stage:
        successor = stage.replace(fiber)
        await stage.settled()
        stage.commit()
    return successor


Mounted: TypeAlias = "tuple[Context, Fiber]"


class Mounting:
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `LLM` and needs no config."""

    plugin: ClassVar[Plugin[Any]]
    patience: ClassVar[float] = 20
    """Seconds after which a test that hangs has failed."""

    @asynccontextmanager
    async def mounted(self, *rows: Plugin[Config]) -> AsyncIterator[Mounted]:
        """A kernel with the provider and these rows: the root, and the provider's row."""
        with anyio.fail_after(self.patience), capture_logs():
            async with running() as root:
                provider = root.plugin(self.plugin)
                await provider.settled()
                for each in rows:
                    await root.plugin(each).settled()
                yield root, provider
            assert not root.kernel.leases, "every lease is given back"


async def _after_a_moment(do: Callable[[], object]) -> None:
    await anyio.sleep(0.01)
    do()
