"""What survives: numbers, generations, holds, confirmations that never came, and what a crash has left of files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from dshd.loader.history import KEPT, Generation, History, Hold, Unconfirmed
from dshd.loader.reconciler import StartRefused
from dshd.loader.result import Outcome
from dshd.testing.loader import USE, Site, errors, row
from dshd.testing.parts import journal

pytestmark = pytest.mark.anyio

DEADLINE = 30


def generation(number: int, **more: Any) -> Generation:
    fields: dict[str, Any] = {"files": {"files": {}, "globs": {}}, **more}
    return Generation(number=number, digest=f"d{number}", attempt="a", time="t", **fields)


# -- starting ----------------------------------------------------------------------------------------------------------


async def test_invalid_files_at_start_give_the_last_good_tree_marked_degraded(site: Site) -> None:
    """RLD-27"""
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            await site.reload()
            broken = site.write("plugins: {a: {use: nowhere}}")
        text = broken.read_text()
        async with site.running(watch="poll", poll=0.1) as reconciler:
            assert site.things == {"a": 2}
            assert reconciler.degraded is not None
            assert reconciler.degraded.startswith("the files are rejected (")
            assert reconciler.degraded.endswith("dshd.yaml:1:20: there is no plugin 'nowhere'), so generation 2 runs")
            assert (reconciler.generation, broken.read_text()) == (3, text)
            assert [result.result for result in site.told[-2:]] == [Outcome.REJECTED, Outcome.COMMITTED]
            assert errors(site.told[-2])[0].row == "a"
            site.parts(a=3)
            await site.until(lambda: site.things == {"a": 3})
            assert reconciler.degraded is None


async def test_a_row_that_does_not_start_gives_the_last_good_tree_too(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            pass
        site.parts(a="start: fail")
        async with site.running() as reconciler:
            assert site.things == {"a": 1}
            assert reconciler.degraded is not None
            assert "row 'a' did not start: RuntimeError" in reconciler.degraded
            assert reconciler.degraded.endswith("so generation 1 runs")


async def test_strict_does_not_start_the_last_good_tree(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            pass
        site.write("plugins: {a: {use: nowhere}}")
        with pytest.raises(StartRefused) as refused:
            async with site.running(strict=True):
                pass
        assert [issue.row for issue in errors(refused.value.result)] == ["a"]


async def test_with_no_good_tree_nothing_is_started(site: Site) -> None:
    site.write("plugins: {a: {use: nowhere}}")
    with anyio.fail_after(DEADLINE), pytest.raises(StartRefused) as refused:
        async with site.running():
            pass
    assert refused.value.result.result is Outcome.REJECTED
    assert History(site.state).results[0]["result"] == "rejected"


async def test_a_good_tree_that_cannot_start_either_refuses_with_the_findings_of_the_files(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            pass
        for stored in (site.state / "generations").glob("*.json"):
            stored.write_text(stored.read_text().replace(f"{USE}:part", f"{USE}:gone"))
        site.write("plugins: {b: {use: nowhere}}")
        with pytest.raises(StartRefused) as refused:
            async with site.running():
                pass
        assert [issue.row for issue in errors(refused.value.result)] == ["b"]


# -- rolling back ------------------------------------------------------------------------------------------------------


async def test_a_rollback_goes_to_the_tree_before_and_holds_until_a_source_changes(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="poll", poll=0.1) as reconciler:
            site.parts(a=2)
            await site.until(lambda: reconciler.generation == 2)
            result = await reconciler.rollback()
            assert (result.result, result.generation, result.trigger) == (Outcome.COMMITTED, 3, "rollback")
            assert reconciler.degraded == "rolled back to generation 1"
            assert site.things == {"a": 1}
            await anyio.sleep(0.5)
            assert site.things == {"a": 1}
            site.parts(a=4)
            await site.until(lambda: site.things == {"a": 4})
            assert reconciler.degraded is None


async def test_a_rollback_holds_across_restarts_however_many(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=2)
            await site.reload()
            await reconciler.rollback()
        for n in range(KEPT + 3):
            async with site.running(watch="poll", poll=0.05) as reconciler:
                assert site.things == {"a": 1}
                assert str(reconciler.degraded).startswith("rolled back to generation 1")
                if n == 1:
                    await anyio.sleep(0.3)
                    assert site.things == {"a": 1}, "nor does the watch end it"
        async with site.running() as reconciler:
            assert (await site.reload()).result is Outcome.COMMITTED, "but a reload does"
            assert site.things == {"a": 2}
            assert not reconciler.degraded
        async with site.running():
            assert site.things == {"a": 2}


async def test_an_edit_while_nothing_runs_ends_a_hold(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=2)
            await site.reload()
            await reconciler.rollback()
        site.parts(a=3)
        async with site.running() as reconciler:
            assert (site.things, reconciler.degraded) == ({"a": 3}, None)


async def test_a_rollback_goes_to_the_generation_that_is_named_or_says_which_are_stored(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            nothing = await reconciler.rollback()
            assert (nothing.result, errors(nothing)[0].message) == (
                Outcome.REJECTED, "an earlier generation is not stored"
            )  # fmt: skip
            for value in (2, 3, 4):
                site.parts(a=value)
                await site.reload()
            assert (await reconciler.rollback(2)).result is Outcome.COMMITTED
            assert site.things == {"a": 2}
            result = await reconciler.rollback(17)
            assert result.result is Outcome.REJECTED
            (issue,) = errors(result)
            assert (issue.code, issue.hint) == ("E0601", "stored: 1, 2, 3, 4, 5")
            assert site.things == {"a": 2}
            site.parts(a=2)
            assert (await site.reload()).result is Outcome.NOOP
            assert reconciler.degraded is None, "now the files say so as well"


async def test_after_a_restart_a_rollback_goes_to_another_tree_not_to_another_number(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            await site.reload()
        async with site.running() as reconciler:
            assert reconciler.generation == 3
            await reconciler.rollback()
            assert site.things == {"a": 1}


async def test_a_rollback_that_fails_changes_nothing(site: Site) -> None:
    site.write(
        "from dshd import Config, Context, plugin\n@plugin('p')\n"
        "async def p(ctx: Context, config: Config) -> None: ...\n",
        "p.py",
    )
    site.write("plugins: {p: {use: ./p.py}}")
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=1)
            await site.reload(allow_removals=True)
            (site.home / "p.py").unlink()
            site.resolver._found.clear()
            result = await reconciler.rollback(1)
            assert result.result is Outcome.REJECTED
            assert (site.things, reconciler.degraded, reconciler.history.hold) == ({"a": 1}, None, None)


# -- confirming --------------------------------------------------------------------------------------------------------


async def test_what_is_not_confirmed_in_time_rolls_back_by_itself(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="poll", poll=0.1) as reconciler:
            site.parts(a=2)
            result = await site.reload(confirm_seconds=0.3)
            assert (result.result, result.confirm_by) == (Outcome.COMMITTED, reconciler.confirm_by)
            assert reconciler.confirm_by is not None
            assert site.things == {"a": 2}
            rolled = await site.attempt(Outcome.ROLLED_BACK, after=0)
            assert (rolled.trigger, rolled.generation) == ("confirm", 3)
            assert site.things == {"a": 1}
            assert not reconciler.confirm_by
            assert (await reconciler.confirm()).result is Outcome.ROLLED_BACK
            await site.reload(plan_only=True)
            assert (await reconciler.confirm()).result is Outcome.ROLLED_BACK
            await anyio.sleep(0.3)
            assert site.things == {"a": 1}, "it holds"
        async with site.running():
            assert site.things == {"a": 1}


async def test_a_confirmation_in_time_keeps_it(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=2)
            await site.reload(confirm_seconds=1)
            assert (await reconciler.confirm()).result is Outcome.COMMITTED
            assert (await reconciler.confirm()).result is Outcome.NOOP
            await anyio.sleep(1.2)
            assert site.things == {"a": 2}
        site.write("plugins: [")
        async with site.running() as reconciler:
            assert site.things == {"a": 2}, "a confirmed one is a good one"


async def test_a_restart_never_starts_what_was_not_confirmed(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            await site.reload(confirm_seconds=600)
            site.parts(a=3)
            await site.reload()
        for _ in range(3):
            async with site.running(watch="poll", poll=0.05) as reconciler:
                assert site.things == {"a": 1}
                assert str(reconciler.degraded).startswith("generation 2 was never confirmed")
                await anyio.sleep(0.2)
                assert site.things == {"a": 1}
        async with site.running() as reconciler:
            site.parts(a=4)
            await site.reload()
            assert site.things == {"a": 4}


async def test_a_confirmation_after_a_restart_is_too_late(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            await site.reload(confirm_seconds=600)
        async with site.running() as reconciler:
            assert (await reconciler.confirm()).result is Outcome.ROLLED_BACK


async def test_an_unconfirmed_generation_is_no_last_good_one(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            await site.reload(confirm_seconds=600)
        site.write("plugins: [")
        async with site.running():
            assert site.things == {"a": 1}


async def test_what_cannot_be_rolled_back_is_said_once_and_can_still_be_confirmed(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=2)
            await site.reload(confirm_seconds=0.5)
            shutil.rmtree(site.state / "generations")
            failed = await site.attempt(Outcome.REJECTED, after=0)
            assert failed.trigger == "confirm"
            (site.state / "generations").mkdir()
            await anyio.sleep(0.8)
            assert [result.trigger for result in site.told].count("confirm") == 1
            assert (await reconciler.confirm()).result is Outcome.COMMITTED


async def test_a_failing_reload_with_confirmation_leaves_nothing_waiting(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a="start: fail")
            result = await site.reload(confirm_seconds=600)
            assert (result.result, reconciler.confirm_by) == (Outcome.PREPARE_FAILED, None)
        assert not (site.state / "unconfirmed.json").exists()


async def test_a_rollback_by_hand_ends_the_waiting(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=2)
            await site.reload(confirm_seconds=600)
            await reconciler.rollback()
            assert (site.things, reconciler.confirm_by) == ({"a": 1}, None)
            assert (await reconciler.confirm()).result is Outcome.NOOP


# -- the record --------------------------------------------------------------------------------------------------------


async def test_the_last_twenty_are_kept(site: Site) -> None:
    site.parts(a=0)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            for value in range(1, 26):
                site.parts(a=value)
                await site.reload()
            assert len(reconciler.results) == KEPT
        history = History(site.state)
        assert history.numbers() == list(range(7, 27))
        assert [entry["generation"] for entry in history.results] == list(range(26, 6, -1))
        assert all((path.stat().st_mode & 0o777) == 0o600 for path in site.state.rglob("*.json"))


async def test_secrets_are_in_no_state_file(site: Site) -> None:
    site.environ["TOKEN"] = "s3cret-env"
    (site.home / "token").write_text("s3cret-file")
    (site.state / "credentials.yaml").write_text("api: s3cret-credential\n")
    site.write(
        "from dshd import Config, Context, plugin\nfrom dshd.kernel.secret import Secret\n"
        "class Needs(Config):\n    a: Secret\n    b: Secret\n    c: Secret\n    d: str = ''\n"
        "@plugin('needs', config=Needs)\nasync def needs(ctx: Context, config: Needs) -> None:\n"
        "    if config.d == 'fail':\n        raise RuntimeError('no')\n",
        "needs.py",
    )
    config = 'a: "${env:TOKEN}", b: "${file:token}", c: "${credential:api}"'
    site.write(f"plugins: {{n: {{use: ./needs.py, config: {{{config}}}}}}}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            for d in ("x", "fail", "y"):
                await site.edit(f"plugins: {{n: {{use: ./needs.py, config: {{{config}, d: {d}}}}}}}")
            site.environ["TOKEN"] = "s3cret-other"
            (site.home / "token").write_text("s3cret-again")
            assert (await site.reload()).result is Outcome.COMMITTED
            await site.reload(confirm_seconds=600)
        kept = [path for path in site.state.rglob("*") if path.is_file() and path.name != "credentials.yaml"]
        assert len(kept) > 4
        assert not [path for path in kept if b"s3cret" in path.read_bytes()]


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "no JSON": lambda content: b"\xff\xfe{{{",
    "another shape": lambda content: b"[1, 2]",
    "other types": lambda content: json.dumps({key: [] for key in json.loads(content)}).encode()
    if content.startswith(b"{") else b'{"a": 1}',
    "deep": lambda content: b"[" * 100_000,
    "null": lambda content: b"null",
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILED)
async def test_spoiled_state_files_cost_what_they_held_and_nothing_else(site: Site, how: str) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running() as reconciler:
            site.parts(a=2)
            await site.reload()
            await reconciler.rollback()
            site.parts(a=3)
            await site.reload(confirm_seconds=600)
        files = [path for path in site.state.rglob("*.json") if path.name != "digest.key"]
        history = History(site.state)
        history.hold = Hold(generation=1, fingerprint="f", reason="r")
        history.save()
        assert len(files) == 7
        for path in (*files, site.state / "hold.json"):
            path.write_bytes(SPOILED[how](path.read_bytes()))
        assert (await site_starts(site)) == {"a": 3}
        site.write("plugins: [")
        assert (await site_starts(site)) == {"a": 3}


async def site_starts(site: Site) -> dict[str, int]:
    async with site.running():
        return site.things


async def test_one_spoiled_generation_is_passed_over(site: Site) -> None:
    site.parts(a=1)
    with anyio.fail_after(DEADLINE):
        async with site.running():
            site.parts(a=2)
            await site.reload()
        (site.state / "generations" / "00000002.json").write_text("{")
        site.write("plugins: [")
        async with site.running() as reconciler:
            assert (site.things, reconciler.generation) == ({"a": 1}, 3)


def test_numbers_are_never_used_again_if_anything_still_tells_of_them(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.store(generation(7))
    history.add_result({"generation": 7})
    history.flush()
    (tmp_path / "number.json").unlink()
    (tmp_path / "generations" / "00000007.json").unlink()
    assert History(tmp_path).last_number == 7
    history.unconfirmed = Unconfirmed(generation=9, previous=7, by=0)
    history.save()
    assert History(tmp_path).last_number == 9


def test_what_was_not_flushed_is_written_by_the_next_flush(tmp_path: Path) -> None:
    history = History(tmp_path)
    for number in range(30):
        history.add_result({"generation": number})
        if number % 7 == 0:
            history.flush()
    history.flush()
    assert History(tmp_path).results == history.results
    assert not list(tmp_path.glob(".*.new"))


async def test_no_instance_is_opened_twice_by_a_degraded_start(site: Site) -> None:
    site.write(f"plugins:\n{row('a', value=1)}")
    with anyio.fail_after(DEADLINE):
        async with site.running():
            pass
        journal.clear()
        site.write("plugins: [")
        async with site.running():
            assert journal == ["open a 1"]
