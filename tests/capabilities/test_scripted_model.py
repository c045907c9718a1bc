"""The scripted model does what a test tells it, and keeps the contract that every adapter keeps. Broken ones do not."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from dshd import Config, Context, plugin
from dshd.capabilities.llm import (
    LLM,
    ROUTES,
    Aborted,
    BlockEnd,
    BlockStart,
    Failed,
    FailureCode,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmError,
    LlmFailure,
    MaxTokens,
    ProviderInfo,
    ReasoningDelta,
    ReplayEnvelope,
    RetryPolicy,
    Route,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCalls,
    UsageReport,
)
from dshd.capabilities.values import CallId, TextBlock, ToolCallBlock, text_of, user_message
from dshd.testing.contracts import adapter as contract
from dshd.testing.contracts.adapter import AdapterContract, AdapterUnderTest, Answer
from dshd.testing.kernel import running
from dshd.testing.model import NothingQueuedError, Reply, ScriptedModel

pytestmark = pytest.mark.anyio

BUSY = LlmFailure(message="busy", code=FailureCode.RATE_LIMITED)


def request(text: str = "hi", **changes: Any) -> GenerateOptions:
    return GenerateOptions(**{"provider": "scripted", "model": "m", "messages": [user_message(text)], **changes})


async def ask(model: LlmAdapter, text: str = "hi") -> list[StreamChunk]:
    return [chunk async for chunk in model.stream(request(text))]


# -- what it says


async def test_it_answers_in_the_order_in_which_answers_were_queued() -> None:
    model = ScriptedModel()
    model.reply("one")
    model.reply("two")
    assert model.queued == 2
    assert await ask(model) == [TextDelta(0, "one"), Finish(Stop())]
    assert await ask(model) == [TextDelta(0, "two"), Finish(Stop())]
    assert model.queued == 0


async def test_an_answer_has_reasoning_text_calls_usage_and_finish_in_this_order() -> None:
    usage = TokenUsage(input_tokens=9, output_tokens=3)
    model = ScriptedModel()
    asked = ToolCallBlock(CallId("mine"), "list", "")
    model.reply("I look.", reasoning="hm", calls=[("read", {"path": "é"}), ("read", "{raw"), asked], usage=usage)
    assert await ask(model) == [
        ReasoningDelta(0, "hm"),
        TextDelta(1, "I look."),
        ToolCallDelta(2, '{"path": "\\u00e9"}', CallId("call-1"), "read"),
        ToolCallDelta(3, "{raw", CallId("call-2"), "read"),
        ToolCallDelta(4, "", CallId("mine"), "list"),
        UsageReport(usage),
        Finish(ToolCalls()),
    ]


async def test_calls_have_ids_of_their_own_over_the_life_of_the_model() -> None:
    model = ScriptedModel()
    model.reply(calls=[("a", {})])
    model.reply(calls=[("b", {})])
    ids = [chunk.call_id for _ in range(2) for chunk in await ask(model) if isinstance(chunk, ToolCallDelta)]
    assert ids == ["call-1", "call-2"]


async def test_text_comes_in_the_pieces_that_were_asked_for() -> None:
    model = ScriptedModel()
    model.reply(["Hel", "", "lo"])
    model.reply("Hello", reasoning="abc", calls=[("f", "{1}")], piece=2)
    assert await ask(model) == [TextDelta(0, "Hel"), TextDelta(0, ""), TextDelta(0, "lo"), Finish(Stop())]
    assert await ask(model) == [
        ReasoningDelta(0, "ab"), ReasoningDelta(0, "c"),
        TextDelta(1, "He"), TextDelta(1, "ll"), TextDelta(1, "o"),
        ToolCallDelta(2, "{1", CallId("call-1"), "f"), ToolCallDelta(2, "}"),
        Finish(ToolCalls()),
    ]  # fmt: skip


async def test_chunks_are_said_exactly_as_given() -> None:
    chunks: list[StreamChunk] = [BlockStart(7, "text"), TextDelta(7, "a"), BlockEnd(7)]
    model = ScriptedModel()
    model.reply(chunks=chunks)
    model.reply(chunks=chunks, usage=TokenUsage(), finish=MaxTokens(), replay=ReplayEnvelope("r"))
    assert await ask(model) == chunks
    assert await ask(model) == [*chunks, UsageReport(TokenUsage()), Finish(MaxTokens(), ReplayEnvelope("r"))]


async def test_it_ends_as_it_is_told() -> None:
    model = ScriptedModel()
    model.reply("a", finish=MaxTokens(), replay=ReplayEnvelope("r", (None,)))
    model.reply("b", failure=BUSY)
    model.reply("c", finish=Aborted(BUSY))
    assert (await ask(model))[-1] == Finish(MaxTokens(), ReplayEnvelope("r", (None,)))
    assert await ask(model) == [TextDelta(0, "b"), Finish(Failed(BUSY))]
    assert (await ask(model))[-1] == Finish(Aborted(BUSY))


@pytest.mark.parametrize("error", [ValueError("mine"), LlmError(BUSY), SystemExit(3)])
async def test_it_raises_what_it_is_told_after_what_it_says(error: BaseException) -> None:
    model = ScriptedModel()
    model.reply(["par", "tial"], usage=TokenUsage(), raises=error)
    said = []

    async def listen() -> None:
        async for chunk in model.stream(request()):
            said.append(chunk)

    with pytest.raises(type(error)) as caught:
        await listen()
    assert caught.value is error
    assert said == [TextDelta(0, "par"), TextDelta(0, "tial"), UsageReport(TokenUsage())]
    assert model.open == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"failure": BUSY, "raises": ValueError()},
        {"finish": Stop(), "failure": BUSY},
        {"text": "a", "chunks": []},
        {"calls": [("a", {})], "chunks": []},
        {"replay": ReplayEnvelope("r"), "raises": ValueError()},
        {"replay": ReplayEnvelope("r"), "chunks": []},
        {"text": "a", "piece": 0},
    ],
)
async def test_an_answer_that_contradicts_itself_is_refused_where_it_is_written(fields: dict[str, Any]) -> None:
    model = ScriptedModel()
    with pytest.raises(ValueError, match=r"\w"):
        model.reply(**fields)
    assert model.queued == 0


# -- what it was asked


async def test_it_keeps_every_request_as_it_came() -> None:
    model = ScriptedModel()
    model.respond(lambda request: "fine")
    first, second = request("first"), request("second")
    for each in (first, second):
        async for _ in model.stream(each):
            pass
    assert model.requests == [first, second]
    assert model.requests[0] is first


async def test_a_request_without_an_answer_fails_and_says_what_to_do() -> None:
    model = ScriptedModel()
    model.reply("one")
    await ask(model)
    with pytest.raises(NothingQueuedError, match=r"request 2 .* 'why\?'.*model\.reply") as caught:
        await ask(model, "why?")
    assert (caught.value.number, caught.value.code) == (2, "NOTHING_QUEUED")
    assert caught.value.request is model.requests[1]
    assert caught.value.code not in RetryPolicy().retryable_codes
    assert model.open == 0


async def test_a_function_answers_what_nothing_is_queued_for() -> None:
    model = ScriptedModel()
    model.reply("queued")

    def respond(request: GenerateOptions) -> Reply | str:
        said = text_of(request.messages[-1].content)
        return Reply(calls=[("read", {"path": said})]) if said == "a" else f"you said {said}"

    model.respond(respond)
    assert [text_of([TextBlock(chunk.text) for chunk in await ask(model) if isinstance(chunk, TextDelta)])] == [
        "queued"
    ]
    assert (await ask(model, "b"))[0] == TextDelta(0, "you said b")
    assert (await ask(model, "a"))[0] == ToolCallDelta(0, '{"path": "a"}', CallId("call-1"), "read")


# -- pauses and streams


async def test_it_waits_where_the_test_says_until_the_test_lets_it_go_on() -> None:
    model = ScriptedModel()
    reply = model.reply(["Hel", "lo"])
    middle, end = reply.pause(before=1), reply.pause(before=3)
    said: list[StreamChunk] = []

    async def listen() -> None:
        async for chunk in model.stream(request()):
            said.append(chunk)
        said.append(TextDelta(9, "over"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await middle.reached.wait()
            await anyio.wait_all_tasks_blocked()
            assert said == [TextDelta(0, "Hel")]
            assert model.open == 1
            middle.go()
            await end.reached.wait()
            assert said[1:] == [TextDelta(0, "lo"), Finish(Stop())]
            end.go()
    assert said[-1] == TextDelta(9, "over")
    assert model.open == 0


async def test_a_pause_that_was_let_go_before_it_was_reached_holds_nothing_back() -> None:
    model = ScriptedModel()
    model.reply("a").pause(before=0).go()
    with anyio.fail_after(5):
        assert await ask(model) == [TextDelta(0, "a"), Finish(Stop())]


async def test_two_pauses_at_one_place_are_one_and_one_that_is_never_reached_is_refused() -> None:
    reply = Reply(text="a", calls=[("f", {})])
    assert reply.pause(before=1) is reply.pause(before=1)
    for place in (-1, 4):
        with pytest.raises(ValueError, match="3 chunks"):
            reply.pause(before=place)


async def test_open_counts_streams_until_they_are_over_closed_or_cancelled() -> None:
    model = ScriptedModel()
    model.respond(lambda request: Reply(text=["a", "b"]))
    streams: list[Any] = [model.stream(request()) for _ in range(3)]
    assert model.open == 0
    for stream in streams:
        await anext(stream)
    assert model.open == 3
    await streams[0].aclose()
    assert model.open == 2
    async for _ in streams[1]:
        pass
    assert model.open == 1
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(streams[2])
    assert scope.cancelled_caught
    assert model.open == 0


async def test_a_stream_gives_others_a_turn_between_its_chunks() -> None:
    model = ScriptedModel()
    model.reply(["a"] * 20)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await ask(model)
        tasks.cancel_scope.cancel()
    assert turns >= 20


# -- what it declares


async def test_it_declares_models_for_catalogs_and_for_exact_resolution() -> None:
    model = ScriptedModel()
    model.declare(
        "large", name="Large", description="slow", context_window=1000, default_max_tokens=100,
        efforts=["low", "high"], default_effort="high",
    )  # fmt: skip
    model.declare("bare")
    assert [(m.provider, m.id, m.name, m.description) for m in await model.list_models("mine")] == [
        ("mine", "large", "Large", "slow"), ("mine", "bare", "bare", None),
    ]  # fmt: skip
    large, bare = await model.resolve_model("mine", "large", None), await model.resolve_model("mine", "bare", None)
    assert large is not None
    assert large.context is not None
    assert large.reasoning is not None
    assert (large.provider, large.context.context_window, large.default_max_tokens) == ("mine", 1000, 100)
    assert [(effort.id, effort.name) for effort in large.reasoning.efforts] == [("low", "Low"), ("high", "High")]
    assert large.reasoning.default_effort == "high"
    assert bare is not None
    assert (bare.context, bare.default_max_tokens, bare.reasoning) == (None, None, None)
    assert await model.resolve_model("mine", "other", None) is None


async def test_it_has_the_retry_policy_it_was_given() -> None:
    policy = RetryPolicy(max_retries=1)
    assert ScriptedModel().retry_policy("mine") is None
    assert ScriptedModel(retry_policy=policy).retry_policy("mine") is policy


async def test_its_plugin_registers_it_for_routes_and_takes_them_back() -> None:
    @plugin("llm", provides=[LLM])
    async def stand_in(ctx: Context, config: Config) -> None:
        """As much of the service as registers an adapter."""

        class Face:
            def __init__(self, consumer: Context) -> None:
                self.consumer = consumer

            def register_adapter(self, providers: Sequence[str], adapter: LlmAdapter) -> None:
                for provider in providers:
                    route = Route(adapter, adapter.provider_info(provider), adapter.retry_policy(provider))
                    self.consumer.registry(ROUTES).add(provider, route)

        ctx.provide_each(LLM, cast(Any, Face))

    model = ScriptedModel()
    async with running(stand_in) as root:
        for providers, routes in (((), ["scripted"]), (("a", "b"), ["a", "b"])):
            mounted = root.plugin(model.plugin(*providers))
            await mounted.settled()
            assert list(root.registry(ROUTES)) == routes
            assert all(route.adapter is model for route in root.registry(ROUTES).values())
            await mounted.dispose()
            assert list(root.registry(ROUTES)) == []


# -- the contract, kept


class Scripted(AdapterUnderTest):
    """The scripted model, told to answer as a provider would; what its streams hold is that they are open."""

    def __init__(self, adapter: ScriptedModel) -> None:
        self.adapter = self.script = adapter

    def arrange(self, answer: Answer) -> None:
        dropped = LlmError("the connection was lost", FailureCode.TRUNCATED)
        reply = self.script.reply(
            list(answer.text),
            calls=answer.calls,
            usage=answer.usage,
            failure=BUSY if answer.end == "fail" else None,
            raises=dropped if answer.end == "drop" else None,
        )
        if answer.end == "stall":
            reply.pause(before=len(answer.text))

    @property
    def held(self) -> int:
        return self.script.open

    @property
    def attempts(self) -> int:
        return len(self.script.requests)


class TestScriptedModel(AdapterContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AdapterUnderTest]:
        yield Scripted(ScriptedModel())


# -- the contract, broken


class Broken(ScriptedModel):
    """It says at the end what `spoil` makes of a sound answer."""

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for chunk in self.spoil([chunk async for chunk in super().stream(request)]):
            yield chunk

    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return chunks


class Buffers(Broken):
    """It says nothing until the answer is whole."""


class ReportsUsageLate(Broken):
    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return sorted(chunks, key=lambda chunk: isinstance(chunk, UsageReport))


class ForgetsUsage(Broken):
    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return [chunk for chunk in chunks if not isinstance(chunk, UsageReport)]


class FinishesTwice(Broken):
    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return [*chunks, *(chunk for chunk in chunks if isinstance(chunk, Finish))]


class NeverFinishes(Broken):
    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return [chunk for chunk in chunks if not isinstance(chunk, Finish)]


class TidiesArguments(Broken):
    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return [
            replace(chunk, arguments=chunk.arguments.replace("\t", " ")) if isinstance(chunk, ToolCallDelta) else chunk
            for chunk in chunks
        ]


class PutsAllOnOneIndex(Broken):
    """Without ids there is nothing left that tells two calls of one name apart."""

    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return [ToolCallDelta(0, c.arguments, None, c.name) if isinstance(c, ToolCallDelta) else c for c in chunks]


class SaysWhatIsNoChunk(Broken):
    def spoil(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        return [cast(Any, {"type": "text-delta", "index": 0, "text": ""}), *chunks]


class CallsAFailureAnEnd(ScriptedModel):
    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            async for chunk in super().stream(request):
                failed = isinstance(chunk, Finish) and isinstance(chunk.reason, Failed)
                yield Finish(Stop()) if failed else chunk
        except LlmError:
            yield Finish(Stop())


class RaisesAfterItsFinish(ScriptedModel):
    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        async for chunk in super().stream(request):
            yield chunk
            if isinstance(chunk, Finish) and isinstance(chunk.reason, Failed):
                raise LlmError(chunk.reason.failure)


class Exits(ScriptedModel):
    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        async for chunk in super().stream(request):
            if isinstance(chunk, Finish) and isinstance(chunk.reason, Failed):
                raise SystemExit(1)
            yield chunk


class Retries(ScriptedModel):
    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for _ in range(2):
            async for chunk in super().stream(request):
                if isinstance(chunk, Finish) and isinstance(chunk.reason, Failed):
                    break
                yield chunk
            else:
                return


class Leaks(ScriptedModel):
    """It lets go only behind the last chunk of an answer, where one that is closed or cancelled never comes."""

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.open += 1
        async for chunk in super().stream(request):
            yield chunk
        self.open -= 1


class OpensEarly(ScriptedModel):
    """It opens something when it is called, and a generator that was never begun has no end in which to let it go."""

    def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.open += 1
        return self.said(request)

    async def said(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            async for chunk in super().stream(request):
                yield chunk
        finally:
            self.open -= 1


class IgnoresItsCancellation(ScriptedModel):
    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            async for chunk in super().stream(request):
                yield chunk
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.3)


class ChangesRequests(ScriptedModel):
    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        object.__setattr__(request, "tools", tuple(reversed(request.tools)))
        async for chunk in super().stream(request):
            yield chunk


class SharesItsState(ScriptedModel):
    """What the latest request is answered is kept on the adapter, where another request finds it."""

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.current: Any = super().stream(request)
        while True:
            try:
                yield await anext(self.current)
            except StopAsyncIteration:
                return


class HasAnotherName(ScriptedModel):
    def provider_info(self, provider: str) -> ProviderInfo:
        return ProviderInfo("another", "Another")


FAULTS: list[tuple[type[ScriptedModel], str]] = [
    (Buffers, "test_a_cancelled_stream_lets_go_at_once"),
    (ReportsUsageLate, "test_usage_comes_before_the_finish"),
    (ForgetsUsage, "test_usage_comes_before_the_finish"),
    (FinishesTwice, "test_the_text_is_whole_and_one_finish_ends_the_answer"),
    (NeverFinishes, "test_the_text_is_whole_and_one_finish_ends_the_answer"),
    (TidiesArguments, "test_arguments_are_the_raw_text_that_the_model_wrote"),
    (PutsAllOnOneIndex, "test_calls_of_one_answer_stay_apart"),
    (SaysWhatIsNoChunk, "test_the_text_is_whole_and_one_finish_ends_the_answer"),
    (CallsAFailureAnEnd, "test_a_failure_ends_the_stream_in_one_of_the_two_ways"),
    (CallsAFailureAnEnd, "test_an_answer_that_breaks_off_is_a_failure"),
    (RaisesAfterItsFinish, "test_a_failure_ends_the_stream_in_one_of_the_two_ways"),
    (Exits, "test_a_failure_ends_the_stream_in_one_of_the_two_ways"),
    (Retries, "test_one_stream_is_one_attempt"),
    (Leaks, "test_a_cancelled_stream_lets_go_at_once"),
    (Leaks, "test_a_stream_closed_in_the_middle_lets_go_at_once"),
    (Leaks, "test_a_stream_that_is_over_holds_nothing"),
    (OpensEarly, "test_a_stream_closed_before_its_first_chunk_holds_nothing"),
    (IgnoresItsCancellation, "test_a_cancelled_stream_lets_go_at_once"),
    (IgnoresItsCancellation, "test_a_stream_closed_in_the_middle_lets_go_at_once"),
    (ChangesRequests, "test_a_request_is_as_it_was"),
    (SharesItsState, "test_answers_at_the_same_time_do_not_mix"),
    (HasAnotherName, "test_a_route_is_shown_under_its_own_name"),
]


@pytest.mark.parametrize(("broken", "fault"), FAULTS)
async def test_an_adapter_with_a_fault_fails_the_test_of_it(
    broken: type[ScriptedModel], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "AT_ONCE", 0.1)
    monkeypatch.setattr(contract, "PATIENCE", 0.2)

    class Suite(AdapterContract):
        @asynccontextmanager
        async def opened(self) -> AsyncIterator[AdapterUnderTest]:
            yield Scripted(broken())

    with pytest.raises(AssertionError):
        await getattr(Suite(), fault)()


async def test_an_adapter_that_says_nothing_is_found_and_does_not_hang_the_suite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contract, "PATIENCE", 0.05)

    class Silent(ScriptedModel):
        async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            await anyio.sleep_forever()
            yield TextDelta(0, "")

    class Suite(AdapterContract):
        @asynccontextmanager
        async def opened(self) -> AsyncIterator[AdapterUnderTest]:
            yield Scripted(Silent())

    with anyio.fail_after(5), pytest.raises(AssertionError, match="nothing came"):
        await Suite().test_a_failure_ends_the_stream_in_one_of_the_two_ways()


def test_every_test_of_the_contract_fails_for_somebody() -> None:
    tests = {name for name in vars(AdapterContract) if name.startswith("test_")}
    assert tests == {fault for _, fault in FAULTS}
