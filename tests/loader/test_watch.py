"""The watch sees every kind of save, with events, without them, and when there can be none."""

import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog.testing
import watchfiles

from dshd.loader import watch as watch_module
from dshd.loader.reconciler import Reconciler
from dshd.loader.result import Outcome
from dshd.testing.loader import OPTIONS, Site, errors, row
from dshd.testing.parts import journal

pytestmark = pytest.mark.anyio

DEADLINE = 40

EVENTS: dict[str, Any] = {"watch": "auto", "rescan": 3600.0}
"""With no rescan that could help: what is seen is seen by an event."""

POLL: dict[str, Any] = {"watch": "poll", "poll": 0.1}

BOTH = pytest.mark.parametrize("how", [EVENTS, POLL], ids=["events", "poll"])


def text(value: int) -> str:
    return f"plugins:\n{row('a', value=value)}"


def sees(site: Site, value: int) -> Callable[[], bool]:
    return lambda: site.things == {"a": value}


# -- kinds of saves ----------------------------------------------------------------------------------------------------


def in_place(path: Path, content: str) -> None:
    with path.open("r+") as file:
        file.write(content)
        file.truncate()


def truncating(path: Path, content: str) -> None:
    path.write_text(content)


def renaming(path: Path, content: str) -> None:
    beside = path.with_name(f".{path.name}.{random.random()}")
    beside.write_text(content)
    beside.replace(path)


def vim(path: Path, content: str) -> None:
    """A probe file, the old one moved away as a backup, a new one in its place, the backup removed."""
    (path.parent / "4913").touch()
    (path.parent / "4913").unlink()
    backup = path.with_name(f"{path.name}~")
    path.rename(backup)
    path.write_text(content)
    backup.unlink()


def deleting(path: Path, content: str) -> None:
    path.unlink()
    path.write_text(content)


Save = Callable[[Path, str], None]
SAVES: list[Save] = [in_place, truncating, renaming, vim, deleting]


@BOTH
async def test_every_kind_of_save_is_seen_whatever_kind_came_before(site: Site, how: dict[str, Any]) -> None:
    """WAT-03"""
    site.write(text(0))
    value = 0
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            for save in (*SAVES, *reversed(SAVES), *SAVES[::2], *SAVES[1::2]):
                value += 1
                save(site.file, text(value))
                await site.until(sees(site, value))
            assert [entry for entry in journal if entry.startswith("open")] == [f"open a {n}" for n in range(value + 1)]
            await site.until(lambda: len(site.told) == value + 1)
            assert [result.result for result in site.told] == [Outcome.COMMITTED] * (value + 1)


async def test_a_file_that_is_truncated_and_written_slowly_is_never_taken_for_empty(site: Site) -> None:
    """WAT-04"""
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**EVENTS):
            for value in range(1, 9):
                content = text(value) + "  b: {use: hello, config: {who: 'x"  # cut off where it does not parse
                with site.file.open("w") as file:
                    file.flush()
                    await anyio.sleep(0.12)
                    file.write(content)
                    file.flush()
                    await anyio.sleep(0.12)
                    file.seek(0)
                    file.truncate()
                    file.write(text(value))
                await site.until(sees(site, value))
            await site.until(lambda: len(site.told) == 9)
            assert [result.result for result in site.told] == [Outcome.COMMITTED] * 9
            assert "close a 8" not in journal


async def test_a_file_that_stays_empty_is_held_and_the_old_tree_runs(site: Site) -> None:
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**EVENTS):
            site.file.write_text("")
            result = await site.attempt(Outcome.HELD, Outcome.REJECTED, after=1)
            assert result.generation == 1
            assert site.things == {"a": 0}
            site.file.write_text(text(1))
            await site.until(sees(site, 1))


@BOTH
async def test_a_broken_save_is_reported_once_and_its_correction_seen(site: Site, how: dict[str, Any]) -> None:
    """WAT-07"""
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            site.write("plugins: [\n")
            result = await site.attempt(Outcome.REJECTED, after=1)
            assert errors(result)[0].file == str(site.file)
            os.utime(site.file)
            await anyio.sleep(0.4)
            assert len(site.told) == 2, "the same mistake is not reported again"
            site.write(text(0))
            await site.attempt(Outcome.NOOP, after=2)
            site.write(text(1))
            await site.until(sees(site, 1))


@BOTH
async def test_a_file_that_is_deleted_and_restored_within_its_grace_is_no_failure(
    site: Site, how: dict[str, Any]
) -> None:
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            site.file.unlink()
            await anyio.sleep(0.5)
            site.write(text(1))
            await site.until(sees(site, 1))
            await site.until(lambda: len(site.told) == 2)
            assert [result.result for result in site.told] == [Outcome.COMMITTED] * 2


@BOTH
async def test_a_file_that_stays_away_is_reported_and_seen_when_it_comes_back(site: Site, how: dict[str, Any]) -> None:
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            site.file.unlink()
            result = await site.attempt(Outcome.REJECTED, after=1)
            assert result.generation == 1
            site.write(text(1))
            await site.until(sees(site, 1))


