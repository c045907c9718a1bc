"""Contexts: derived, never changed; what they stand on; the layers laid over a service."""

import anyio
import pytest
from structlog.testing import capture_logs

from dshd import Config, Context, ServiceKey, plugin
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio


class Limits(Config):
    tokens: int = 100
    seconds: int = 10


LIMITS = ServiceKey[Limits]("limits")
OTHER = ServiceKey[Limits]("other")


@plugin("limits", provides=[LIMITS])
async def limits(ctx: Context, config: Config) -> None:
    ctx.provide_each(LIMITS, lambda consumer: consumer.intercepted(LIMITS, Limits()))


async def test_a_provider_reads_the_layers_of_each_consumer_the_innermost_last() -> None:
    seen: dict[str, Limits] = {}

    @plugin("consumer", inject=[LIMITS])
    async def consumer(ctx: Context, config: Config) -> None:
        seen[ctx.fiber.path] = ctx[LIMITS]

    with anyio.fail_after(5):
        async with running(limits) as root:
            outer = root.intercept(LIMITS, tokens=50, seconds=5)
            inner = outer.intercept(OTHER, tokens=1).intercept(LIMITS, tokens=20)
            for ctx, name in ((root, "plain"), (outer, "outer"), (inner, "inner")):
                await ctx.plugin(consumer, id=name).settled()
            assert seen == {
                "plain": Limits(),
                "outer": Limits(tokens=50, seconds=5),
                "inner": Limits(tokens=20, seconds=5),
            }
            assert [dict(layer) for layer in inner.layers(LIMITS)] == [{"tokens": 50, "seconds": 5}, {"tokens": 20}]


async def test_deriving_a_context_changes_no_other_and_shares_the_fiber() -> None:
    with anyio.fail_after(5):
        async with running(limits) as root:
            derived = root.isolate(LIMITS).intercept(LIMITS, tokens=1)
            assert derived.fiber is root.fiber
            assert derived.get(LIMITS) is None
            assert root.get(LIMITS) == Limits()
            assert root.layers(LIMITS) == ()
            assert derived.isolate(LIMITS, root.realm(LIMITS)).get(LIMITS) == Limits(tokens=1)


async def test_a_context_names_its_fiber_the_root_and_logs_for_its_row() -> None:
    found: list[tuple[str, bool]] = []

    @plugin("speaker")
    async def speaker(ctx: Context, config: Config) -> None:
        found.append((ctx.fiber.path, ctx.root.fiber.parent is None))
        ctx.log.info("hello")

    with anyio.fail_after(5), capture_logs() as logged:
        async with running() as root:
            await root.plugin(speaker, id="row/of/mine").settled()
    assert found == [("row/of/mine", True)]
    assert [(line["event"], line["plugin"], line["row"]) for line in logged] == [("hello", "speaker", "row/of/mine")]
