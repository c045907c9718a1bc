"""Replacing what runs: the new opens beside the old, one commit swaps them, nobody is left without."""

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from dshd import Config, Context, Emit, FiberState, RegistryKey, ServiceKey, plugin
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

NAME = ServiceKey[str]("name")
THING = RegistryKey[int]("thing")


class Named(Config):
    name: str = "first"


def naming(closed: list[str]):  # type: ignore[no-untyped-def]
    @plugin("naming", config=Named, provides=[NAME])
    async def body(ctx: Context, config: Named) -> AsyncIterator[None]:
        ctx.provide(NAME, config.name)
        yield
        closed.append(config.name)

    return body


async def test_a_late_bound_consumer_keeps_running_and_sees_the_new_provider_at_once() -> None:
    opened: list[str] = []
    closed: list[str] = []
    seen: list[Context] = []

    @plugin("consumer", inject=[NAME])
    async def consumer(ctx: Context, config: Config) -> None:
        seen.append(ctx)
        opened.append(ctx[NAME])

    with anyio.fail_after(5):
        async with running(naming(closed), consumer) as root:
            old = next(iter(root.kernel.rows["naming"]))
            stage = root.kernel.stage()
            stage.replace(old, config={"name": "second"})
            await stage.settled()
            assert seen[0][NAME] == "first", "what is staged is invisible"
            stage.commit()
            assert seen[0][NAME] == "second", "in the same tick"
            await old.closing()
            assert opened == ["first"]
            assert closed == ["first"]


async def test_replacing_the_provider_of_a_registry_loses_no_entry_for_a_tick() -> None:
    closed: list[str] = []

    def contributor(number: int):  # type: ignore[no-untyped-def]
        @plugin(f"contributor-{number}", inject=[NAME])
        async def body(ctx: Context, config: Config) -> None:
            ctx.registry(THING).add(f"thing-{number}", number)

        return body

    with anyio.fail_after(10):
        async with running(naming(closed), *(contributor(n) for n in range(100))) as root:
            old = next(iter(root.kernel.rows["naming"]))
            counts: list[int] = []
            done = False

            async def watch() -> None:
                while not done:
                    counts.append(len(root.registry(THING)))
                    await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                for n in range(10):
                    old = await old.update({"name": f"n{n}"})
                done = True
            assert set(counts) == {100}


async def test_a_change_of_what_is_visible_is_announced_once_after_the_commit() -> None:
    changed = Emit[object]("thing/change")
    key = RegistryKey[int]("counted", changed)
    told: list[int] = []

    @plugin("watcher")
    async def watcher(ctx: Context, config: Config) -> None:
        ctx.on(changed, lambda change: told.append(len(ctx.registry(key))))

    @plugin("two")
    async def two(ctx: Context, config: Config) -> None:
        ctx.registry(key).add("a", 1)
        ctx.registry(key).add("b", 2)

    with anyio.fail_after(5):
        async with running(watcher) as root:
            fiber = root.plugin(two)
            await fiber.settled()
            assert told == [2]
            assert fiber.state is FiberState.ACTIVE
            await fiber.dispose()
            assert told == [2, 0]
