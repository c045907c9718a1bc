"""One reload: what is kept and what is opened anew, what a failure changes (nothing), and what is reported of it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dshd import (
    CONFIG_UPDATE,
    ENTRY_INIT,
    LOADER,
    PARTIAL_DISPOSE,
    PATCH_CONTEXT,
    Config,
    Context,
    FiberState,
    Plugin,
    ServiceKey,
    plugin,
)
from dshd.loader.events import Loader
from dshd.loader.result import Outcome
from dshd.testing.loader import USE, Site, errors, kinds, row
from dshd.testing.parts import DB, THINGS, gates, journal

pytestmark = pytest.mark.anyio

DEADLINE = 20


# -- small edits -------------------------------------------------------------------------------------------------------


async def test_an_edit_of_one_row_replaces_that_row_only(site: Site) -> None:
    site.parts(a=1, b=1, c=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            before = site.instances
            site.parts(a=1, b=2, c=1)
            result = await site.reload()
            assert result.result is Outcome.COMMITTED
            assert kinds(result) == {"b": "replace"}
            assert result.plan.actions[1].changed == ("config.value",)
            after = site.instances
            assert (after["a"], after["c"]) == (before["a"], before["c"])
            assert after["b"] is not before["b"]
            assert site.things == {"a": 1, "b": 2, "c": 1}
            assert journal == ["open a 1", "open b 1", "open c 1", "open b 2", *journal[4:]]


async def test_rows_are_added_and_removed(site: Site) -> None:
    site.parts(a=1, b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(b=1, c=1)
            result = await site.reload()
            assert kinds(result) == {"a": "remove", "c": "add"}
            assert site.things == {"b": 1, "c": 1}
            await site.until(lambda: journal[-1] == "close a 1")


async def test_comments_order_and_quoting_are_no_change(site: Site) -> None:
    site.parts(a=1, b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            before = site.instances
            result = await site.edit(f"""\
                # said differently
                plugins:
                  b:
                    config: {{"value": 1, 'id': "b"}}
                    use: {USE}:part
                  a: {{config: {{id: a, value: 1}}, use: "{USE}:part"}}
                """)
            assert (result.result, result.generation) == (Outcome.NOOP, 1)
            assert site.instances == before
            assert journal == ["open a 1", "open b 1"]


async def test_the_same_again_is_a_noop_that_nobody_hears_of(site: Site) -> None:
    site.parts(a=1)
    heard: list[object] = []
    with anyio.fail_after(DEADLINE):
        async with site.running():
            for event in (ENTRY_INIT, PATCH_CONTEXT, PARTIAL_DISPOSE, CONFIG_UPDATE):
                site.root.on(event, heard.append)
            for _ in range(3):
                assert (await site.reload()).result is Outcome.NOOP
            assert heard == []
            assert site.reconciler.generation == 1


async def test_readers_under_load_see_the_old_tree_or_the_new_one(site: Site) -> None:
    site.parts(**{f"p{n}": 0 for n in range(8)})
    mixtures: list[dict[str, int]] = []
    looks = 0
    with anyio.fail_after(60):
        async with site.running():
            done = anyio.Event()

            async def read() -> None:
                nonlocal looks
                while not done.is_set():
                    things = site.things
                    looks += 1
                    if len(things) != 8 or len(set(things.values())) != 1:
                        mixtures.append(things)
                    await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(read)
                for value in range(1, 15):
                    site.parts(**{f"p{n}": value for n in range(8)})
                    assert (await site.reload()).result is Outcome.COMMITTED
                done.set()
    assert mixtures == []
    assert looks > 100


async def test_work_under_a_lease_sees_one_generation_and_holds_up_nothing(site: Site) -> None:
    site.parts(a=1, b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            with site.root.leased("turn") as turn:
                site.parts(a=2, b=2)
                result = await site.reload()
                assert result.result is Outcome.COMMITTED
                assert result.draining == ("a", "b")
                assert dict(turn.registry(THINGS).items()) == {"a": 1, "b": 1}
                assert site.things == {"a": 2, "b": 2}
                site.parts(a=3, b=2)
                assert (await site.reload()).result is Outcome.COMMITTED
                assert [fiber.path for fiber in site.reconciler.drains.fibers] == ["a", "b", "a"][
                    : len(site.reconciler.drains.fibers)
                ]
                assert not [entry for entry in journal if entry.startswith("close a 1")]
            await site.until(lambda: "close a 1" in journal)


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fail", "exit"])
async def test_a_row_that_fails_restarts_nothing_and_is_reported_with_its_place(site: Site, how: str) -> None:
    """RLD-01: A is not removed when B, added by the same edit, fails."""
    site.parts(a=1, c=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            before = site.instances
            site.parts(b=f"start: {how}", c=2)
            result = await site.reload()
            assert result.result is Outcome.PREPARE_FAILED
            (issue,) = errors(result)
            assert (issue.code, issue.row, issue.file, issue.line) == ("E0602", "b", str(site.file), 2)
            assert "'b' did not start" in issue.message
            assert site.instances == before
            assert site.things == {"a": 1, "c": 1}
            assert (result.generation, reconciler.generation) == (1, 1)
            assert "close a 1" not in journal
            assert "close c 1" not in journal
            site.parts(a=1, c=1)
            assert (await site.reload()).result is Outcome.NOOP
            assert site.instances == before


async def test_what_failed_once_is_tried_again_by_the_next_reload_of_the_same_file(site: Site) -> None:
    """RLD-02: the baseline moves only in the commit."""
    site.write(
        "from dshd import Config, Context, plugin\nfails = [1]\n@plugin('moody')\n"
        "async def moody(ctx: Context, config: Config) -> None:\n"
        "    if fails:\n        fails.pop()\n        raise RuntimeError('its dependency is down')\n",
        "moody.py",
    )
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            text = "plugins:\n" + row("a", value=1) + "  m: {use: ./moody.py}\n"
            first = await site.edit(text)
            assert first.result is Outcome.PREPARE_FAILED
            assert "its dependency is down" in errors(first)[0].message
            assert list(site.reconciler.specs) == ["a"]
            assert (await site.reload()).result is Outcome.COMMITTED
            assert list(site.reconciler.specs) == ["a", "m"]


async def test_an_invalid_file_changes_nothing_and_everything_wrong_is_reported(site: Site) -> None:
    site.parts(a=1, b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            before = site.instances
            result = await site.edit(f"""\
                plugins:
                  a: {{use: {USE}:part, config: {{valu: 1}}}}
                  b: {{use: {USE}:prat}}
                """)
            assert result.result is Outcome.REJECTED
            assert [(issue.row, issue.line) for issue in errors(result)] == [("a", 2), ("b", 3)]
            assert kinds(result) == {}
            assert site.instances == before


async def test_a_row_that_is_abandoned_while_loading_costs_its_deadline_and_changes_nothing(site: Site) -> None:
    site.timing = replace(site.timing, load=0.1)
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=1, b="start: deaf")
            result = await site.reload()
            assert result.result is Outcome.PREPARE_FAILED
            assert "abandoned" in errors(result)[0].message
            assert site.things == {"a": 1}
            site.parts(a=2, b=1)
            assert (await site.reload()).result is Outcome.COMMITTED
            assert site.things == {"a": 2, "b": 1}


async def test_a_cleanup_that_never_returns_blocks_no_reload_and_is_reported(site: Site) -> None:
    """RLD-17"""
    site.timing = replace(site.timing, unload=0.1)
    site.parts(a="stop: deaf", b=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=1, b=1)
            assert (await site.reload()).result is Outcome.COMMITTED
            site.parts(a=1, b=2)
            assert (await site.reload()).result is Outcome.COMMITTED
            assert site.things == {"a": 1, "b": 2}
            await site.until(lambda: reconciler.drains.leaks == ["a"])
            assert (await site.reload()).leaks == ("a",)
            await site.until(lambda: reconciler.drains.leaks == [])


async def test_a_plugin_that_crashes_after_the_commit_is_reopened_and_reloads_go_on(site: Site) -> None:
    site.parts(a=1, b="later: crash")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            await site.until(lambda: journal.count("open b 0") > 1)
            site.parts(a=2, b=1)
            assert (await site.reload()).result is Outcome.COMMITTED
            assert site.things == {"a": 2, "b": 1}


# -- the gate and conditions -------------------------------------------------------------------------------------------


async def test_removing_more_than_half_of_six_rows_is_held(site: Site) -> None:
    rows = {f"p{n}": 1 for n in range(6)}
    site.parts(**rows)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            before = site.instances
            site.parts(p0=1, p1=1)
            result = await site.reload()
            assert result.result is Outcome.HELD
            assert result.held_reason == "it would remove 4 of 6 rows; say --allow-removals if that is meant"
            assert site.instances == before
            assert (await site.reload(plan_only=True)).result is Outcome.HELD
            site.parts(p0=1, p1=1, p2=1)
            assert (await site.reload()).result is Outcome.COMMITTED, "half is not more than half"
            site.parts(p0=1)
            assert (await site.reload()).result is Outcome.COMMITTED, "three are not six"


@pytest.mark.parametrize("text", ["plugins: {}\n", "", "# nothing\n", "[]\n"])
async def test_emptying_the_tree_is_held_or_refused(site: Site, text: str) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            result = await site.edit(text)
            assert result.result in (Outcome.HELD, Outcome.REJECTED)
            assert site.things == {"a": 1}
            if result.result is Outcome.HELD:
                assert (await site.reload(allow_removals=True)).result is Outcome.COMMITTED
                assert site.things == {}


async def test_another_generation_than_expected_is_a_conflict(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            result = await site.reload(if_generation=7)
            assert (result.result, result.held_reason) == (Outcome.CONFLICT, "generation 1 runs, not 7")
            assert site.things == {"a": 1}
            assert (await site.reload(if_generation=1)).result is Outcome.COMMITTED


async def test_a_plan_touches_nothing_and_is_no_reload(site: Site) -> None:
    site.parts(a=1)
    begun: list[str] = []
    with anyio.fail_after(DEADLINE):
        async with site.running(on_begin=begun.append) as reconciler:
            told, last = len(site.told), reconciler.last
            site.parts(a=2, b=1)
            result = await site.reload(plan_only=True)
            assert (result.result, kinds(result)) == (Outcome.NOOP, {"a": "replace", "b": "add"})
            assert site.things == {"a": 1}
            assert (len(site.told), reconciler.last, begun) == (told, last, ["start"])
            assert (await site.reload()).result is Outcome.COMMITTED


async def test_a_plan_does_not_hide_an_edit_from_the_watch(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="poll", poll=0.2):
            site.parts(a=2)
            await site.reload(plan_only=True)
            await site.until(lambda: site.things == {"a": 2})


async def test_numbers_grow_by_one_and_survive_a_restart(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            numbers = [reconciler.generation]
            for value in (2, 2, 3):
                site.parts(a=value)
                numbers.append((await site.reload()).generation)
            assert numbers == [1, 2, 2, 3]
            site.parts(a="start: fail")
            assert (await site.reload()).generation == 3
            site.parts(a=4)
        async with site.running() as reconciler:
            assert reconciler.generation == 4
            assert [entry["generation"] for entry in reconciler.results[:2]] == [4, 3]


async def test_a_commit_that_finds_the_tree_moved_is_tried_once_more(site: Site) -> None:
    site.write(f"plugins:\n{row('d', 'db')}{row('k', 'keeper')}")
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            gates["slow"] = anyio.Event()
            site.write(f"plugins:\n{row('d', 'db')}{row('k', 'keeper')}{row('s', start='wait slow')}")
            results = []

            async def reload() -> None:
                results.append(await site.reload())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reload)
                await site.until(lambda: any(f.path == "s" for f in site.root.kernel.fibers))
                moved = await site.instances["d"].update({"id": "d", "value": 5})
                gates["slow"].set()
            assert [result.result for result in results] == [Outcome.COMMITTED]
            assert reconciler.fiber("d") is moved
            assert sorted(reconciler.specs) == ["d", "k", "s"]


async def test_a_commit_that_goes_on_being_refused_fails(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            rival = site.root.plugin(_rival())
            await rival.settled()
            site.write(f"plugins:\n{row('a', value=1)}{row('d', 'db')}")
            result = await site.reload()
            assert result.result is Outcome.PREPARE_FAILED
            assert "db" in errors(result)[0].message
            assert site.things == {"a": 1}
            await rival.dispose()
            assert (await site.reload()).result is Outcome.COMMITTED


def _rival() -> Plugin[Config]:
    @plugin("rival", provides=[DB])
    async def rival(ctx: Context, config: Config) -> None:
        ctx.provide(DB, "rival")

    return rival


# -- services ----------------------------------------------------------------------------------------------------------


async def test_pinned_rows_are_replaced_with_what_they_keep_in_one_commit_and_others_are_not(site: Site) -> None:
    """DSP-07: A provides `db`; B and C keep it, L is late-bound, D needs nothing."""
    rows = row("b", "keeper") + row("c", "keeper") + row("l", "user") + row("x", value=1)
    site.write(f"plugins:\n{row('a', 'db', value=1)}{rows}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            before = site.instances
            journal.clear()
            epoch = site.root.kernel.epoch
            rows = row("b", "keeper", value=7) + row("c", "keeper") + row("l", "user") + row("x", value=1)
            result = await site.edit(f"plugins:\n{row('a', 'db', value=2)}{rows}")
            assert kinds(result) == {"a": "replace", "b": "replace", "c": "replace"}
            assert site.root.kernel.epoch == epoch + 1
            reason = next(action.reason for action in result.plan.actions if action.row == "c")
            assert reason == "keeps 'db' of 'a', which is replaced"
            assert (site.instances["l"], site.instances["x"]) == (before["l"], before["x"])
            await site.until(lambda: len(journal) == 6)
            assert journal[0] == "open a 2"
            assert sorted(journal[1:3]) == ["open b db 2", "open c db 2"]
            assert sorted(journal[3:5]) == ["close b db 1", "close c db 1"]
            assert journal[5] == "close a 1"


async def test_removing_what_a_kept_row_needs_is_refused_and_names_both(site: Site) -> None:
    site.write(f"plugins:\n{row('a', 'db')}{row('l', 'user')}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            result = await site.edit(f"plugins:\n{row('l', 'user')}")
            assert result.result is Outcome.REJECTED
            (issue,) = errors(result)
            assert (issue.code, issue.line) == ("E0501", 2)
            assert "row 'l' waits for service 'db'" in issue.message
            assert "row 'a', which provides it now, would be removed" in issue.message
            assert [fiber.state for fiber in site.instances.values()] == [FiberState.ACTIVE] * 2


async def test_a_row_that_misses_a_service_is_refused_unless_it_is_optional(site: Site) -> None:
    """RLD-26"""
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            result = await site.edit(f"plugins:\n{row('a', value=1)}{row('l', 'user')}")
            assert [(issue.code, issue.row) for issue in errors(result)] == [("E0501", "l")]
            waiting = row("l", "user", "optional: true")
            result = await site.edit(f"plugins:\n{row('a', value=1)}{waiting}")
            assert (result.result, [issue.code for issue in result.issues]) == (Outcome.COMMITTED, ["W0501"])
            fiber = site.instances["l"]
            assert fiber.state is FiberState.PENDING
            await site.edit(f"plugins:\n{row('a', value=1)}{waiting}{row('d', 'db', value=4)}")
            await site.until(lambda: "open l db 4" in journal)
            assert site.instances["l"] is fiber


async def test_an_optional_row_that_fails_holds_nothing_up_and_is_tried_again(site: Site) -> None:
    site.write(
        "from dshd import Config, Context, plugin\nfails = [1, 2, 3]\n@plugin('moody')\n"
        "async def moody(ctx: Context, config: Config) -> None:\n"
        "    if fails:\n        fails.pop()\n        raise RuntimeError('not yet')\n",
        "moody.py",
    )
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            text = f"plugins:\n{row('a', value=2)}  m: {{use: ./moody.py, optional: true}}\n"
            assert (await site.edit(text)).result is Outcome.COMMITTED
            assert site.things == {"a": 2}
            fiber = site.instances["m"]
            await site.until(lambda: fiber.state is FiberState.ACTIVE)
            assert (await site.reload()).result is Outcome.NOOP


async def test_an_optional_row_that_keeps_failing_retires_its_old_instance_and_costs_no_processor(site: Site) -> None:
    site.write(f"plugins:\n{row('a', more='optional: true', value=1)}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            text = f"plugins:\n{row('a', more='optional: true', value=2, start='fail')}"
            assert (await site.edit(text)).result is Outcome.COMMITTED
            assert site.things == {}
            fiber = site.instances["a"]
            await site.until(lambda: "close a 1" in journal)
            assert fiber.error is not None
            text = f"plugins:\n{row('a', more='optional: true', value=3)}"
            assert (await site.edit(text)).result is Outcome.COMMITTED
            assert site.things == {"a": 3}


async def test_a_row_that_moves_to_another_group_is_replaced_and_to_another_file_is_not(site: Site) -> None:
    site.write(f"plugins:\n{row('a', value=1)}{row('b', value=1)}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            before = site.instances
            site.write(f"plugins:\n{row('b', value=1)}", "more.yaml")
            result = await site.edit(f"include: [more.yaml]\nplugins:\n{row('a', value=1)}")
            assert result.result is Outcome.NOOP
            assert site.instances == before
            text = f"include: [more.yaml]\nplugins:\n  g:\n    group:\n    {row('a', value=1)}"
            result = await site.edit(text)
            assert kinds(result) == {"a": "remove", "g/a": "add"}
            assert site.things == {"a": 1, "b": 1}
            assert site.instances["b"] is before["b"]


async def test_isolate_intercept_and_inject_of_groups_reach_their_rows(site: Site) -> None:
    site.write(f"""\
        plugins:
          d: {{use: {USE}:db, config: {{id: d, value: 1}}}}
          l: {{use: {USE}:user, config: {{id: l}}}}
          g:
            isolate: [db]
            intercept: {{db: {{who: group}}}}
            group:
              d: {{use: {USE}:db, config: {{id: gd, value: 2}}}}
              l: {{use: {USE}:user, config: {{id: gl}}, intercept: {{db: {{who: row}}}}}}
              p: {{use: {USE}:part, config: {{id: gp}}, inject: [db]}}
        """)
    contexts: dict[str, Context] = {}
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.root.on(PATCH_CONTEXT, lambda told: contexts.update({told.row: told.context}))
            assert sorted(journal) == ["open d 1", "open gd 2", "open gl db 2", "open gp 0", "open l db 1"]
            before = site.instances
            text = site.file.read_text().replace("value: 2", "value: 3")
            result = await site.edit(text)
            assert kinds(result) == {"g/d": "replace"}
            result = await site.edit(text.replace("who: group", "who: nobody"))
            assert kinds(result) == {"g/d": "replace", "g/l": "replace", "g/p": "replace"}
            result = await site.edit(text.replace("isolate: [db]", "isolate: {db: named}"))
            assert {"g/d", "g/l", "g/p"} == set(kinds(result))
            assert contexts["g/l"].realm(ServiceKey[Any]("db")).name == "named"
            assert site.instances["l"] is before["l"]
            assert site.instances["d"] is before["d"]


# -- the process, events, the face -------------------------------------------------------------------------------------


async def test_fields_of_the_process_wait_for_a_restart_and_the_rest_is_applied(site: Site) -> None:
    """RLD-24"""
    applied: list[tuple[Mapping[str, Any], bool]] = []

    def apply(section: Mapping[str, Any], dry: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        applied.append((section, dry))
        return ("daemon.timezone: needs a restart",) if "timezone" in section else (), ()

    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(apply_daemon=apply):
            assert applied == [({}, False)], "at start it counts before any row opens"
            applied.clear()
            result = await site.edit(f"daemon: {{timezone: UTC}}\nplugins:\n{row('a', value=2)}")
            assert (result.result, result.pending_restart) == (
                Outcome.COMMITTED, ("daemon.timezone: needs a restart",)
            )  # fmt: skip
            assert [dry for _, dry in applied] == [True, False]
            result = await site.reload()
            assert (result.result, result.pending_restart) == (Outcome.NOOP, ("daemon.timezone: needs a restart",))
            applied.clear()
            await site.edit(f"daemon: {{timezone: UTC, x: 1}}\nplugins:\n{row('a', start='fail')}")
            assert [dry for _, dry in applied] == [True], "what fails changes nothing of the process either"


async def test_each_event_of_a_reload_is_told_once(site: Site) -> None:
    site.parts(a=1, b=1, c=1)
    heard: list[tuple[str, str]] = []
    updates: list[Any] = []
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.root.on(ENTRY_INIT, lambda told: heard.append(("init", told.row)))
            site.root.on(PATCH_CONTEXT, lambda told: heard.append(("context", told.row)))
            site.root.on(PARTIAL_DISPOSE, lambda told: heard.append((f"dispose {told.replaced}", told.row)))
            site.root.on(CONFIG_UPDATE, updates.append)
            site.parts(a=1, b=2, d=1)
            result = await site.reload()
            assert heard == [
                ("init", "b"), ("context", "b"), ("init", "d"), ("context", "d"),
                ("dispose True", "b"), ("dispose False", "c"),
            ]  # fmt: skip
            assert [(u.generation, u.attempt, u.trigger) for u in updates] == [(2, result.attempt, "api")]
            assert updates[0].plan == result.plan.as_json()


async def test_the_loader_is_a_service(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            loader: Loader | None = site.root.get(LOADER)
            assert loader is not None
            assert loader.generation == 1
            assert loader.rows()["a"]["plugin"] == "part"
            site.parts(a=2)
            assert (await loader.plan())["plan"]["actions"][0]["action"] == "replace"
            attempt = loader.request_reload()
            await site.until(lambda: reconciler.generation == 2)
            assert loader.history()[0]["attempt"] == attempt
            assert json.loads(json.dumps(loader.history())) == loader.history()


ASKING = """
import anyio
from dshd import LOADER, Config, Context, plugin

