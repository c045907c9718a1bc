"""Attempts that overlap: the latest wins, nothing is lost, nobody waits for a mistake that is already corrected."""

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from dshd import CONFIG_UPDATE, ENTRY_INIT, PARTIAL_DISPOSE, PATCH_CONTEXT, Config, Context, internal, plugin
from dshd.loader.request import Request
from dshd.loader.result import Outcome, Result
from dshd.testing.loader import Site, errors, kinds
from dshd.testing.parts import gates, journal

pytestmark = pytest.mark.anyio

DEADLINE = 20


def is_opening(site: Site, path: str) -> bool:
    return any(fiber.path == path and fiber.is_loading for fiber in site.root.kernel.fibers)


class Asker:
    """Reloads asked for in the background, and their results as they come."""

    def __init__(self, site: Site, tasks: anyio.abc.TaskGroup) -> None:
        self._site = site
        self._tasks = tasks
        self.results: dict[str, Result] = {}

    def reload(self, name: str, **how: object) -> None:
        async def ask() -> None:
            self.results[name] = await self._site.reload(**how)

        self._tasks.start_soon(ask)

    async def until(self, *names: str) -> None:
        await self._site.until(lambda: all(name in self.results for name in names))


async def test_an_edit_that_lands_while_an_attempt_prepares_supersedes_it(site: Site) -> None:
    """RLD-04: the last value is what runs, and whoever awaited an earlier one returns after that."""
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(), anyio.create_task_group() as tasks:
            asker = Asker(site, tasks)
            gates["never"] = anyio.Event()
            site.parts(a="value: 2, start: wait never")
            asker.reload("first")
            await site.until(lambda: is_opening(site, "a"))
            site.parts(a=3)
            asker.reload("second")
            await asker.until("first", "second")
            assert asker.results["first"] is asker.results["second"]
            assert asker.results["first"].result is Outcome.COMMITTED
            assert [result.result for result in site.told[1:]] == [Outcome.SUPERSEDED, Outcome.COMMITTED]
            assert site.things == {"a": 3}
            assert "open a 2" not in journal
            gates["never"].set()


async def test_going_back_while_an_attempt_prepares_leaves_no_trace_of_it(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(), anyio.create_task_group() as tasks:
            asker = Asker(site, tasks)
            before = site.instances
            site.parts(a="value: 2, start: hang")
            asker.reload("first")
            await site.until(lambda: is_opening(site, "a"))
            site.parts(a=1)
            asker.reload("second")
            await asker.until("first", "second")
            assert asker.results["first"].result is Outcome.NOOP
            assert site.instances == before
            await site.until(lambda: len(site.root.kernel.rows["a"]) == 1)
            assert journal == ["open a 1"]


async def test_an_edit_that_corrects_a_hanging_row_does_not_wait_for_it(site: Site) -> None:
    site.timing = replace(site.timing, load=300)
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="auto"):
            site.parts(a="start: hang")
            await site.until(lambda: is_opening(site, "a"))
            site.parts(a=2)
            await site.until(lambda: site.things == {"a": 2})


async def test_a_hanging_row_costs_its_own_deadline_only(site: Site) -> None:
    site.timing = replace(site.timing, load=0.3)
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2, b="start: hang", c="start: hang", d="start: hang")
            result = await site.reload()
            assert result.result is Outcome.PREPARE_FAILED
            assert [issue.row for issue in errors(result)] == ["b", "c", "d"]
            assert result.phases_ms["prepare"] < 10 * 300, "they hang at the same time"
            assert site.things == {"a": 1}


