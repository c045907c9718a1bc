"""Leases: who works across a replacement sees one whole world, and keeps open only what that world consists of."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from dshd import Bail, Config, Context, Emit, Next, Parallel, Plugin, RegistryKey, Serial, ServiceKey, Waterfall, plugin
from dshd.kernel.errors import LeaseEndedError
from dshd.kernel.fiber import Fiber
from dshd.kernel.inspect import picture
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Nothing:
    pass


NOTHING = Nothing()
VERSION = ServiceKey[int]("version")
OTHER = ServiceKey[int]("other")
THING = RegistryKey[int]("thing")
LATE = RegistryKey[int]("late")
TOLD = Emit[Nothing]("told")
SPREAD = Parallel[Nothing]("spread")
PICKED = Bail[Nothing, int]("picked")
ASKED = Serial[Nothing, int]("asked")
SHAPED = Waterfall[Nothing, int]("shaped")


@asynccontextmanager
async def started(*plugins: Plugin[Any]) -> AsyncIterator[Context]:
    with anyio.fail_after(10):
        async with running(*plugins) as root:
            yield root


@plugin("idle")
async def idle(ctx: Context, config: Config) -> None:
    pass


@plugin("reader", inject=[VERSION])
async def reader(ctx: Context, config: Config) -> None:
    pass


class Versioned(Config):
    version: int = 0


async def innermost(_: Nothing) -> int:
    return -1


class Rows:
    """A row that contributes its version in every way, and what its instances did."""

    def __init__(self, name: str = "row", provides: ServiceKey[int] = VERSION) -> None:
        self.open: list[int] = []
        self.heard: list[int] = []
        self.busy, self.go = anyio.Event(), anyio.Event()

        @plugin(name, config=Versioned, provides=[provides])
        async def body(ctx: Context, config: Versioned) -> AsyncIterator[None]:
            version = config.version

            async def spread(_: Nothing) -> None:
                self.heard.append(version)

            async def answer(_: Nothing) -> int:
                return version

            async def wait(_: Nothing, next: Next[int]) -> int:
                self.busy.set()
                await self.go.wait()
                return version

            ctx.provide(provides, version)
            ctx.registry(THING).add(name, version)
            ctx.on(TOLD, lambda _: self.heard.append(version))
            ctx.on(SPREAD, spread)
            ctx.on(PICKED, lambda _: version)
            ctx.on(ASKED, answer)
            ctx.on(SHAPED, wait)
            self.open.append(version)
            yield
            self.open.remove(version)

        self.plugin = body


async def versions(ctx: Context) -> set[int | None]:
    """The versions one context sees, in every way there is to see one."""
    return {
        ctx.get(VERSION),
        ctx.registry(THING).get("row"),
        ctx.bail(PICKED, NOTHING),
        await ctx.serial(ASKED, NOTHING),
    }


def only(root: Context, name: str) -> Fiber:
    """The visible instance of a row."""
    (fiber,) = (each for each in root.kernel.rows[name] if each.visible)
    return fiber


async def test_a_lease_keeps_a_replaced_instance_open_and_sees_it_whole() -> None:
    rows = Rows()
    async with started(rows.plugin) as root:
        old = only(root, "row")
        with root.leased("a step") as view:
            new = await old.update({"version": 1})
            assert await versions(view) == {0}
            assert await versions(root) == {1}
            assert rows.open == [0, 1]
            assert (old.visible, old.draining, new.visible, new.draining) == (False, True, True, False)
        await old.closing()
        assert rows.open == [1]
        assert await versions(root) == {1}


async def test_a_lease_sees_what_was_born_by_its_epoch_and_not_yet_retired() -> None:
    rows = Rows()
    async with started() as root:
        with root.leased("before") as before:
            await root.plugin(rows.plugin).settled()
            fiber = only(root, "row")
            with root.leased("during") as during:
                async with root.kernel.stage() as stage:
                    stage.retire(fiber)
                    stage.commit()
                with root.leased("after") as after:
                    assert await versions(before) == {None}
                    assert await versions(during) == {0}
                    assert await versions(after) == {None}
            await fiber.closing()


async def test_a_lease_does_not_see_what_a_later_row_contributes_at_run_time() -> None:
    asked: list[str] = []

    async with started() as root:
        root.registry(LATE).add("early", 1)
        root.on(PICKED, lambda _: asked.append("early"))
        with root.leased("a step") as view:
            fiber = root.plugin(idle)
            await fiber.settled()
            fiber.ctx.registry(LATE).add("late", 2)
            fiber.ctx.on(PICKED, lambda _: asked.append("late"), prepend=True)
            assert dict(root.registry(LATE).items()) == {"early": 1, "late": 2}
            assert dict(view.registry(LATE).items()) == {"early": 1}
            view.bail(PICKED, NOTHING)
            assert asked == ["early"]


async def test_a_lease_sees_what_a_retired_row_it_holds_contributes_at_run_time() -> None:
    async with started(idle) as root:
        root.registry(LATE).add("early", 1)
        fiber = only(root, "idle")
        with root.leased("a step") as view:
            await fiber.update({})
            fiber.ctx.registry(LATE).add("from the retired", 2)
            assert dict(view.registry(LATE).items()) == {"early": 1, "from the retired": 2}
            assert dict(root.registry(LATE).items()) == {"early": 1}


async def test_fifty_replacements_under_one_lease_leave_one_extra_instance_of_each_row_open() -> None:
    rows = [Rows(), Rows("another", OTHER)]
    async with started(*(each.plugin for each in rows)) as root:
        fibers = [only(root, "row"), only(root, "another")]
        first = list(fibers)
        with root.leased("a long step") as view:
            for n in range(1, 51):
                for i, old in enumerate(fibers):
                    fibers[i] = await old.update({"version": n})
                    if n > 1:
                        await old.closing()
                assert [each.open for each in rows] == [[0, n], [0, n]]
            assert await versions(view) == {0}
        for fiber in first:
            await fiber.closing()
        assert [each.open for each in rows] == [[50], [50]]


async def test_a_lease_of_a_lease_holds_the_same_world_after_the_outer_one_has_ended() -> None:
    rows = Rows()
    async with started(rows.plugin) as root:
        old = only(root, "row")
        outer = root.leased("outer")
        view = outer.__enter__()
        await old.update({"version": 1})
        with view.leased("inner") as inner:
            outer.__exit__(None, None, None)
            await anyio.wait_all_tasks_blocked()
            assert await versions(inner) == {0}
            assert rows.open == [0, 1]
        await old.closing()
        assert rows.open == [1]


async def test_a_stage_filled_through_a_lease_builds_on_the_present() -> None:
    rows = Rows()
    async with started(rows.plugin) as root:
        with root.leased("a step") as view:
            await only(root, "row").update({"version": 1})
            async with view.kernel.stage() as stage:
                fiber = view.plugin(reader, stage=stage)
                await stage.settled()
                assert (fiber.ctx[VERSION], view.get(VERSION)) == (1, 0)
                stage.commit()
            assert fiber.ctx[VERSION] == 1
            assert await versions(view) == {0}


async def test_a_lease_taken_while_a_plugin_opens_becomes_one_of_the_commit_that_publishes_it() -> None:
    rows = Rows()
    views: list[Context] = []
    go = anyio.Event()

    @plugin("holder", inject=[VERSION])
    async def holder(ctx: Context, config: Config) -> None:
        taken = anyio.Event()

        async def hold() -> None:
            with ctx.leased("taken in a body") as view:
                views.append(view)
                taken.set()
                await go.wait()

        ctx.spawn(hold, while_open=True)
        await taken.wait()

    async with started(rows.plugin) as root:
        old = only(root, "row")
        async with root.kernel.stage() as stage:
            middle = stage.replace(old, config={"version": 1})
            holding = root.plugin(holder, stage=stage)
            await stage.settled()
            (view,) = views
            assert await versions(view) == {1}, "the world of the stage"
            assert [lease.epoch for lease in picture(root).leases] == [None]
            epoch = stage.commit()
        assert [lease.epoch for lease in picture(root).leases] == [epoch]
        await old.closing()
        await middle.update({"version": 2})
        assert await versions(view) == {1}
        assert await versions(holding.ctx) == {2}
        assert rows.open == [1, 2]
        go.set()
        await middle.closing()
        assert rows.open == [2]


async def test_dispose_waits_for_no_lease_and_hides_from_all_of_them() -> None:
    rows = Rows()
    async with started(rows.plugin) as root:
        with root.leased("a step") as view:
            assert await versions(view) == {0}
            await only(root, "row").dispose()
            assert (rows.open, await versions(view)) == ([], {None})


@pytest.mark.parametrize("replaced", [True, False])
async def test_an_awaited_dispatch_keeps_its_listeners_open_while_their_row_is_replaced(replaced: bool) -> None:
    rows = Rows()
    answers: list[int] = []
    async with started(rows.plugin) as root, anyio.create_task_group() as tasks:

        async def ask() -> None:
            answers.append(await root.waterfall(SHAPED, NOTHING, innermost))

        old = only(root, "row")
        tasks.start_soon(ask)
        await rows.busy.wait()
        assert [lease.who for lease in picture(root).leases] == ["shaped"]
        async with root.kernel.stage() as stage:
            if replaced:
                stage.replace(old, config={"version": 1})
                await stage.settled()
            else:
                stage.retire(old)
            stage.commit()
        await anyio.wait_all_tasks_blocked()
        assert 0 in rows.open
        rows.go.set()
        await old.closing()
        assert rows.open == ([1] if replaced else [])
        await anyio.wait_all_tasks_blocked()
        assert answers == [0]


async def test_facts_go_to_the_present_also_from_a_lease() -> None:
    rows = Rows()
    async with started(rows.plugin) as root:
        with root.leased("a step") as view:
            await only(root, "row").update({"version": 1})
            view.emit(TOLD, NOTHING)
            await view.parallel(SPREAD, NOTHING)
            assert rows.heard == [1, 1]


async def test_facts_from_a_stage_reach_its_own_listeners_only_and_questions_its_whole_view() -> None:
    present, staged = Rows(), Rows("staged", OTHER)

    @plugin("speaker", inject=[OTHER])
    async def speaker(ctx: Context, config: Config) -> None:
        ctx.emit(TOLD, NOTHING)
        await ctx.parallel(SPREAD, NOTHING)
        assert sorted(dict(ctx.registry(THING).items())) == ["row", "staged"]
        assert ctx.bail(PICKED, NOTHING) == 0, "the row path 'row' is before 'staged'"

    async with started(present.plugin) as root, root.kernel.stage() as stage:
        root.plugin(staged.plugin, {"version": 7}, stage=stage)
        root.plugin(speaker, stage=stage)
        await stage.settled()
        assert stage.obstacles() == []
        assert (present.heard, staged.heard) == ([], [7, 7])
        root.emit(TOLD, NOTHING)
        assert (present.heard, staged.heard) == ([0], [7, 7]), "nobody else sees what is staged"


async def test_a_view_used_after_its_block_is_an_error_that_names_its_lease() -> None:
    rows = Rows()
    async with started(rows.plugin, reader) as root:
        with only(root, "reader").ctx.leased("a step") as view:
            registry = view.registry(THING)
            assert (view[VERSION], view.get(VERSION), registry["row"]) == (0, 0, 0)
        reads: dict[str, Callable[[], object]] = {
            "a service read before": lambda: view[VERSION],
            "an optional service read before": lambda: view.get(VERSION),
            "a service nobody provides": lambda: view.get(OTHER),
            "a registry": lambda: registry["row"],
            "a registry with no entries": lambda: view.registry(LATE).get("row"),
            "bail, nobody listens": lambda: view.bail(Bail[Nothing, int]("nobody"), NOTHING),
            "serial": lambda: view.serial(ASKED, NOTHING),
            "waterfall": lambda: view.waterfall(SHAPED, NOTHING, innermost),
            "waterfall, nobody listens": lambda: view.waterfall(Waterfall("silence"), NOTHING, innermost),
            "another lease": lambda: view.leased("again").__enter__(),
        }
        rows.go.set()
        with pytest.raises(LeaseEndedError, match="'a step'"):
            view.bail(PICKED, NOTHING)
        answered = []
        for name, read in reads.items():
            with suppress(LeaseEndedError):
                result = read()
                if inspect.isawaitable(result):
                    await result
                answered.append(name)
        assert answered == []


async def test_leases_are_shown_with_their_holder_and_age_until_they_end() -> None:
    async with started() as root:
        with root.leased("a step of agent one"):
            (before,) = picture(root).leases
            (after,) = picture(root).leases
            assert (before.who, before.epoch) == ("a step of agent one", root.kernel.epoch)
            assert 0 <= before.age <= after.age < 10
        assert picture(root).leases == ()


async def test_a_retired_row_stays_on_its_last_world_also_in_its_cleanup_and_its_provider_closes_after_it() -> None:
    rows = Rows()
    seen: list[object] = []
    go, cleaning = anyio.Event(), anyio.Event()

    @plugin("consumer", inject=[VERSION])
    async def consumer(ctx: Context, config: Config) -> AsyncIterator[None]:
        yield
        cleaning.set()
        await go.wait()
        seen.extend(await versions(ctx) | {ctx[VERSION]})

    async with started(rows.plugin, consumer) as root:
        old, provider = only(root, "consumer"), only(root, "row")
        async with root.kernel.stage() as stage:
            stage.retire(old)
            stage.replace(provider, config={"version": 1})
            await stage.settled()
            stage.commit()
        await cleaning.wait()
        await only(root, "row").update({"version": 2})
        await anyio.wait_all_tasks_blocked()
        assert rows.open == [0, 2], "the provider waits for who was opened upon it"
        assert await versions(root) == {2}
        go.set()
        await provider.closing()
        assert seen == [0]
        assert rows.open == [2]
