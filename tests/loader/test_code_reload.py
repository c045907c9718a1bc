"""Plugin code that changes: reloaded while an `hmr` row is live, else listed as waiting for a restart."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from dshd import HMR, HMR_CHANGE, HMR_RELOAD
from dshd.loader.result import Outcome, Result
from dshd.testing.loader import Site, errors, kinds, row
from dshd.testing.parts import journal

pytestmark = pytest.mark.anyio

DEADLINE = 30


def code(name: str, version: int, tail: str = "") -> str:
    return (
        "from dshd import Config, Context, plugin\nfrom dshd.testing.parts import THINGS, journal\n"
        f"VERSION = {version}\n"
        f"@plugin('{name}')\nasync def it(ctx: Context, config: Config) -> None:\n"
        f"    journal.append('run {name} {version}')\n"
        f"    ctx.registry(THINGS).add('{name}', {version})\n{tail}"
    )


ROWS = "plugins:\n  hmr: {use: hmr}\n  p: {use: ./p.py}\n  q: {use: ./q.py}\n"


@pytest.fixture
def coded(site: Site) -> Site:
    site.write(code("p", 1), "p.py")
    site.write(code("q", 1), "q.py")
    site.write(ROWS)
    return site


def shows(site: Site, **things: int) -> bool:
    return site.things == things


def module(site: Site, name: str) -> Any:
    (found,) = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(site.home / name)]
    return found


async def test_an_edit_of_code_replaces_the_rows_that_use_it_and_no_other(coded: Site) -> None:
    heard: list[object] = []
    with anyio.fail_after(DEADLINE):
        async with coded.running(watch="auto", rescan=3600.0):
            coded.root.on(HMR_CHANGE, lambda told: heard.append(("change", told.file)))
            coded.root.on(HMR_RELOAD, lambda told: heard.append(("reload", told.rows)))
            assert coded.root.get(HMR) is not None
            before = coded.instances
            for version in (2, 3):
                coded.write(code("p", version), "p.py")
                await coded.until(partial(shows, coded, p=version, q=1))
            assert coded.instances["q"] is before["q"]
            assert coded.instances["hmr"] is before["hmr"]
            assert journal == ["run p 1", "run q 1", "run p 2", "run p 3"]
            await coded.until(lambda: len(heard) == 4)
            assert heard == [("change", str(coded.home / "p.py")), ("reload", ("p",))] * 2
            assert module(coded, "p.py").VERSION == 3


BROKEN = {
    "syntax": ("def broken(:\n", Outcome.REJECTED),
    "import": ("import no_such_module_anywhere\n", Outcome.REJECTED),
    "exit": ("raise SystemExit(3)\n", Outcome.REJECTED),
    "no plugin": ("VERSION = 9\n", Outcome.REJECTED),
    "start": (code("p", 9, "    raise RuntimeError('not today')\n"), Outcome.PREPARE_FAILED),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_code_that_fails_leaves_the_old_running_and_its_correction_works(coded: Site, how: str) -> None:
    text, outcome = BROKEN[how]
    with anyio.fail_after(DEADLINE):
        async with coded.running(watch="auto", rescan=3600.0):
            before, old = coded.instances, module(coded, "p.py")
            coded.write(text, "p.py")
            result = await coded.attempt(outcome, after=1)
            assert [issue.row for issue in errors(result)] == ["p"]
            assert coded.instances == before
            assert coded.things == {"p": 1, "q": 1}
            await coded.until(lambda: module(coded, "p.py") is old)
            told = len(coded.told)
            coded.write(ROWS + "\n# touched\n")
            await coded.reload()
            assert coded.told[told].result is outcome, "the code is still wrong, whatever else is edited"
            coded.write(code("p", 2), "p.py")
            await coded.until(lambda: coded.things == {"p": 2, "q": 1})
            assert coded.instances["q"] is before["q"]


async def test_code_and_rows_edited_together_are_one_commit(coded: Site) -> None:
    with anyio.fail_after(DEADLINE):
        async with coded.running():
            coded.write(code("p", 2), "p.py")
            coded.write(code("q", 2), "q.py")
            result = await coded.edit(ROWS + row("a", value=1))
            assert kinds(result) == {"a": "add", "p": "replace", "q": "replace"}
            assert result.plan.actions[2].changed == ("code",)
            assert coded.things == {"a": 1, "p": 2, "q": 2}


async def test_a_package_with_a_cycle_reloads_once(site: Site) -> None:
    """RLD-22"""
    package = site.home / "pack"
    package.mkdir()

    def fill(version: int) -> None:
        (package / "one.py").write_text(f"from . import two\nONE = {version}\n")
        (package / "two.py").write_text(f"from . import one\nTWO = {version}\ndef both():\n    return one.ONE, TWO\n")

    init = "from . import one, two\nassert two.both()[0] == two.both()[1]\n" + code("pack", 0).replace("0", "one.ONE")
    (package / "__init__.py").write_text(init)
    fill(1)
    site.write("plugins:\n  hmr: {use: hmr}\n  k: {use: ./pack}\n")
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="auto", rescan=3600.0):
            for version in range(2, 6):
                fill(version)
                await site.until(partial(shows, site, pack=version))
            assert len(journal) == 5
            await site.until(lambda: len(site.told) >= 5)
            assert [r.result for r in site.told if r.result is Outcome.COMMITTED] == [Outcome.COMMITTED] * 5


async def test_a_module_deep_in_a_package_is_watched_as_well(site: Site) -> None:
    deep = site.home / "pack" / "a" / "b"
    deep.mkdir(parents=True)
    for directory in (deep, deep.parent):
        (directory / "__init__.py").touch()
    (deep / "c.py").write_text("C = 1\n")
    init = "from .a.b.c import C\n" + code("pack", 0).replace("0", "C")
    (site.home / "pack" / "__init__.py").write_text(init)
    site.write("plugins:\n  hmr: {use: hmr}\n  k: {use: ./pack}\n")
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="auto", rescan=3600.0):
            (deep / "c.py").write_text("C = 2\n")
            await site.until(lambda: site.things == {"pack": 2})


async def test_without_an_hmr_row_changed_code_waits_for_a_restart(coded: Site) -> None:
    heard: list[object] = []
    coded.write(ROWS.replace("  hmr: {use: hmr}\n", ""))
    with anyio.fail_after(DEADLINE):
        async with coded.running():
            coded.root.on(HMR_CHANGE, heard.append)
            coded.write(code("p", 2), "p.py")
            result = await coded.reload()
            assert result.result is Outcome.NOOP
            (waiting,) = result.pending_restart
            assert waiting == f"p: its code has changed on disk: {coded.home / 'p.py'}"
            assert kinds(result) == {"p": "pending_restart"}
            assert coded.things == {"p": 1, "q": 1}
            assert heard == []


async def test_switching_code_reload_on_applies_what_has_waited_and_off_stops_it(coded: Site) -> None:
    without = ROWS.replace("  hmr: {use: hmr}\n", "")
    coded.write(without)
    with anyio.fail_after(DEADLINE):
        async with coded.running(watch="auto", rescan=3600.0):
            coded.write(code("p", 2), "p.py")
            assert (await coded.reload()).pending_restart
            coded.write(ROWS)
            await coded.until(lambda: coded.things == {"p": 2, "q": 1})
            coded.write(code("p", 3), "p.py")
            await coded.until(lambda: coded.things == {"p": 3, "q": 1})
            coded.write(without)
            await coded.until(lambda: "hmr" not in coded.reconciler.specs)
            await coded.until(lambda: coded.root.get(HMR) is None and not coded.reconciler.code.reloading)
            coded.write(code("p", 4), "p.py")
            assert (await coded.reload()).pending_restart
            assert coded.things == {"p": 3, "q": 1}


async def test_a_correction_of_code_that_hangs_does_not_wait_for_it(coded: Site) -> None:
    hangs = code("p", 2, "    import anyio\n    await anyio.sleep_forever()\n")
    with anyio.fail_after(DEADLINE):
        async with coded.running(watch="auto", rescan=3600.0):
            coded.root.kernel.timing = coded.root.kernel.timing.__class__(load=600)
            coded.write(hangs, "p.py")
            await coded.until(lambda: "run p 2" in journal)
            assert coded.things == {"p": 1, "q": 1}
            coded.write(code("p", 3), "p.py")
            await coded.until(lambda: coded.things == {"p": 3, "q": 1})
            assert [result.result for result in coded.told].count(Outcome.PREPARE_FAILED) == 0


async def test_a_plan_says_what_code_would_do_and_leaves_modules_alone(coded: Site) -> None:
    with anyio.fail_after(DEADLINE):
        async with coded.running():
            old = module(coded, "p.py")
            coded.write(code("p", 2), "p.py")
            result: Result = await coded.reload(plan_only=True)
            assert kinds(result) == {"p": "replace"}
            assert module(coded, "p.py") is old
            assert coded.things == {"p": 1, "q": 1}
            assert (await coded.reload()).result is Outcome.COMMITTED
            assert coded.things == {"p": 2, "q": 1}


async def test_code_that_no_row_uses_any_more_is_no_failure(coded: Site) -> None:
    with anyio.fail_after(DEADLINE):
        async with coded.running():
            without = ROWS.replace("  q: {use: ./q.py}\n", "")
            assert (await coded.edit(without)).result is Outcome.COMMITTED
            for text in (code("q", 2), "def broken(:\n"):
                coded.write(text, "q.py")
                assert (await coded.reload()).result is Outcome.NOOP
            coded.write(code("q", 3), "q.py")
            assert (await coded.edit(ROWS)).result is Outcome.COMMITTED
            assert coded.things == {"p": 1, "q": 3}


@pytest.mark.parametrize("how", ["syntax", "start"])
async def test_a_broken_file_that_is_restored_is_judged_again_by_itself(coded: Site, how: str) -> None:
    text, outcome = BROKEN[how]
    with anyio.fail_after(DEADLINE):
        async with coded.running(watch="auto", rescan=3600.0):
            before = coded.instances
            coded.write(text, "p.py")
            await coded.attempt(outcome, after=1)
            told = len(coded.told)
            coded.write(code("p", 1), "p.py")
            await coded.attempt(Outcome.NOOP, after=told)
            assert coded.instances == before
            coded.write(code("p", 2), "p.py")
            await coded.attempt(Outcome.COMMITTED, after=told)
            await anyio.sleep(0.3)  # long enough for an attempt that should not be
            assert [result.result for result in coded.told[told:]] == [Outcome.NOOP, Outcome.COMMITTED]


async def test_a_file_restored_to_what_runs_is_no_change(coded: Site, tmp_path: Path) -> None:
    with anyio.fail_after(DEADLINE):
        async with coded.running(watch="auto", rescan=3600.0):
            before = coded.instances
            coded.write("def broken(:\n", "p.py")
            await coded.attempt(Outcome.REJECTED, after=1)
            coded.write(code("p", 1), "p.py")
            result = await coded.reload()
            assert (result.result, result.pending_restart) == (Outcome.NOOP, ())
            assert coded.instances == before