seen = []

class Asking(Config):
    value: int = 0

@plugin("asking", config=Asking, inject=[LOADER])
async def asking(ctx: Context, config: Asking):
    loader = ctx[LOADER]
    seen.append((await loader.plan())["result"])
    seen.append(loader.request_reload())
    yield
    seen.append((await loader.plan())["result"])
    seen.append(loader.request_reload())
"""


async def test_a_plugin_that_asks_while_it_opens_or_closes_waits_for_nobody(site: Site) -> None:
    site.write(ASKING, "asking.py")
    site.write("plugins: {q: {use: ./asking.py}}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            result = await site.edit("plugins: {q: {use: ./asking.py, config: {value: 1}}}")
            assert result.result is Outcome.COMMITTED
            with anyio.fail_after(3):
                await site.instances["q"].settled()
                await site.reload()


async def test_a_reload_asked_for_under_a_lease_is_not_blocked_by_it(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            with site.root.leased("turn") as turn:
                site.parts(a=2)
                loader: Loader | None = site.root.get(LOADER)
                assert loader is not None
                loader.request_reload()
                await site.until(lambda: site.things == {"a": 2})
                assert turn.registry(THINGS)["a"] == 1


async def test_an_attempt_says_how_long_its_phases_took_and_how_long_the_loop_stood_still(site: Site) -> None:
    import time

    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.root.on(ENTRY_INIT, lambda told: time.sleep(0.05))
            site.parts(a=2)
            result = await site.reload()
            assert list(result.phases_ms) == ["read", "plan", "prepare", "commit", "record"]
            assert result.loop_stall_ms is not None
            assert 40 < result.loop_stall_ms < 5000
            assert result.commit_ms is not None


async def test_an_import_that_never_returns_costs_the_deadline_of_reading(site: Site) -> None:
    import time

    from dshd.testing import parts

    parts.blocked = lambda: time.sleep(2)  # type: ignore[attr-defined]
    site.write("from dshd.testing import parts\nparts.blocked()\n", "slow.py")
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(read_timeout=0.2):
            result = await site.edit(f"plugins:\n{row('a', value=2)}  s: {{use: ./slow.py}}\n")
            assert (result.result, [issue.code for issue in errors(result)]) == (Outcome.TIMED_OUT, ["E0604"])
            site.parts(a=3)
            assert (await site.reload()).result is Outcome.COMMITTED