@BOTH
async def test_a_link_that_is_turned_is_seen(site: Site, how: dict[str, Any]) -> None:
    """`ln -sfn`, of the file and of a directory on the way to it."""
    for name in ("v1", "v2", "v3", "v4"):
        (site.home / "releases" / name / "conf").mkdir(parents=True)
        (site.home / "releases" / name / "conf" / "dshd.yaml").write_text(text(int(name[1])))
    current = site.home / "current"
    current.symlink_to("releases/v1")
    site.file = current / "conf" / "dshd.yaml"
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            for value in (2, 3, 1, 4):
                beside = site.home / "beside"
                beside.symlink_to(f"releases/v{value}")
                beside.replace(current)
                await site.until(sees(site, value))
            (site.home / "releases" / "v4" / "conf" / "dshd.yaml").write_text(text(9))
            await site.until(sees(site, 9))


@BOTH
async def test_every_swap_of_a_configmap_is_one_reload(site: Site, how: dict[str, Any]) -> None:
    """WAT-01: dshd.yaml → ..data/dshd.yaml → ..v1/"""
    mount = site.home / "mount"

    def fill(value: int) -> None:
        (mount / f"..v{value}").mkdir(parents=True)
        (mount / f"..v{value}" / "dshd.yaml").write_text(text(value))

    fill(0)
    (mount / "..data").symlink_to("..v0")
    site.file = mount / "dshd.yaml"
    site.file.symlink_to("..data/dshd.yaml")
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            for value in range(1, 6):
                fill(value)
                (mount / "..data_tmp").symlink_to(f"..v{value}")
                (mount / "..data_tmp").replace(mount / "..data")
                shutil.rmtree(mount / f"..v{value - 1}")
                await site.until(sees(site, value), 5)
            await site.until(lambda: len(site.told) == 6)
            assert [result.result for result in site.told] == [Outcome.COMMITTED] * 6


