"""Prepared calls of the `llm` row: what is in effect, who fills in what, and how long a call is good."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from dshd import Aborter, Context, Signal
from dshd.capabilities.llm import (
    LLM,
    LLM_STREAM,
    Aborted,
    GenerateOptions,
    LlmCallConfig,
    LlmError,
    ModelContext,
    ModelInfo,
    ModelReasoning,
    PreparedCall,
    ReasoningEffort,
    ResolvedModel,
    ToolSchema,
)
from dshd.capabilities.values import ReasoningEffortId
from dshd.testing.contracts.llm import (
    Voice,
    ask,
    asking,
    consumer,
    failure,
    model,
    refused,
    row,
    service,
    serving,
    text,
)
from dshd.testing.kernel import running
from dshd_plugins.llm import llm

pytestmark = pytest.mark.anyio


def proposal(**fields: Any) -> LlmCallConfig:
    return LlmCallConfig(**{"provider": "voice", "model": "m", **fields})


@asynccontextmanager
async def preparing(
    voice: Voice | None, asked: LlmCallConfig, *layers: dict[str, Any], signal: Signal | None = None
) -> AsyncIterator[PreparedCall]:
    """A call prepared for a row over which `layers` are laid, the outermost first."""
    rows = [llm] if voice is None else [llm, serving("voice", voice)]
    async with running(*rows) as root:
        ctx = root
        for layer in layers:
            ctx = ctx.intercept(LLM, **layer)
        async with service(await consumer(ctx)).prepare_call(asked, signal=signal) as call:
            yield call


async def refusal(voice: Voice | None, asked: LlmCallConfig, *layers: dict[str, Any]) -> None:
    async with running(*([llm] if voice is None else [llm, serving("voice", voice)])) as root:
        ctx = root
        for layer in layers:
            ctx = ctx.intercept(LLM, **layer)
        try:
            async with service(await consumer(ctx)).prepare_call(asked):
                pass
        finally:
            assert not root.kernel.leases


# -- what the adapter fills in


@pytest.mark.parametrize(
    ("known", "asked", "effort", "cap", "marks"),
    [
        (model("m", ["low", "high"]), {}, None, None, set()),
        (model("m", ["low", "high"], "high"), {}, "high", None, {"reasoning_effort"}),
        (model("m", ["low", "high"], "high"), {"reasoning_effort": "low"}, "low", None, set()),
        (model("m", default_max_tokens=10), {}, None, 10, {"max_tokens"}),
        (model("m", default_max_tokens=10), {"max_tokens": 99}, None, 99, set()),
        (model("other", ["low"]), {"reasoning_effort": "any"}, "any", None, set()),
    ],
)
async def test_defaults_are_filled_in_only_where_nothing_was_asked_for(
    known: ResolvedModel, asked: dict[str, Any], effort: str | None, cap: int | None, marks: set[str]
) -> None:
    async with preparing(Voice(models=[known]), proposal(**asked)) as call:
        assert (call.config.reasoning_effort, call.config.max_tokens) == (effort, cap)
        assert call.header().adapter_defaults == marks
        assert call.header().proposal() == proposal(**asked)


@pytest.mark.parametrize(("efforts", "words"), [(["low", "high"], "'low', 'high'"), ([], "none to choose from")])
async def test_an_effort_is_never_clamped_but_refused_with_what_there_is(efforts: list[str], words: str) -> None:
    voice = Voice(models=[replace(model("m"), reasoning=ModelReasoning(tuple(map(_effort, efforts))))])
    with refused("UNSUPPORTED_EFFORT", "'highest'", "'m'", "'voice'", words):
        await refusal(voice, proposal(reasoning_effort="highest"))


def _effort(id: Any) -> ReasoningEffort:
    return ReasoningEffort(ReasoningEffortId(id), "name")


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (lambda: model("m", ["low"], "high"), "default effort 'high'"),
        (lambda: model("m", ["low", "low"]), "efforts"),
        (lambda: replace(model("m"), reasoning=ModelReasoning((_effort(""),))), "efforts"),
        (lambda: replace(model("m"), reasoning=ModelReasoning((_effort(7),))), "efforts"),
        (lambda: replace(model("m"), reasoning="a lot"), "reasoning"),  # type: ignore[arg-type]
        (lambda: replace(model("m"), reasoning=ModelReasoning(("low",))), "id"),  # type: ignore[arg-type]
        (lambda: model("m", default_max_tokens=-5), "default_max_tokens"),
        (lambda: model("m", default_max_tokens=True), "default_max_tokens"),
        (lambda: model("m", default_max_tokens=2**60), "default_max_tokens"),
        (lambda: model("m", context=ModelContext(0)), "context_window"),
        (lambda: model("m", context=100_000), "context"),
        (lambda: replace(model("m"), id="other"), "'other'"),
        (lambda: replace(model("m"), provider="elsewhere"), "'elsewhere'"),
        (lambda: ModelInfo(provider="voice", id="m", name="M"), "ModelInfo"),
        (lambda: "m", "str"),
    ],
)
async def test_an_adapter_that_contradicts_itself_is_named(known: Callable[[], Any], words: str) -> None:
    class Confused(Voice):
        async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
            found = known()
            unset = isinstance(found, ResolvedModel) and not found.provider
            given: ResolvedModel = replace(found, provider=provider) if unset else found
            return given

    with refused("PROVIDER_ERROR", "'voice'", "'m'", words):
        await refusal(Confused(), proposal())


# -- layers


@pytest.mark.parametrize(
    ("layers", "asked", "default", "effective", "marked"),
    [
        ([{"max_tokens": 100}], 200, None, 100, False),
        ([{"max_tokens": 300}], 200, None, 200, False),
        ([{"max_tokens": 100}, {"max_tokens": 300}], 200, None, 100, False),
        ([{"max_tokens": 100}], None, None, 100, False),
        ([{"max_tokens": 100}], None, 50, 50, True),
        ([{"max_tokens": 100}], None, 100, 100, True),
        ([{"max_tokens": 100}], None, 500, 100, False),
        ([{"max_tokens": None}], None, 500, 500, True),
        ([{"max_tokens": "100"}], 200, None, 100, False),
    ],
)
async def test_of_caps_the_smallest_holds(
    layers: list[dict[str, Any]], asked: int | None, default: int | None, effective: int, marked: bool
) -> None:
    voice = Voice(models=[model("m", default_max_tokens=default)])
    async with preparing(voice, proposal(max_tokens=asked), *layers) as call:
        assert call.config.max_tokens == effective
        assert ("max_tokens" in call.header().adapter_defaults) is marked
        assert ("max_tokens" in call.header().intercepted) is (not marked and effective != asked)
        assert call.header().proposal().max_tokens == asked


async def test_an_inner_layer_counts_before_an_outer_one_and_both_before_the_proposal() -> None:
    outer = {"route": "voice", "model": "outer", "temperature": 0.1, "stop": ["a", "b"], "effort": None}
    inner = {"model": "m", "effort": "low"}
    asked = LlmCallConfig(provider="ghost", model="x", temperature=1, stop=("c",))
    async with preparing(Voice(models=[model("m", ["low", "high"], "high")]), asked, outer, inner) as call:
        assert call.config == LlmCallConfig(
            provider="voice", model="m", reasoning_effort=ReasoningEffortId("low"), temperature=0.1, stop=("a", "b")
        )
        header = call.header()
    assert header.adapter_defaults == frozenset()
    assert dict(header.intercepted) == {
        "provider": "ghost", "model": "x", "reasoning_effort": None, "temperature": 1.0, "stop": ("c",)
    }  # fmt: skip
    assert header.proposal() == asked


async def test_what_a_layer_says_as_well_is_not_called_changed() -> None:
    async with preparing(Voice(), proposal(temperature=0.5), {"temperature": 0.5, "model": "m"}) as call:
        assert dict(call.header().intercepted) == {}


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"modle": "x"}, ("modle", "did you mean 'model'")),
        ({"provider": "x"}, ("provider", "route, model, effort, temperature, max_tokens and stop")),
        ({"route": 7}, ("route", "name of a route")),
        ({"route": ""}, ("route",)),
        ({"temperature": "warm"}, ("temperature", "a number")),
        ({"temperature": True}, ("temperature",)),
        ({"temperature": float("nan")}, ("temperature",)),
        ({"max_tokens": True}, ("max_tokens", "a whole number above 0")),
        ({"max_tokens": 0.5}, ("max_tokens",)),
        ({"max_tokens": 2**60}, ("max_tokens",)),
        ({"stop": "END"}, ("stop", "a list of texts")),
        ({"stop": [""]}, ("stop",)),
        ({"max_tokens": -1, "effrot": "low"}, ("max_tokens", "effrot")),
    ],
)
async def test_a_layer_that_is_none_is_refused_with_the_row_and_the_key(
    layer: dict[str, Any], words: Sequence[str]
) -> None:
    with refused("INVALID_CALL_CONFIG", "row 'consumer'", *words):
        await refusal(Voice(), proposal(), {"model": "fine"}, layer)


# -- route and model


@pytest.mark.parametrize(
    ("asked", "lacks"),
    [
        (LlmCallConfig(model="m"), "no provider"),
        (LlmCallConfig(provider="voice"), "no model"),
        (LlmCallConfig(), "no provider and model"),
    ],
)
async def test_a_call_without_a_route_or_a_model_is_refused_unless_a_layer_has_it(
    asked: LlmCallConfig, lacks: str
) -> None:
    with refused("INVALID_CALL_CONFIG", lacks):
        await refusal(Voice(), asked)
    async with preparing(Voice(), asked, {"route": "voice", "model": "m"}) as call:
        assert call.config == proposal()


async def test_a_route_without_adapter_is_left_to_listeners_as_it_was_proposed() -> None:
    asked = proposal(provider="ghost", reasoning_effort="any", max_tokens=5)
    async with preparing(None, asked) as call:
        assert (call.config, call.model, call.retry_policy) == (asked, None, None)
        async with call.stream(asking("ghost", reasoning_effort="any", max_tokens=5)) as chunks:
            found = failure([chunk async for chunk in chunks])
    assert (found.code, "'ghost'" in found.message) == ("NO_ADAPTER", True)


# -- asking the adapter


async def test_a_question_that_is_aborted_ends_at_once_and_holds_nothing() -> None:
    asked, ended = anyio.Event(), list[str]()

    class Slow(Voice):
        async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
            asked.set()
            try:
                return await anyio.sleep_forever()  # type: ignore[func-returns-value]
            finally:
                ended.append("cancelled")

    aborter = Aborter()
    async with running(llm, serving("voice", Slow())) as root:
        async with anyio.create_task_group() as tasks:

            async def abort() -> None:
                await asked.wait()
                aborter.abort("the user")

            tasks.start_soon(abort)
            with anyio.fail_after(5), refused("ABORTED", "the user"):
                async with service(root).prepare_call(proposal(), signal=aborter.signal):
                    pass
        assert ended == ["cancelled"]
        with refused("ABORTED", "the user"):
            async with service(root).prepare_call(proposal(provider="ghost"), signal=aborter.signal):
                pass
        with refused("ABORTED"):
            await service(root).resolve_model("voice", "m", aborter.signal)
        assert not root.kernel.leases


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (LlmError("no such model", "INVALID_REQUEST"), "INVALID_REQUEST", ["no such model"]),
        (RuntimeError("boom"), "PROVIDER_ERROR", ["'m'", "'voice'", "RuntimeError: boom"]),
        (SystemExit(3), "PROVIDER_ERROR", ["'voice'", "SystemExit"]),
    ],
)
@pytest.mark.parametrize("signalled", [False, True])
async def test_an_adapter_that_fails_to_answer_fails_the_preparation(
    error: BaseException, code: str, words: list[str], signalled: bool
) -> None:
    signal = Aborter().signal if signalled else None

    class Failing(Voice):
        async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
            raise error

    async with running(llm, serving("voice", Failing())) as root:
        with refused(code, *words):
            async with service(root).prepare_call(proposal(), signal=signal):
                pass
        assert not root.kernel.leases
        found = failure(await ask(root, asking(signal=signal)))
        assert found.code == code


# -- the call


async def test_the_header_has_what_the_request_is_made_of() -> None:
    tools = [ToolSchema("b", "B", {"type": "object"}), ToolSchema("a", "A", {"type": "object"})]
    async with preparing(Voice(models=[model("m", default_max_tokens=9)]), proposal()) as call:
        header = call.header("You are a test.", tools, {"model": "m"})
        assert (header.system, header.tools, dict(header.seeds)) == ("You are a test.", tuple(tools), {"model": "m"})
        assert header.config == call.config
        async with call.stream(header.request([])) as chunks:
            assert text([chunk async for chunk in chunks]) == "hello"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "other"}, ["model", "'other'", "'m'"]),
        ({"provider": "other"}, ["provider"]),
        ({"max_tokens": 9}, ["max_tokens", "9", "None"]),
        ({"stop": ["x"]}, ["stop"]),
        ({"reasoning_effort": "low", "temperature": 0.5}, ["reasoning_effort", "temperature"]),
    ],
)
async def test_another_request_than_was_prepared_is_refused_and_nobody_asked(
    change: dict[str, Any], words: list[str]
) -> None:
    voice = Voice()
    async with preparing(voice, proposal()) as call:
        with refused("INVALID_PREPARED_CALL", *words):
            async with call.stream(asking(**change)):
                pass
        assert voice.requests == []
        async with call.stream(asking()) as chunks:
            assert text([chunk async for chunk in chunks]) == "hello"


async def test_two_streams_of_one_call_are_one_too_many() -> None:
    async with preparing(Voice(), proposal()) as call:
        first, second = call.stream(asking()), call.stream(asking())
        async with first:
            with refused("INVALID_PREPARED_CALL", "streamed before"):
                async with second:
                    pass


async def test_a_call_in_a_lease_is_made_of_what_the_lease_sees() -> None:
    old, new = Voice(), Voice()
    voices = [old, new]
    async with running(llm) as root:
        fiber = root.plugin(row("voice", lambda ctx: ctx[LLM].register_adapter(["voice"], voices.pop(0))))
        await fiber.settled()
        ctx = await consumer(root)
        with ctx.leased("step") as view:
            async with root.kernel.stage() as stage:
                stage.replace(fiber)
                await stage.settled()
                stage.commit()
            await ask(view)
            await ask(ctx)
        assert (len(old.requests), len(new.requests)) == (1, 1)
        await fiber.closing()


async def test_a_row_that_is_still_staged_calls_what_is_staged_with_it() -> None:
    now, staged, answers = Voice(), Voice(), list[str]()

    async def call(ctx: Context) -> None:
        answers.append(text(await ask(ctx)))

    async with running(llm, serving("voice", now)) as root:
        async with root.kernel.stage() as stage:
            for fiber in root.fiber.kids:
                if fiber.name == "voice":
                    stage.retire(fiber)
            root.plugin(serving("voice", staged), stage=stage)
            contexts: list[Context] = []
            root.plugin(row("caller", contexts.append), stage=stage)
            await stage.settled()
            await call(contexts[0])
        assert (answers, len(now.requests), len(staged.requests)) == (["hello"], 0, 1)


# -- in one


async def test_one_call_does_both_with_the_config_in_effect() -> None:
    voice = Voice(models=[model("m", ["low"], "low", default_max_tokens=7)])
    seen: list[GenerateOptions] = []

    async def look(request: GenerateOptions, next: Callable[[], Any]) -> Any:
        seen.append(request)
        return await next()

    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, look)
        ctx = await consumer(root.intercept(LLM, temperature=0.5))
        first = asking(purpose="compaction", system="Be brief.")
        service(ctx).mark_conversation(first)
        assert text(await ask(ctx, first)) == "hello"
        (sent,) = voice.requests
        assert sent is seen[0]
        assert (sent.reasoning_effort, sent.max_tokens, sent.temperature) == ("low", 7, 0.5)
        assert (sent.purpose, sent.system, sent.messages) == ("compaction", "Be brief.", first.messages)
        assert service(ctx).is_conversation(sent)
        exact = asking(reasoning_effort="low", max_tokens=7, temperature=0.5)
        await ask(ctx, exact)
        assert voice.requests[-1] is exact, "what needs no change is passed on as it is"
        assert not service(ctx).is_conversation(exact)


async def test_what_cannot_be_prepared_is_a_finish_of_the_one_call() -> None:
    voice = Voice(models=[model("m", ["low"])])
    aborter = Aborter()
    aborter.abort("enough")
    async with running(llm, serving("voice", voice)) as root:
        assert failure(await ask(root, asking(reasoning_effort="high"))).code == "UNSUPPORTED_EFFORT"
        assert failure(await ask(root, asking(signal=aborter.signal)), Aborted).code == "ABORTED"
        ctx = await consumer(root.intercept(LLM, modle="x"))
        assert failure(await ask(ctx)).code == "INVALID_CALL_CONFIG"
        assert voice.requests == []


async def test_marks_are_forgotten_with_the_requests_they_are_on() -> None:
    async with running(llm) as root:
        (keeper,) = [value for key, value in root.kernel.keepers.items() if key.name == "llm conversations"]
        requests = [asking() for _ in range(10)]
        for request in requests:
            service(root).mark_conversation(request)
        assert len(keeper.value) == 10
        del request
        requests.clear()
        assert len(keeper.value) == 0
