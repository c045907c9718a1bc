"""Registrations with the `llm` row: which adapter instance serves which routes, and what can go wrong with that."""

from collections.abc import Callable
from typing import Any

import pytest

from dshd import Context, Fiber, InactiveFiberError, Scope
from dshd.capabilities.llm import (
    ADAPTERS_UPDATED,
    LLM,
    AdapterRegistration,
    ConfigurableProvider,
    LlmCallConfig,
    LlmError,
    ProviderInfo,
    RetryPolicy,
)
from dshd.testing.contracts.llm import (
    Voice,
    ask,
    asking,
    consumer,
    failure,
    refused,
    replaced,
    routes,
    row,
    service,
    serving,
    text,
)
from dshd.testing.kernel import running
from dshd_plugins.llm import llm

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["", " ", "a b", "a\tb", "a\u00a0b", "a/b", "/", "a\nb", "\x00", "\ud800", 7, None])
async def test_a_name_that_could_not_be_written_down_is_no_route(name: Any) -> None:
    async with running(llm) as root:
        with refused("INVALID_REGISTRATION", repr(name)):
            service(root).register_adapter(["good", name], Voice())
        assert routes(root) == []


@pytest.mark.parametrize("name", ["deepseek", "my.own:route-1", "Zürich", "模型"])
async def test_any_other_text_is_one(name: str) -> None:
    async with running(llm, serving("voice", Voice(), name)) as root:
        assert routes(root) == [name]
        assert text(await ask(root, asking(name))) == "hello"


@pytest.mark.parametrize("providers", ["voice", b"voice", None, {"voice"}, iter(["voice"])])
async def test_routes_are_given_as_a_list(providers: Any) -> None:
    async with running(llm) as root:
        with refused("INVALID_REGISTRATION", "list of names"):
            service(root).register_adapter(providers, Voice())


async def test_an_adapter_is_one() -> None:
    async with running(llm) as root:
        odd: Any = object()
        with refused("INVALID_REGISTRATION", "LlmAdapter"):
            service(root).register_adapter(["voice"], odd)


async def _later(provider: str) -> ProviderInfo:
    return ProviderInfo(provider, provider)


def _exits(provider: str) -> ProviderInfo:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (lambda provider: None, "None"),
        (lambda provider: {"id": provider}, "no ProviderInfo"),
        (lambda provider: ProviderInfo("other", "Other"), "needs this id"),
        (lambda provider: ProviderInfo(provider, " "), "a name"),
        (lambda provider: 1 / 0, "ZeroDivisionError"),
        (_exits, "SystemExit"),
        (_later, "coroutine"),
    ],
)
async def test_an_adapter_that_cannot_say_how_a_route_is_shown_is_refused_whole(shown: Any, words: str) -> None:
    async with running(llm) as root:
        voice = Voice()
        registration = service(root).register_adapter(["first"], voice)
        voice.shown = lambda provider: shown(provider) if provider == "odd" else ProviderInfo(provider, provider)
        for refuse in (
            lambda: service(root).register_adapter(["second", "odd"], voice),
            lambda: registration.replace(["second", "odd"]),
        ):
            with refused("INVALID_REGISTRATION", "Voice", words):
                refuse()
        assert routes(root) == ["first"]


@pytest.mark.parametrize(
    "policy",
    [
        lambda: "often",
        lambda: RetryPolicy(max_retries=-1),
        lambda: RetryPolicy(jitter_ratio=float("nan")),
    ],
)
async def test_a_retry_policy_that_nobody_could_follow_is_refused(policy: Callable[[], Any]) -> None:
    class Hasty(Voice):
        def retry_policy(self, provider: str) -> RetryPolicy | None:
            given: RetryPolicy | None = policy()
            return given

    async with running(llm) as root:
        with refused("INVALID_REGISTRATION", "Hasty", "retry_policy"):
            service(root).register_adapter(["voice"], Hasty())


async def test_one_instance_may_be_registered_twice_under_other_routes() -> None:
    async with running(llm) as root:
        voice, ctx = Voice(), await consumer(root)
        first = service(ctx).register_adapter(["one"], voice)
        second = service(ctx).register_adapter(["two"], voice)
        with refused("DUPLICATE_ADAPTER", "'one'"):
            second.replace(["one", "two"])
        first.release()
        second.replace(["one", "two"])
        assert routes(root) == ["one", "two"]


async def test_routes_stand_in_the_order_in_which_they_were_given() -> None:
    async with running(llm, serving("zulu", Voice(), "a", "z")) as root:
        registration = service(await consumer(root)).register_adapter(["c", "b"], Voice())
        assert routes(root) == ["c", "b", "a", "z"]
        registration.replace(["b", "d", "c"])
        assert routes(root) == ["b", "d", "c", "a", "z"]


async def test_a_replacement_that_changes_nothing_is_not_announced() -> None:
    async with running(llm) as root:
        voice = Voice(retry=RetryPolicy())
        registration = service(root).register_adapter(["one", "two"], voice)
        told: list[object] = []
        root.on(ADAPTERS_UPDATED, told.append)
        registration.replace(["one", "two"])
        assert len(told) == 0
        voice.retry = None
        registration.replace(["one", "two"])
        assert len(told) == 1
        async with service(root).prepare_call(LlmCallConfig(provider="one", model="m")) as call:
            assert call.retry_policy is None


