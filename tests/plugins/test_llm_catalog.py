"""What the `llm` row says there is: catalogs, the directory, exact models, and drafts of what is not stored yet."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from dshd import Aborter, Context, Signal
from dshd.capabilities.llm import (
    LLM,
    ConfigurableProvider,
    DiscoveredModel,
    FailureCode,
    LlmError,
    LlmFailure,
    ModelDiscoveryRequest,
    ModelInfo,
    ModelReasoning,
    ReasoningEffort,
    ResolvedModel,
)
from dshd.capabilities.values import ReasoningEffortId
from dshd.testing.contracts.llm import Voice, ask, asking, model, refused, row, service, serving, text
from dshd.testing.kernel import running
from dshd_plugins.llm import catalog, llm

pytestmark = pytest.mark.anyio

KEY = "sk-Ünsafe/+ key"


# -- catalogs


class Listing(Voice):
    """An adapter whose catalog is what a test says."""

    def __init__(self, listed: Any) -> None:
        super().__init__()
        self.listed = listed

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        found: Sequence[ModelInfo] = self.listed(provider) if callable(self.listed) else self.listed
        return found


def info(id: Any, provider: str = "odd") -> ModelInfo:
    return ModelInfo(provider=provider, id=id, name="name")


async def test_catalogs_come_in_the_order_of_the_routes_and_each_in_its_own() -> None:
    async with running(llm, serving("voice", Voice(models=[model("z"), model("a")]), "two", "one")) as root:
        found = [(m.provider, m.id) for m in await service(root).list_models()]
        assert found == [("two", "z"), ("two", "a"), ("one", "z"), ("one", "a")]


async def test_a_model_that_no_catalog_has_is_routed_all_the_same() -> None:
    async with running(llm, serving("voice", Voice(models=[model("listed")]))) as root:
        assert text(await ask(root, asking(model="unlisted/model with spaces"))) == "hello"


def _exits(provider: str) -> None:
    raise SystemExit(3)


class Unreadable(Sequence[ModelInfo]):
    """A list that cannot even be gone through."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("read error")


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (None, "NoneType"),
        ("models", "str"),
        ([info("a"), "b"], "str"),
        ([info("")], "''"),
        ([info(7)], "7"),
        ([info("a", provider="else")], "'else'"),
        (lambda provider: 1 / 0, "ZeroDivisionError"),
        (lambda provider: Unreadable(), "RuntimeError"),
        (_exits, "SystemExit"),
    ],
)
async def test_a_catalog_that_makes_no_sense_is_left_out_and_its_route_named(listed: Any, words: str) -> None:
    async with running(llm, serving("voice", Voice(models=[model("a")])), serving("odd", Listing(listed))) as root:
        with capture_logs() as log:
            assert [m.id for m in await service(root).list_models()] == ["a"]
            assert await service(root).list_models("odd") == []
        assert [entry["route"] for entry in log] == ["odd", "odd"]
        assert words in log[0]["error"]


async def test_a_catalog_that_never_comes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "PATIENCE", 0.01)

    class Hanging(Voice):
        async def list_models(self, provider: str) -> Sequence[ModelInfo]:
            await anyio.sleep_forever()
            return ()

    async with running(llm, serving("voice", Voice(models=[model("a")])), serving("odd", Hanging())) as root:
        with capture_logs() as log, anyio.fail_after(5):
            assert [m.id for m in await service(root).list_models()] == ["a"]
        assert "more than 0.01 s" in log[0]["error"]
        assert not root.kernel.leases


async def test_without_any_route_there_is_nothing() -> None:
    async with running(llm) as root:
        llm_service = service(root)
        assert (llm_service.list_providers(), llm_service.directory(), await llm_service.list_models()) == ([], [], [])
        with refused("NO_ADAPTER", "'ghost'", "none at all"):
            await llm_service.list_models("ghost")


# -- exact models