@BOTH
@pytest.mark.parametrize("pause", [0, 0.3])
async def test_a_directory_that_is_removed_and_made_again_is_watched_again(
    site: Site, how: dict[str, Any], pause: float
) -> None:
    home = site.home / "deep" / "conf"
    site.file = home / "dshd.yaml"
    home.mkdir(parents=True)
    site.file.write_text(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            for value in (10, 20, 30):
                shutil.rmtree(home.parent)
                await anyio.sleep(pause)
                home.mkdir(parents=True)
                await anyio.sleep(pause)
                site.file.write_text(text(value))
                await site.until(sees(site, value))
                site.file.write_text(text(value + 1))
                await site.until(sees(site, value + 1))


@BOTH
async def test_files_of_an_include_come_and_go_and_junk_changes_nothing(site: Site, how: dict[str, Any]) -> None:
    """WAT-13"""
    site.write(f"plugins:\n{row('a', value=1)}", "parts/a.yaml")
    site.write(f"include: [parts/*.yaml]\nplugins:\n{row('x', value=1)}")
    parts = site.home / "parts"
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            site.write(f"plugins:\n{row('b', value=2)}", "parts/b.yaml")
            await site.until(lambda: site.things == {"a": 1, "b": 2, "x": 1})
            (parts / "a.yaml").unlink()
            await site.until(lambda: site.things == {"b": 2, "x": 1})
            await site.until(lambda: len(site.told) == 3)
            told = len(site.told)
            for junk in ("b.yaml~", ".b.yaml.swp", "4913", "#b.yaml#", "b.yaml.bak"):
                (parts / junk).write_text("junk: [")
            (parts / "notes.txt").symlink_to("nowhere")
            await anyio.sleep(0.5)
            assert len(site.told) == told
            (parts / "c.yaml").symlink_to("nowhere")
            result = await site.attempt(Outcome.REJECTED, after=told)
            assert "c.yaml" in str(errors(result))
            assert site.things == {"b": 2, "x": 1}
            (parts / "c.yaml").unlink()
            await site.attempt(Outcome.NOOP, after=told)
            shutil.rmtree(parts)
            await site.until(lambda: site.things == {"x": 1})
            site.write(f"plugins:\n{row('z', value=3)}", "parts/z.yaml")
            await site.until(lambda: site.things == {"x": 1, "z": 3})


@BOTH
async def test_a_referenced_file_is_watched_and_the_state_directory_is_not(site: Site, how: dict[str, Any]) -> None:
    """RLD-16, WAT-08"""
    (site.home / "elsewhere").mkdir()
    secret = site.home / "elsewhere" / "value"
    secret.write_text("1")
    site.write(f"plugins:\n{row('a', value=chr(34) + '${file:elsewhere/value}' + chr(34))}")
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            for value in (2, 3):
                secret.write_text(str(value))
                await site.until(sees(site, value))
            await anyio.sleep(0.5)
            assert len(site.told) == 3, "what attempts write does not make others"


@BOTH
async def test_a_change_between_the_first_reading_and_the_watch_is_seen(
    site: Site, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAT-14"""
    start = Reconciler.start

    async def start_and_edit(self: Any, **more: Any) -> Any:
        result = await start(self, **more)
        site.write(text(7))
        return result

    monkeypatch.setattr(Reconciler, "start", start_and_edit)
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**how):
            await site.until(sees(site, 7))


async def test_nothing_is_watched_with_off(site: Site) -> None:
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="off", rescan=0.05, poll=0.05) as reconciler:
            site.write(text(1))
            await anyio.sleep(0.4)
            assert site.things == {"a": 0}
            assert reconciler.watch_mode == "off"


async def test_a_checkout_that_goes_on_is_waited_for(site: Site) -> None:
    (site.home / ".git").mkdir()
    lock = site.home / ".git" / "index.lock"
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**EVENTS):
            lock.touch()
            for value in range(1, 5):
                site.write(text(value))
                await anyio.sleep(0.1)
            assert site.things == {"a": 0}
            lock.unlink()
            await site.until(sees(site, 4))
            await site.until(lambda: len(site.told) == 2)


async def test_saves_that_never_rest_are_applied_all_the_same(site: Site) -> None:
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**EVENTS):
            done = anyio.Event()

            async def save() -> None:
                value = 1
                while not done.is_set():
                    (site.home / "noise.txt").write_text(str(value))
                    await anyio.sleep(0.02)
                    value += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(save)
                site.write(text(1))
                await site.until(sees(site, 1))
                done.set()


# -- without events ----------------------------------------------------------------------------------------------------


async def silence(*paths: str, stop_event: anyio.Event, **more: Any) -> AsyncIterator[set[tuple[Any, str]]]:
    await stop_event.wait()
    if paths == ():
        yield set()


async def test_the_rescan_sees_what_no_event_tells(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAT-10"""
    monkeypatch.setattr(watch_module, "awatch", silence)
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(watch="auto", rescan=0.2) as reconciler:
            assert reconciler.watch_mode == "auto"
            for value in (1, 2):
                site.write(text(value))
                await site.until(sees(site, value))
            site.file.unlink()
            await site.attempt(Outcome.REJECTED, after=3)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), OSError(24, "Too many open files"), RuntimeError("rust"), OSError("no")],
    ids=str,
)
async def test_limits_of_events_fall_back_to_polling_with_one_warning(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """WAT-11"""

    def refuse(*paths: str, **more: Any) -> AsyncIterator[set[tuple[Any, str]]]:
        async def listen() -> AsyncIterator[set[tuple[Any, str]]]:
            if paths:
                raise error
            yield set()

        return listen()

    monkeypatch.setattr(watch_module, "awatch", refuse)
    site.write(text(0))
    with anyio.fail_after(DEADLINE), structlog.testing.capture_logs() as logs:
        async with site.running(watch="auto", poll=0.1, rescan=3600.0) as reconciler:
            for value in (1, 2, 3):
                site.write(text(value))
                await site.until(sees(site, value))
            assert reconciler.watch_mode == "polling (limit)"
    warnings = [entry for entry in logs if "file events" in entry["event"]]
    assert len(warnings) == 1
    assert "fs.inotify.max_user_watches" in warnings[0]["hint"]


async def test_a_directory_that_vanishes_as_the_watch_begins_is_no_limit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def refuse_once(*paths: str, **more: Any) -> Any:
        calls.append(paths)
        if len(calls) == 1:
            raise FileNotFoundError(paths[0])
        return watchfiles.awatch(*paths, **more)

    monkeypatch.setattr(watch_module, "awatch", refuse_once)
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**EVENTS) as reconciler:
            site.write(text(1))
            await site.until(sees(site, 1))
            assert reconciler.watch_mode == "auto"


async def test_the_watch_ends_at_once_when_it_is_cancelled(site: Site) -> None:
    site.write(text(0))
    with anyio.fail_after(DEADLINE):
        async with site.running(**EVENTS):
            site.write(text(1))
            await site.until(sees(site, 1))
            begun = time.monotonic()
        assert time.monotonic() - begun < 4, "not the five seconds for which a thread would go on listening"


# -- two saves ---------------------------------------------------------------------------------------------------------


def gaps(count: int) -> Iterator[float]:
    chosen = random.Random(1)
    for n in range(count):
        yield 0.12 * n / (count - 1) if n % 2 else chosen.uniform(0, 0.12)


async def test_of_two_saves_shortly_after_each_other_the_last_one_always_wins(tmp_path: Path) -> None:
    """The upstream reloader loses the last of two saves 2–40 ms apart. Here are two hundred pairs."""
    count, wide = 200, 10
    waits = list(gaps(count))

    async def pairs(home: Path, kinds: list[Save], waits: list[float]) -> None:
        site, value = Site(home, options=replace(OPTIONS, **EVENTS)), 0
        site.write(text(0))
        async with site.running():
            for n, wait in enumerate(waits):
                for pause in (wait, 0):
                    value += 1
                    kinds[(n + value) % len(kinds)](site.file, text(value))
                    await anyio.sleep(pause)
                await site.until(sees(site, value), 30)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for n in range(wide):
                home = tmp_path / str(n)
                home.mkdir()
                tasks.start_soon(pairs, home, [*SAVES[n % 5 :], *SAVES[: n % 5]], waits[n::wide])
