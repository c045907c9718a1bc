"""Who answers for which route, and what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dshd.capabilities.llm import (
    ADAPTERS_UPDATED,
    LLM,
    AdapterRegistration,
    ConfigurableProvider,
    DiscoveredModel,
    ModelDiscoveryRequest,
    ModelInfo,
    ProviderInfo,
)
from dshd.kernel.context import Context
from dshd.testing.contracts.expect import same

from .voice import (
    Mounting,
    Voice,
    ask,
    consumer,
    model,
    refused,
    replaced,
    routes,
    row,
    service,
    serving,
    text,
)


class RoutesContract(Mounting):
    """Who answers for which route, and what there is."""

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