async def test_an_exact_model_keeps_the_order_and_the_names_of_its_efforts() -> None:
    efforts = tuple(
        ReasoningEffort(ReasoningEffortId(id), name, about)
        for id, name, about in (("max", "All of it", "slow"), ("off", "None", None), ("mid", "Some", "fine"))
    )
    known = ResolvedModel(provider="", id="m", name="M", reasoning=ModelReasoning(efforts))
    async with running(llm, serving("voice", Voice(models=[known]))) as root:
        found = await service(root).resolve_model("voice", "m")
        assert found is not None
        assert found.reasoning == ModelReasoning(efforts)
        assert (found.context, found.default_max_tokens) == (None, None)


async def test_a_cancellation_by_chance_is_the_fault_of_the_adapter() -> None:
    class Stray(Voice):
        async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
            return None

    async with running(llm, serving("voice", Stray())) as root:
        for signal in (None, Aborter().signal):
            with refused("PROVIDER_ERROR", "'voice'", "cancelled"):
                await service(root).resolve_model("voice", "m", signal)


# -- drafts


class Knowing(Voice):
    """An adapter that can be asked about drafts."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.drafts: list[ModelDiscoveryRequest] = []

    async def discover_models(self, request: ModelDiscoveryRequest) -> Sequence[DiscoveredModel]:
        self.drafts.append(request)
        found: Sequence[DiscoveredModel] = await self.answer() if callable(self.answer) else self.answer
        return found


def declaring(name: str, answer: Any, *apis: str, offers: Sequence[str] = ("sleeper",)) -> Any:
    """A row that could activate providers and can interrogate drafts of them, and of apis."""

    async def discover(request: ModelDiscoveryRequest) -> Sequence[DiscoveredModel]:
        if isinstance(answer, BaseException):
            raise answer
        found: Sequence[DiscoveredModel] = answer
        return found

    def set_up(ctx: Context) -> None:
        could = [ConfigurableProvider(provider=each, display_name=each, settings_ns="voices") for each in offers]
        ctx[LLM].register_configurable_providers(could, discover=discover, apis=apis)

    return row(name, set_up)


def found(*ids: str) -> list[DiscoveredModel]:
    return [DiscoveredModel(id=id) for id in ids]


async def discovered(ctx: Context, **draft: Any) -> list[str]:
    return [model.id for model in await service(ctx).discover_models(ModelDiscoveryRequest(**draft))]


async def test_the_adapter_of_a_live_route_is_asked_first_and_gets_the_draft_as_it_is() -> None:
    adapter = Knowing(found("mine"))
    rows = (serving("sleeper", adapter), declaring("others", found("theirs"), "speech"))
    async with running(llm, *rows) as root:
        draft = ModelDiscoveryRequest(provider="sleeper", base_url="x", api="speech", api_key=KEY)
        assert await service(root).discover_models(draft) == found("mine")
        assert adapter.drafts == [draft]


async def test_who_cannot_tell_leaves_it_to_the_next() -> None:
    no = LlmError("not me", FailureCode.NO_DISCOVERY)

    async def refuse() -> Any:
        raise no

    rows = (
        serving("sleeper", Knowing(refuse)),
        declaring("first", no),
        declaring("second", found("second"), "speech", offers=["other"]),
    )
    async with running(llm, *rows) as root:
        assert await discovered(root, provider="sleeper", base_url="x", api="speech") == ["second"]
        with refused("NO_DISCOVERY", "not me"):
            await discovered(root, provider="sleeper", base_url="x", api="song")
        with refused("NO_DISCOVERY", "base_url", "speech"):
            await discovered(root, provider="sleeper", api="speech")


async def test_who_fails_to_tell_is_not_covered_up_by_the_next() -> None:
    rows = (
        declaring("first", LlmError("bad key", FailureCode.AUTH)),
        declaring("second", found("second"), "speech", offers=["other"]),
    )
    async with running(llm, *rows) as root:
        with refused("AUTH", "bad key"):
            await discovered(root, provider="sleeper", base_url="x", api="speech")


async def test_an_adapter_with_a_catalog_knows_the_models_of_its_routes_without_more() -> None:
    async with running(llm, serving("voice", Voice(models=[model("a")])), serving("empty", Voice())) as root:
        assert await service(root).discover_models(ModelDiscoveryRequest(provider="voice")) == [
            DiscoveredModel(id="a", name="A")
        ]
        with refused("NO_DISCOVERY"):
            await discovered(root, provider="empty")


async def test_who_offers_an_api_and_its_routes_is_asked_once_whatever_kind_of_callable_it_is() -> None:
    class Asked:
        __hash__ = None  # type: ignore[assignment]
        times = 0

        async def __call__(self, request: ModelDiscoveryRequest) -> Sequence[DiscoveredModel]:
            self.times += 1
            raise LlmError("not me", FailureCode.NO_DISCOVERY)

    asked = Asked()
    async with running(llm) as root:
        offer = ConfigurableProvider(provider="sleeper", display_name="S", settings_ns="voices")
        service(root).register_configurable_providers([offer], discover=asked, apis=["speech"])
        with refused("NO_DISCOVERY", "not me"):
            await discovered(root, provider="sleeper", base_url="x", api="speech")
        assert asked.times == 1


async def test_a_key_that_no_header_could_carry_is_in_no_error_either() -> None:
    key = 'sk-"half\ud800/key'

    async def encode() -> Any:
        raise RuntimeError(f"cannot send {key} nor {json.dumps(key)}")

    async with running(llm, serving("voice", Knowing(encode))) as root:
        with refused("PROVIDER_ERROR", "cannot send …") as caught:
            await discovered(root, provider="voice", api_key=key)
        assert "half" not in str(caught[0])
        assert (caught[0].__cause__, caught[0].__context__) == (None, None)


async def test_a_draft_that_nobody_can_ask_about_is_told_what_is_missing() -> None:
    async with running(llm) as root:
        with refused("NO_DISCOVERY", "base_url"):
            await discovered(root)
        with refused("NO_DISCOVERY", "'ghost'", "base_url"):
            await discovered(root, provider="ghost")
        with refused("NO_DISCOVERY", "'song'"):
            await discovered(root, base_url="x", api="song")
    async with running(llm, declaring("voices", found("a"), "speech", "song")) as root:
        with refused("NO_DISCOVERY", "say which api", "song, speech"):
            await discovered(root, base_url="x")


@pytest.mark.parametrize("answer", [None, "models", [ModelInfo(provider="p", id="a", name="a")], found("a", "")])
async def test_an_answer_that_makes_no_sense_is_a_fault(answer: Any) -> None:
    async with running(llm, serving("voice", Knowing(answer))) as root:
        with refused("PROVIDER_ERROR"):
            await discovered(root, provider="voice")


async def test_a_draft_that_is_cancelled_is_over_at_once() -> None:
    asked, ended = anyio.Event(), list[str]()

    async def forever() -> Any:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    aborter = Aborter()
    async with running(llm, serving("voice", Knowing(forever))) as root:

        async def abort() -> None:
            await asked.wait()
            aborter.abort("never mind")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(abort)
            with anyio.fail_after(5), refused("ABORTED", "never mind"):
                await discovered(root, provider="voice", signal=aborter.signal)
        assert ended == ["cancelled"]
        assert not root.kernel.leases


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError(f"401 Unauthorized for Bearer {KEY}"),
        RuntimeError("GET https://x/models?key=sk-%C3%9Cnsafe%2F%2B%20key"),
        LlmError(LlmFailure(message=f"bad key {KEY}", code="AUTH", request_id=KEY)),
        ExceptionGroup(KEY, [ValueError(KEY), ValueError(KEY)]),
    ],
)
async def test_the_key_of_a_draft_is_in_no_error_and_no_log(fault: Exception) -> None:
    async with running(llm, declaring("voices", fault, "speech")) as root:
        draft = ModelDiscoveryRequest(base_url="x", api="speech", api_key=KEY)
        assert KEY not in repr(draft)
        with capture_logs() as log, pytest.raises(LlmError) as caught:
            await service(root).discover_models(draft)
        error = caught.value
        seen = repr((error, str(error), error.failure, error.__cause__, error.__context__, log))
        assert KEY not in seen
        assert "nsafe" not in seen
        assert error.code == ("AUTH" if isinstance(fault, LlmError) else "PROVIDER_ERROR")
