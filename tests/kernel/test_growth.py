"""Work grows with what changed. Each test does a thing n times and 4n times; a quadratic rule would show as 16×.

The shortest of several runs is compared, so that a busy machine does not decide.
"""

import gc
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from dshd import Config, Context, Emit, Fiber, Plugin, RegistryKey, Scope, ServiceKey, plugin
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

FACT = Emit[int]("growth/fact")
ABOUT = Emit[Scope]("growth/about", subject=lambda scope: scope)
THING = RegistryKey[int]("thing")
KEY = ServiceKey[int]("one")


async def assert_linear(measure: Callable[[int], Awaitable[float]], n: int = 100) -> None:
    """`measure(n)` gives the seconds that n took; 4n may take six times that (with a floor for the clock)."""
    for attempt in range(4):
        small = min([await measure(n) for _ in range(3)])
        large = min([await measure(4 * n) for _ in range(3)])
        if large <= 6 * max(small, 1e-4):
            return
        n += n * attempt // 4  # a noisy moment does not come back at the same size
    pytest.fail(f"{n}: {small * 1e3:.2f} ms, {4 * n}: {large * 1e3:.2f} ms")


def contributor(number: int) -> Plugin[Config]:
    key = ServiceKey[int](f"service-{number}")

    @plugin(f"row-{number}", provides=[key])
    async def body(ctx: Context, config: Config) -> None:
        ctx.provide(key, number)
        ctx.on(FACT, lambda payload: None)
        ctx.registry(THING).add(f"thing-{number}", number)

    return body


async def mount(root: Context, bodies: list[Plugin[Config]]) -> list[Fiber]:
    fibers = [root.plugin(body) for body in bodies]
    for fiber in fibers:
        await fiber.settled()
    return fibers


async def dispose(fibers: list[Fiber]) -> None:
    async with anyio.create_task_group() as tasks:
        for fiber in fibers:
            tasks.start_soon(fiber.dispose)


async def test_mounting_and_disposing_of_n_plugins_is_linear() -> None:
    async def measure(n: int) -> float:
        async with running() as root:
            gc.collect()
            begun = time.perf_counter()
            await dispose(await mount(root, [contributor(number) for number in range(n)]))
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure)


async def test_mounting_n_instances_of_one_plugin_is_linear() -> None:
    @plugin("same")
    async def same(ctx: Context, config: Config) -> None:
        ctx.on(FACT, lambda payload: None)

    async def measure(n: int) -> float:
        async with running() as root:
            gc.collect()
            begun = time.perf_counter()
            await dispose(await mount(root, [same] * n))
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure)


async def test_replacing_n_rows_in_one_commit_is_linear() -> None:
    async def measure(n: int) -> float:
        async with running() as root:
            old = await mount(root, [contributor(number) for number in range(n)])
            stage = root.kernel.stage()
            for fiber in old:
                stage.replace(fiber)
            await stage.settled()
            gc.collect()
            begun = time.perf_counter()
            stage.commit()
            for fiber in old:
                await fiber.closing()
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure)


async def test_replacing_one_row_of_n_does_not_grow_faster_than_n() -> None:
    async def measure(n: int) -> float:
        async with running() as root:
            fibers = await mount(root, [contributor(number) for number in range(n)])
            gc.collect()
            begun = time.perf_counter()
            for _ in range(10):
                fibers[0] = await fibers[0].update({})
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure)


async def test_n_consumers_that_lose_and_regain_their_provider_are_linear() -> None:
    @plugin("provider", provides=[KEY])
    async def provider(ctx: Context, config: Config) -> None:
        ctx.provide(KEY, 1)

    @plugin("consumer", inject=[KEY])
    async def consumer(ctx: Context, config: Config) -> None:
        ctx[KEY]

    async def measure(n: int) -> float:
        async with running(provider) as root:
            fibers = await mount(root, [consumer] * n)
            gc.collect()
            begun = time.perf_counter()
            await next(iter(root.kernel.rows["provider"])).dispose()
            await root.plugin(provider).settled()
            for fiber in fibers:
                await fiber.settled()
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure)


async def test_a_chain_of_n_services_opens_in_linear_time() -> None:
    def link(number: int) -> Plugin[Config]:
        key, before = ServiceKey[int](f"link-{number}"), ServiceKey[int](f"link-{number - 1}")

        @plugin(f"link-{number}", provides=[key], inject=[before] if number else [])
        async def body(ctx: Context, config: Config) -> None:
            ctx.provide(key, number)

        return body

    async def measure(n: int) -> float:
        async with running() as root:
            bodies = [link(number) for number in reversed(range(n))]
            gc.collect()
            begun = time.perf_counter()
            fibers = [root.plugin(body) for body in bodies]
            while not all(fiber.visible for fiber in fibers):
                await fibers[0].settled()
                await anyio.lowlevel.checkpoint()
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure, 50)


async def test_an_event_about_one_scope_costs_the_same_among_n_scopes() -> None:
    async def measure(n: int) -> float:
        scopes = [Scope(f"agent-{number}") for number in range(n)]

        @plugin("per-agent")
        async def per_agent(ctx: Context, config: Config) -> None:
            for scope in scopes:
                ctx.scoped(scope).on(ABOUT, lambda payload: None)

        async with running(per_agent) as root:
            root.emit(ABOUT, scopes[0])
            gc.collect()
            begun = time.perf_counter()
            for _ in range(2000):
                root.emit(ABOUT, scopes[0])
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        small, large = min([await measure(100) for _ in range(3)]), min([await measure(400) for _ in range(3)])
        assert large < 2 * small


async def test_ending_n_scopes_one_after_another_is_linear() -> None:
    async def measure(n: int) -> float:
        scopes = [Scope(f"agent-{number}") for number in range(n)]

        @plugin("per-agent")
        async def per_agent(ctx: Context, config: Config) -> None:
            for scope in scopes:
                ctx.scoped(scope).on(ABOUT, lambda payload: None)
                ctx.scoped(scope).registry(THING).add("mine", 1)

        async with running(per_agent) as root:
            gc.collect()
            begun = time.perf_counter()
            for scope in scopes:
                root.emit(ABOUT, scope)
                await scope.close()
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure, 200)


async def test_n_leases_held_at_once_are_linear() -> None:
    async def measure(n: int) -> float:
        async with running(contributor(0)) as root:
            gc.collect()
            begun = time.perf_counter()
            held = [root.leased(f"lease {number}") for number in range(n)]
            for lease in held:
                lease.__enter__()
            for lease in held:
                lease.__exit__(None, None, None)
            return time.perf_counter() - begun

    with anyio.fail_after(120):
        await assert_linear(measure, 500)
