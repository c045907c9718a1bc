"""The suite for whoever provides `LLM`, and the adapter its tests ask.

class TestMine(LlmContract):
    plugin = my_llm
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import anyio
from structlog.testing import capture_logs

from dshd.capabilities.llm import (
    ADAPTERS_UPDATED,
    LLM,
    LLM_STREAM,
    Aborted,
    AdapterRegistration,
    BlockAssembler,
    ConfigurableProvider,
    DiscoveredModel,
    Failed,
    Finish,
    GenerateOptions,
    Llm,
    LlmAdapter,
    LlmCallConfig,
    LlmError,
    LlmFailure,
    ModelDiscoveryRequest,
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
from dshd.capabilities.values import Message, ModelSource, TextBlock, message_id, text_of, user_message
from dshd.kernel.context import Context
from dshd.kernel.events import Next
from dshd.kernel.fiber import Fiber
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.kernel.signal import Aborter, Signal
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


def same(found: object, wanted: object) -> None:
    """What came is what is wanted, which the name of the test says; if not, both are shown."""
    assert found == wanted, f"wanted {wanted!r}, but this came: {found!r}"


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


class LlmContract:
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

    # -- registration

    async def test_a_route_is_there_for_as_long_as_the_row_that_serves_it(self) -> None:
        async with self.mounted() as (root, _):
            same(routes(root), [])
            fiber = root.plugin(serving("voice", Voice(), "one", "two"))
            await fiber.settled()
            same(service(root).list_providers(), [ProviderInfo("one", "One"), ProviderInfo("two", "Two")])
            await fiber.dispose()
            same(routes(root), [])

    async def test_a_registration_that_is_wrong_in_one_route_registers_none(self) -> None:
        async with self.mounted(serving("first", Voice(), "taken")) as (root, _):
            ctx = await consumer(root)
            llm = service(ctx)
            for wrong in ([], ["new", ""], ["new", "a b"], ["new", "a/b"], ["new", "new"], "new"):
                with refused("INVALID_REGISTRATION"):
                    llm.register_adapter(wrong, Voice())
            with refused("INVALID_REGISTRATION"):
                llm.register_adapter(["new"], Voice(shown=lambda provider: None))
            with refused("DUPLICATE_ADAPTER", "'taken'", "'first'", "'consumer'"):
                llm.register_adapter(["new", "taken"], Voice())
            same(routes(root), ["taken"])

    async def test_a_set_of_routes_is_replaced_in_one_step(self) -> None:
        async with self.mounted() as (root, _):
            ctx, seen = await consumer(root), list[list[str]]()
            root.on(ADAPTERS_UPDATED, lambda change: seen.append(routes(root)))
            registration = service(ctx).register_adapter(["one", "two"], Voice())
            registration.replace(["two", "three", "four"])
            registration.replace([])
            registration.replace(["five"])
            same(seen, [["one", "two"], ["two", "three", "four"], [], ["five"]])

    async def test_a_replacement_that_is_refused_leaves_the_routes_as_they_were(self) -> None:
        async with self.mounted(serving("first", Voice(), "taken")) as (root, _):
            voice = Voice()
            registration = service(await consumer(root)).register_adapter(["one", "two"], voice)
            for wrong, code in ((["three", "taken"], "DUPLICATE_ADAPTER"), (["three", " "], "INVALID_REGISTRATION")):
                with refused(code):
                    registration.replace(wrong)
            voice.shown = lambda provider: None if provider == "three" else ProviderInfo(provider, provider)
            with refused("INVALID_REGISTRATION"):
                registration.replace(["one", "three"])
            same(routes(root), ["one", "two", "taken"])

    async def test_a_released_registration_stays_released(self) -> None:
        async with self.mounted() as (root, _):
            registration = service(await consumer(root)).register_adapter(["one"], Voice())
            registration.release()
            same(routes(root), [])
            with refused("REGISTRATION_DISPOSED"):
                registration.replace(["one"])
            registration.release()
            same(routes(root), [])

    async def test_routes_and_registrations_outlive_the_row_of_the_service(self) -> None:
        async with self.mounted() as (root, provider):
            kept: list[AdapterRegistration] = []
            voice = Voice()
            await root.plugin(
                row("voice", lambda ctx: kept.append(ctx[LLM].register_adapter(["one"], voice)))
            ).settled()
            await replaced(root, provider)
            same(routes(root), ["one"])
            kept[0].replace(["voice"])
            same(routes(root), ["voice"])
            same(text(await ask(root)), "hello")
            kept[0].release()
            same(routes(root), [])

    # -- what there is

    async def test_the_directory_shows_live_routes_and_those_that_could_be(self) -> None:
        offers = [
            ConfigurableProvider(provider=name, display_name=name.title(), settings_ns="voices", settings_path=(name,))
            for name in ("voice", "sleeper")
        ]
        declared = row("voices", lambda ctx: ctx[LLM].register_configurable_providers(offers))
        async with self.mounted(declared, serving("voice", Voice(), "voice", "other")) as (root, provider):
            await replaced(root, provider)
            found = {entry.info.id: (entry.live, entry.configurable) for entry in service(root).directory()}
            same(found, {"voice": (True, offers[0]), "other": (True, None), "sleeper": (False, offers[1])})

    async def test_a_catalog_that_cannot_be_read_hides_no_other(self) -> None:
        class Broken(Voice):
            async def list_models(self, provider: str) -> Sequence[ModelInfo]:
                raise RuntimeError("no catalog today")

        rows = (serving("voice", Voice(models=[model("a"), model("b")])), serving("broken", Broken()))
        async with self.mounted(*rows) as (root, _):
            same([m.id for m in await service(root).list_models()], ["a", "b"])
            same([m.provider for m in await service(root).list_models("voice")], ["voice", "voice"])
            with refused("NO_ADAPTER", "'ghost'", "voice"):
                await service(root).list_models("ghost")

    async def test_an_exact_model_is_described_by_the_adapter_that_serves_it(self) -> None:
        async with self.mounted(serving("voice", Voice(models=[model("a", ["low"])]))) as (root, _):
            same(await service(root).resolve_model("voice", "a"), replace(model("a", ["low"]), provider="voice"))
            same(await service(root).resolve_model("voice", "unlisted"), None)
            same(await service(root).resolve_model("ghost", "a"), None)

    async def test_a_draft_is_interrogated_by_whoever_can_and_its_key_goes_nowhere(self) -> None:
        asked: list[str] = []

        async def discover(request: ModelDiscoveryRequest) -> Sequence[DiscoveredModel]:
            asked.append(request.api_key or "")
            if request.base_url == "bad":
                raise RuntimeError(f"401 for {request.api_key}")
            return [DiscoveredModel(id="found")]

        offer = ConfigurableProvider(provider="sleeper", display_name="Sleeper", settings_ns="voices")

        def declare(ctx: Context) -> None:
            ctx[LLM].register_configurable_providers([offer], discover=discover, apis=["speech"])

        voice = Voice(models=[model("known")])
        async with self.mounted(row("voices", declare), serving("voice", voice)) as (root, _):
            llm = service(root)

            async def found(**draft: Any) -> list[str]:
                return [m.id for m in await llm.discover_models(ModelDiscoveryRequest(**draft))]

            same(await found(provider="voice"), ["known"])
            same(asked, [])
            same(await found(provider="sleeper", base_url="x"), ["found"])
            same(await found(base_url="x", api="speech", api_key="s3cret"), ["found"])
            same(asked, ["", "s3cret"])
            for draft in ({"base_url": "x", "api": "song"}, {"api": "speech"}, {}):
                with refused("NO_DISCOVERY"):
                    await found(**draft)
            with refused("PROVIDER_ERROR", "401") as caught:
                await found(base_url="bad", api="speech", api_key="s3cret")
            error = caught[0]
            assert "s3cret" not in repr((error, error.failure, error.__cause__, error.__context__)), "the key leaks"

    # -- preparation

    async def test_a_call_is_completed_by_its_adapter_and_the_marks_say_so(self) -> None:
        retry = RetryPolicy(max_retries=2)
        voice = Voice(models=[model("m", ["low", "high"], "high", default_max_tokens=500)], retry=retry)
        async with self.mounted(serving("voice", voice)) as (root, _):
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
                same(call.config, LlmCallConfig(provider="voice", model="m", reasoning_effort="high", max_tokens=500))  # type: ignore[arg-type]
                same(call.header().adapter_defaults, {"reasoning_effort", "max_tokens"})
                same(call.retry_policy, retry)
                same(call.model, replace(voice.models[0], provider="voice"))
            chosen = LlmCallConfig(provider="voice", model="m", reasoning_effort="low", max_tokens=7)  # type: ignore[arg-type]
            async with service(root).prepare_call(chosen) as call:
                same(call.config, chosen)
                same(call.header().adapter_defaults, frozenset())

    async def test_an_effort_that_a_model_has_not_is_refused_by_name(self) -> None:
        async with self.mounted(serving("voice", Voice(models=[model("m", ["low", "high"])]))) as (root, _):
            asked = LlmCallConfig(provider="voice", model="m", reasoning_effort="extreme")  # type: ignore[arg-type]
            with refused("UNSUPPORTED_EFFORT", "extreme", "low", "high"):
                async with service(root).prepare_call(asked):
                    pass

    async def test_layers_are_laid_over_a_proposal_and_of_caps_the_smallest_holds(self) -> None:
        voice = Voice(models=[model("m", ["low"]), model("n", ["low"], default_max_tokens=5000)])
        async with self.mounted(serving("voice", voice)) as (root, _):
            outer = root.intercept(LLM, max_tokens=100, model="n", temperature=0.5)
            ctx = await consumer(outer.intercept(LLM, max_tokens=900, effort="low"))
            async with service(ctx).prepare_call(LlmCallConfig(provider="voice", model="m", max_tokens=200)) as call:
                same((call.config.model, call.config.max_tokens), ("n", 100))
                same((call.config.temperature, call.config.reasoning_effort), (0.5, "low"))
                header = call.header()
            same(header.proposal(), LlmCallConfig(provider="voice", model="m", max_tokens=200))
            same(header.adapter_defaults, frozenset())

    async def test_a_layer_that_is_none_is_refused_by_name(self) -> None:
        wrong: list[Mapping[str, Any]] = [{"modle": "m"}, {"max_tokens": "many"}, {"max_tokens": 0}, {"stop": "END"}]
        async with self.mounted(serving("voice", Voice())) as (root, _):
            for number, layer in enumerate(wrong):
                ctx = await consumer(root.intercept(LLM, **layer), f"row-{number}")
                with refused("INVALID_CALL_CONFIG", next(iter(layer)), f"row-{number}"):
                    async with service(ctx).prepare_call(LlmCallConfig(provider="voice", model="m")):
                        pass

    async def test_a_prepared_call_is_good_for_one_request_of_exactly_its_config(self) -> None:
        async with self.mounted(serving("voice", Voice())) as (root, _):
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
                with refused("INVALID_PREPARED_CALL", "temperature"):
                    async with call.stream(asking(temperature=1.0)):
                        pass
                async with call.stream(asking()) as chunks:
                    same(text([chunk async for chunk in chunks]), "hello")
                with refused("INVALID_PREPARED_CALL"):
                    async with call.stream(asking()):
                        pass
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as late:
                pass
            with refused("INVALID_PREPARED_CALL"):
                async with late.stream(asking()):
                    pass

    async def test_a_call_keeps_the_adapter_it_was_prepared_with(self) -> None:
        voices: list[Voice] = []

        def one_more(ctx: Context) -> None:
            voices.append(Voice(retry=RetryPolicy(max_retries=len(voices))))
            ctx[LLM].register_adapter(["voice"], voices[-1])

        async with self.mounted() as (root, provider):
            fiber = root.plugin(row("voice", one_more))
            await fiber.settled()
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
                await replaced(root, fiber)
                await replaced(root, provider)
                await anyio.wait_all_tasks_blocked()
                assert not fiber.closed, "the row of the adapter stays open for the call"
                async with call.stream(asking()) as chunks:
                    same(text([chunk async for chunk in chunks]), "hello")
                same([len(voice.requests) for voice in voices], [1, 0])
                same(call.retry_policy, RetryPolicy(max_retries=0))
            await fiber.closing()
            await ask(root)
            same([len(voice.requests) for voice in voices], [1, 1])

    # -- streaming

    async def test_a_route_without_adapter_fails_only_where_nobody_else_serves_it(self) -> None:
        async with self.mounted(serving("other", Voice())) as (root, _):
            asked = LlmCallConfig(provider="ghost", model="m", reasoning_effort="any")  # type: ignore[arg-type]
            async with service(root).prepare_call(asked) as call:
                same((call.config, call.model, call.retry_policy), (asked, None, None))
            same(failure(await ask(root, asking("ghost"))).code, "NO_ADAPTER")

            async def serve(request: GenerateOptions, next: Next[AsyncIterator[StreamChunk]]) -> Any:
                return hello(request) if request.provider == "ghost" else await next()

            root.on(LLM_STREAM, serve)
            same(text(await ask(root, asking("ghost"))), "hello")

    async def test_whatever_an_adapter_does_its_stream_ends_with_one_finish(self) -> None:
        async def silent(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield TextDelta(0, "hello")

        async def rubbish(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield "hello"  # type: ignore[misc]

        async def talkative(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield Finish(Failed(LlmFailure(message="broken", code="MINE")))
            yield TextDelta(0, "and another thing")

        limited = LlmFailure(message="slowly", code="RATE_LIMITED", provider_retry_after_ms=50)
        faults: list[tuple[Script, str]] = [
            (raising(RuntimeError("broken")), "PROVIDER_ERROR"),
            (raising(SystemExit(3)), "PROVIDER_ERROR"),
            (raising(LlmError(limited)), "RATE_LIMITED"),
            (silent, "TRUNCATED"),
            (rubbish, "PROVIDER_ERROR"),
            (talkative, "MINE"),
        ]
        voice = Voice()
        async with self.mounted(serving("voice", voice)) as (root, _):
            for script, code in faults:
                voice.script = script
                same(failure(await ask(root)).code, code)
                same(voice.open, 0)

    async def test_what_a_listener_raises_is_raised_as_it_is(self) -> None:
        class Broken(Exception):
            pass

        async def refuse(request: GenerateOptions, next: Next[AsyncIterator[StreamChunk]]) -> Any:
            if request.temperature == 0:
                raise Broken
            chunks = await next()

            async def half() -> AsyncIterator[StreamChunk]:
                async for chunk in chunks:
                    yield chunk
                    raise Broken

            return half()

        voice = Voice(stalled)
        async with self.mounted(serving("voice", voice)) as (root, _):
            root.on(LLM_STREAM, refuse)
            for temperature in (0, 1):
                raised = False
                try:
                    await ask(root, asking(temperature=temperature))
                except Broken:
                    raised = True
                assert raised, "what a listener raises is no failure of a model"
            same(voice.open, 0)

    async def test_an_abort_ends_the_answer_at_once_and_closes_the_adapter(self) -> None:
        voice, aborter = Voice(stalled), Aborter()
        async with self.mounted(serving("voice", voice)) as (root, _):
            async with service(root).stream(asking(signal=aborter.signal)) as chunks:
                same(await anext(chunks), TextDelta(0, "hello"))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_after_a_moment, lambda: aborter.abort("the user"))
                    rest = [chunk async for chunk in chunks]
                found = failure(rest, Aborted)
                same(found.code, "ABORTED")
                assert "the user" in found.message, f"the cause is named: {found}"
            same(voice.open, 0)
            same(failure(await ask(root, asking(signal=aborter.signal)), Aborted).code, "ABORTED")

    async def test_leaving_early_in_any_way_closes_the_adapter(self) -> None:
        voice = Voice(stalled)
        async with self.mounted(serving("voice", voice)) as (root, _):
            async with service(root).stream(asking()) as chunks:
                await anext(chunks)
                same(voice.open, 1)
            same(voice.open, 0)
            error, caught = ValueError("mine"), None
            try:
                async with service(root).stream(asking()) as chunks:
                    await anext(chunks)
                    raise error
            except ValueError as exc:
                caught = exc
            assert caught is error, "what a consumer raises is raised as it is"
            same(voice.open, 0)
            with anyio.move_on_after(0.02):
                await ask(root)
            same(voice.open, 0)

    async def test_whoever_gives_up_waiting_for_a_chunk_loses_nothing(self) -> None:
        async def slow(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            async with anyio.create_task_group():  # a scope that spans the chunks
                for word in ("a", "b", "c"):
                    await anyio.sleep(0.02)
                    yield TextDelta(0, word)
                yield Finish(Stop())

        async with self.mounted(serving("voice", Voice(slow))) as (root, _):
            async with service(root).stream(asking()) as chunks:
                found: list[StreamChunk] = []
                while not found or not isinstance(found[-1], Finish):
                    with anyio.move_on_after(0.005):
                        found.append(await anext(chunks))
            same(text(found), "abc")

    async def test_a_stream_goes_on_while_everything_around_it_is_replaced(self) -> None:
        go = anyio.Event()

        async def patient(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield TextDelta(0, "before ")
            await go.wait()
            yield TextDelta(0, "after")
            yield Finish(Stop())

        kept: list[AdapterRegistration] = []
        voice = Voice(patient)
        async with self.mounted() as (root, provider):
            fiber = root.plugin(row("voice", lambda ctx: kept.append(ctx[LLM].register_adapter(["voice"], voice))))
            await fiber.settled()
            async with service(root).stream(asking()) as chunks:
                found = [await anext(chunks)]
                await replaced(root, provider)
                kept[0].replace(["elsewhere"])
                await replaced(root, fiber)
                await anyio.wait_all_tasks_blocked()
                assert not fiber.closed, "the row of the adapter stays open for the stream"
                go.set()
                found += [chunk async for chunk in chunks]
            same(text(found), "before after")
            await fiber.closing()

    # -- what adapters and listeners see

    async def test_replay_state_reaches_only_an_instance_that_owns_both_ends(self) -> None:
        def said(provider: str) -> Message:
            source = ModelSource(provider, "m", {"state": provider})
            return Message(message_id(), "assistant", (TextBlock("yes"),), source)

        messages = [said("voice"), said("sister"), said("stranger"), said("gone")]
        voice, stranger = Voice(), Voice()
        rows = (serving("voice", voice, "voice", "sister"), serving("stranger", stranger))
        async with self.mounted(*rows) as (root, _):
            for adapter, provider, shown in ((voice, "voice", (0, 1)), (stranger, "stranger", (2,))):
                request = asking(provider, messages=messages)
                await ask(root, request)
                got = adapter.requests[-1].messages
                same([message.id for message in got], [message.id for message in messages])
                states = [message.source.replay_state for message in got if isinstance(message.source, ModelSource)]
                same([index for index, state in enumerate(states) if state is not None], list(shown))
                same(list(request.messages), messages)

    async def test_a_request_cannot_be_changed_on_its_way(self) -> None:
        changes: list[Callable[[Any], object]] = [
            lambda request: setattr(request, "model", "other"),
            lambda request: setattr(request.messages[0], "role", "system"),
            lambda request: request.messages.append(request.messages[0]),
            lambda request: request.messages[0].source.replay_state.update(state=2),
        ]
        refusals: list[type[Exception]] = []

        async def meddle(request: GenerateOptions, next: Next[AsyncIterator[StreamChunk]]) -> Any:
            for change in changes:
                try:
                    change(request)
                except Exception as exc:
                    refusals.append(type(exc))
            return await next()

        message = Message(message_id(), "assistant", (TextBlock("yes"),), ModelSource("voice", "m", {"state": 1}))
        async with self.mounted(serving("voice", Voice())) as (root, _):
            root.on(LLM_STREAM, meddle)
            same(text(await ask(root, asking(messages=[message]))), "hello")
        same(len(refusals), len(changes))

    async def test_a_conversation_is_known_by_the_very_object_of_its_request(self) -> None:
        async with self.mounted(serving("voice", Voice())) as (root, provider):
            first, second = asking(), asking()
            service(root).mark_conversation(first)
            await replaced(root, provider)
            same((service(root).is_conversation(first), service(root).is_conversation(second)), (True, False))


async def _after_a_moment(do: Callable[[], object]) -> None:
    await anyio.sleep(0.01)
    do()