async def test_asking_again_for_the_same_inputs_joins_the_attempt_that_runs(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(), anyio.create_task_group() as tasks:
            asker = Asker(site, tasks)
            gates["door"] = anyio.Event()
            site.parts(a="value: 2, start: wait door")
            asker.reload("first")
            await site.until(lambda: is_opening(site, "a"))
            asker.reload("second")
            await anyio.wait_all_tasks_blocked()
            gates["door"].set()
            await asker.until("first", "second")
            assert asker.results["first"] is asker.results["second"]
            assert len(site.told) == 2


async def test_fifty_concurrent_reloads_are_few_attempts(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(), anyio.create_task_group() as tasks:
            asker = Asker(site, tasks)
            site.parts(a=2)
            for n in range(50):
                asker.reload(str(n))
            await asker.until(*map(str, range(50)))
            assert {result.generation for result in asker.results.values()} == {2}
            assert len(site.told) <= 4


async def test_thousands_of_wishes_behind_a_slow_attempt_are_all_answered(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(60):
        async with site.running() as reconciler:
            gates["door"] = anyio.Event()
            site.parts(a="value: 2, start: wait door")
            requests = [Request(trigger="api") for _ in range(3000)]
            for request in requests:
                reconciler.request(request)
            await site.until(lambda: is_opening(site, "a"))
            for request in [Request(trigger="api") for _ in range(3000)]:
                reconciler.request(request)
                requests.append(request)
            gates["door"].set()
            await site.until(lambda: all(request.result for request in requests), 50)


async def test_a_plan_is_answered_while_an_attempt_prepares(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(), anyio.create_task_group() as tasks:
            asker = Asker(site, tasks)
            gates["door"] = anyio.Event()
            site.parts(a="value: 2, start: wait door")
            asker.reload("first")
            await site.until(lambda: is_opening(site, "a"))
            plan = await site.reload(plan_only=True)
            assert kinds(plan) == {"a": "replace"}
            assert "first" not in asker.results
            gates["door"].set()
            await asker.until("first")


async def test_wishes_with_conditions_wait_for_their_turn(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler, anyio.create_task_group() as tasks:
            asker = Asker(site, tasks)
            gates["door"] = anyio.Event()
            site.parts(a="value: 2, start: wait door")
            asker.reload("first")
            await site.until(lambda: is_opening(site, "a"))
            asker.reload("second", if_generation=1)
            back: list[Result] = []

            async def rollback() -> None:
                back.append(await reconciler.rollback(1))

            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(rollback)
            await anyio.wait_all_tasks_blocked()
            gates["door"].set()
            await site.until(lambda: back)
            assert asker.results["second"].result is Outcome.CONFLICT
            assert back[0].result is Outcome.COMMITTED
            assert site.things == {"a": 1}


async def test_edits_of_two_rows_during_a_slow_cleanup_are_all_applied(site: Site) -> None:
    """WAT-06: the disposer of `a` is slow; `b` and again `a` are saved meanwhile."""
    gates["slow"] = anyio.Event()
    site.parts(a="value: 1, stop: wait slow", b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="auto"):
            site.parts(a=2, b=1)
            await site.until(lambda: site.things == {"a": 2, "b": 1})
            site.parts(a=2, b=2)
            await site.until(lambda: site.things == {"a": 2, "b": 2})
            site.parts(a=3, b=2)
            await site.until(lambda: site.things == {"a": 3, "b": 2})
            assert len(site.told) <= 4
            gates["slow"].set()


async def test_an_edit_of_a_file_in_the_start_supersedes_the_start(site: Site) -> None:
    site.write(
        "import anyio\nfrom dshd import LOADER, Config, Context, plugin\nfrom dshd.testing.parts import gates\n"
        "@plugin('early', inject=[LOADER])\n"
        "async def early(ctx: Context, config: Config) -> None:\n"
        "    await gates['edited'].wait()\n    ctx[LOADER].request_reload()\n    await gates['never'].wait()\n",
        "early.py",
    )
    gates["edited"], gates["never"] = anyio.Event(), anyio.Event()
    site.write("plugins: {e: {use: ./early.py}}")
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:

            async def edit() -> None:
                site.parts(a=5)
                gates["edited"].set()

            async def soon() -> None:
                await site.until(lambda: hasattr(site, "reconciler") and is_opening(site, "e"))
                await edit()

            tasks.start_soon(soon)
            async with site.running() as reconciler:
                assert site.things == {"a": 5}
                assert reconciler.last is not None
                assert (reconciler.last.trigger, reconciler.degraded) == ("start", None)


# -- nothing wedges it -------------------------------------------------------------------------------------------------


async def reloads_work(site: Site) -> None:
    values = site.reconciler.generation + 100
    site.parts(a=values)
    result = await site.reload()
    assert result.result is Outcome.COMMITTED, list(result.issues)
    assert site.things == {"a": values}


async def test_a_process_that_fails_when_told_of_attempts_does_not_stop_them(site: Site) -> None:
    def broken(*args: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        raise RuntimeError("the process is broken")

    def tells(result: object) -> None:
        broken()

    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            reconciler.options = replace(reconciler.options, on_result=tells, on_begin=tells)
            await reloads_work(site)
            reconciler.options = replace(
                reconciler.options, apply_daemon=lambda section, dry: ((), ()) if dry else broken()
            )
            site.parts(a=7)
            result = await site.reload()
            assert (result.result, [issue.code for issue in result.issues]) == (Outcome.COMMITTED, ["W0606"])
            reconciler.options = replace(reconciler.options, apply_daemon=broken)
            site.parts(a=8)
            result = await site.reload()
            assert (result.result, [issue.code for issue in result.issues]) == (Outcome.REJECTED, ["E0699"])
            assert site.things == {"a": 7}
            reconciler.options = replace(reconciler.options, apply_daemon=lambda section, dry: ((), ()))
            await reloads_work(site)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
async def test_listeners_that_fail_at_every_event_do_not_stop_reloads(site: Site, error: type[BaseException]) -> None:
    def broken(*args: object) -> None:
        raise error("listener")

    @plugin("vandal")
    async def vandal(ctx: Context, config: Config) -> None:
        for event in (ENTRY_INIT, PATCH_CONTEXT, PARTIAL_DISPOSE, CONFIG_UPDATE):
            ctx.on(event, broken)
        for watched in (internal.STATUS, internal.PLUGIN, internal.SERVICE, internal.DISPATCH):
            ctx.on(watched, broken)

    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            await site.root.plugin(vandal).settled()
            await reloads_work(site)
            await reloads_work(site)


async def test_a_listener_that_asks_for_a_reload_at_every_commit_does_not_loop(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.root.on(CONFIG_UPDATE, lambda update: reconciler.request(Request(trigger="plugin")))
            await reloads_work(site)
            await site.reload()
            assert len(site.told) <= 4


async def test_a_listener_that_disposes_of_rows_does_not_stop_reloads(site: Site) -> None:
    site.parts(a=1, b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:

            def end(update: object) -> None:
                fiber = reconciler.fiber("b")
                if fiber is not None:
                    fiber.end()

            site.root.on(CONFIG_UPDATE, end)
            site.parts(a=2, b=2)
            assert (await site.reload()).result is Outcome.COMMITTED
            site.parts(a=3, b=3)
            assert (await site.reload()).result is Outcome.COMMITTED
            assert site.things["a"] == 3


@plugin("meddler")
async def meddler(ctx: Context, config: Config) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("part", ["watch", "supervisor", "drains", "confirmation"])
async def test_an_error_beside_the_attempts_is_contained(
    site: Site, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dshd.loader.confirmation import Confirmation
    from dshd.loader.drains import Drains
    from dshd.loader.supervise import Supervisor
    from dshd.loader.watch import Watch

    broken = {
        "watch": (Watch, "run"), "supervisor": (Supervisor, "run"), "drains": (Drains, "watch"),
        "confirmation": (Confirmation, "watch"),
    }[part]  # fmt: skip
    calls: list[int] = []

    async def fail(self: object) -> None:
        calls.append(1)
        raise RuntimeError("broken")

    monkeypatch.setattr(*broken, fail)
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            await site.until(lambda: calls)
            await reloads_work(site)


async def test_a_state_directory_that_cannot_be_written_is_told_and_stops_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dshd.loader.history import History

    def full(self: object, name: str, text: str, *, lasting: bool = True) -> None:
        raise OSError(28, "No space left on device")

    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            with monkeypatch.context() as patch:
                patch.setattr(History, "_write", full)
                site.parts(a=2)
                result = await site.reload()
                assert (result.result, [issue.code for issue in result.issues]) == (Outcome.COMMITTED, ["W0607"])
                assert (site.things, reconciler.generation) == ({"a": 2}, 2)
                site.parts(a=3)
                result = await site.reload(confirm_seconds=60)
                assert (result.result, [issue.code for issue in result.issues]) == (Outcome.PREPARE_FAILED, ["E0605"])
                assert (site.things, reconciler.confirm_by) == ({"a": 2}, None)
            await reloads_work(site)
            assert reconciler.generation == 3


async def test_whoever_asks_when_it_has_ended_is_answered(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            async with site.running() as reconciler:
                asker = Asker(site, tasks)
                site.parts(a="start: hang")
                asker.reload("running")
                await site.until(lambda: is_opening(site, "a"))
                asker.reload("waiting", if_generation=1)
                await anyio.wait_all_tasks_blocked()
            asker.reload("late")
            await asker.until("running", "waiting", "late")
            assert {result.result for result in asker.results.values()} == {Outcome.REJECTED}
            assert [issue.code for issue in asker.results["late"].issues] == ["E0608"]
            assert reconciler.generation == 1