async def test_a_registration_ends_with_the_row_it_belongs_to() -> None:
    kept: list[AdapterRegistration] = []
    async with running(llm) as root:
        fiber = root.plugin(row("voice", lambda ctx: kept.append(ctx[LLM].register_adapter(["voice"], Voice()))))
        await fiber.settled()
        successor = await replaced(root, fiber)
        await fiber.closing()
        with refused("REGISTRATION_DISPOSED", "'voice'"):
            kept[0].replace(["other"])
        kept[1].replace(["other"])
        assert routes(root) == ["other"]
        await successor.dispose()
        with refused("REGISTRATION_DISPOSED"):
            kept[1].replace(["voice"])
        assert routes(root) == []


async def test_a_row_that_is_closing_has_no_routes_to_replace() -> None:
    codes: list[str] = []

    def set_up(ctx: Context) -> None:
        registration = ctx[LLM].register_adapter(["voice"], Voice())

        def replace() -> None:
            try:
                registration.replace(["other"])
            except LlmError as error:
                codes.append(error.code)

        ctx.defer(replace)  # runs while the routes are still registered

    async with running(llm) as root:
        fiber = root.plugin(row("voice", set_up))
        await fiber.settled()
        await fiber.dispose()
        assert codes == ["REGISTRATION_DISPOSED"]


async def test_a_row_that_closes_registers_nothing() -> None:
    contexts: list[Context] = []
    async with running(llm) as root:
        fiber = root.plugin(row("late", contexts.append))
        await fiber.settled()
        face = contexts[0][LLM]
        await fiber.dispose()
        with pytest.raises(InactiveFiberError):
            face.register_adapter(["voice"], Voice())
        assert routes(root) == []


async def test_a_row_that_is_replaced_leaves_no_moment_without_its_routes() -> None:
    async with running(llm) as root:
        seen: list[tuple[list[str], int]] = []
        voices: list[Voice] = []

        def set_up(ctx: Context) -> None:
            voices.append(Voice())
            ctx[LLM].register_adapter(["voice"], voices[-1])

        fiber: Fiber = root.plugin(row("voice", set_up))
        await fiber.settled()
        root.on(ADAPTERS_UPDATED, lambda change: seen.append((routes(root), len(voices))))
        await replaced(root, fiber)
        assert seen == [(["voice"], 2)]
        await ask(root)
        assert [len(voice.requests) for voice in voices] == [0, 1]


async def test_a_route_of_one_agent_is_a_route_for_that_agent() -> None:
    ada = Scope("ada")
    common, own = Voice(), Voice()
    async with running(llm, serving("voice", common)) as root:
        ctx = await consumer(root)
        ctx.scoped(ada)[LLM].register_adapter(["voice", "private"], own)
        assert (routes(root), routes(root.scoped(ada))) == (["voice"], ["voice", "private"])
        await ask(root)
        await ask(root.scoped(ada))
        assert (len(common.requests), len(own.requests)) == (1, 1)
        await ada.close()
        assert failure(await ask(root.scoped(ada), asking("private"))).code == "NO_ADAPTER"


async def test_an_isolated_service_has_routes_of_its_own() -> None:
    async with running(llm, serving("voice", Voice())) as root:
        room = root.isolate(LLM)
        await room.plugin(llm, id="llm in the room").settled()
        await room.plugin(serving("voice", Voice(), "other"), id="voice in the room").settled()
        assert (routes(root), routes(room)) == (["voice"], ["other"])
        assert [entry.info.id for entry in service(room).directory()] == ["other"]


# -- what could be


def offer(provider: Any = "sleeper", **more: Any) -> ConfigurableProvider:
    return ConfigurableProvider(**{"provider": provider, "display_name": "Sleeper", "settings_ns": "voices", **more})


@pytest.mark.parametrize(
    ("offers", "apis", "words"),
    [
        ([], (), "no configurable provider"),
        (["sleeper"], (), "no configurable provider"),
        ([offer("a b")], (), "white space"),
        ([offer(), offer()], (), "twice"),
        ([offer(display_name="")], (), "display_name"),
        ([offer(settings_ns=None)], (), "settings_ns"),
        ([offer(settings_path=(7,))], (), "settings_path"),
        ([offer()], ("speech",), "discover"),
        ([offer()], "speech", "apis"),
    ],
)
async def test_an_offer_that_is_wrong_is_refused_whole(offers: Any, apis: Any, words: str) -> None:
    async with running(llm) as root:
        with refused("INVALID_REGISTRATION", words):
            service(root).register_configurable_providers([*offers, *([offer("fine")] if offers else [])], apis=apis)
        assert service(root).directory() == []


async def test_one_provider_is_configured_in_one_place() -> None:
    async with running(llm) as root:
        contexts: list[Context] = []
        fibers = [root.plugin(row(name, contexts.append)) for name in ("first", "second")]
        for fiber in fibers:
            await fiber.settled()
        contexts[0][LLM].register_configurable_providers([offer()])
        with refused("DUPLICATE_ADAPTER", "'sleeper'", "'first'", "'second'"):
            contexts[1][LLM].register_configurable_providers([offer("other"), offer()])
        assert [entry.info.id for entry in service(root).directory()] == ["sleeper"]
        await fibers[0].dispose()
        contexts[1][LLM].register_configurable_providers([offer("other"), offer()])
        assert [entry.info.id for entry in service(root).directory()] == ["other", "sleeper"]
