"""Every way of saving a file is noticed once, and nothing that lands while a reload runs is lost."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable

import pytest

from .conftest import Daemon, until


def in_place(daemon: Daemon, text: str) -> None:
    daemon.config.write_text(text)


def renamed(daemon: Daemon, text: str) -> None:
    daemon.write(text)


def truncated_then_written(daemon: Daemon, text: str) -> None:
    daemon.config.write_text("")
    time.sleep(0.12)
    daemon.config.write_text(text[: len(text) // 2])
    time.sleep(0.12)
    daemon.config.write_text(text)


def by_vim(daemon: Daemon, text: str) -> None:
    (daemon.root / "4913").write_text("")
    (daemon.root / "4913").unlink()
    daemon.config.rename(daemon.root / "dshd.yaml~")
    daemon.config.write_text(text)
    (daemon.root / "dshd.yaml~").unlink()


def deleted_and_restored(daemon: Daemon, text: str) -> None:
    daemon.config.unlink()
    time.sleep(0.3)
    daemon.config.write_text(text)


def linked(daemon: Daemon, text: str) -> None:
    target = daemon.root / f"version-{time.monotonic_ns()}.yaml"
    target.write_text(text)
    beside = daemon.root / "link.new"
    beside.symlink_to(target.name)
    beside.replace(daemon.config)


@pytest.mark.parametrize(
    ("how", "watch"),
    [(in_place, "auto"), (renamed, "auto"), (truncated_then_written, "auto"), (by_vim, "auto"), (linked, "auto"),
     (deleted_and_restored, "auto"), (in_place, "poll"), (linked, "poll")],
)  # fmt: skip
def test_each_kind_of_save_is_one_reload(daemon: Daemon, how: Callable[[Daemon, str], None], watch: str) -> None:
    daemon.start(daemon.marks(one=0, still=7), environ={"DSHD_WATCH": watch})
    still = daemon.mark("still")["instance"]
    for number in range(1, 2 if watch == "poll" else 5):
        how(daemon, daemon.marks(one=number, still=7))
        daemon.becomes("one", number)
    assert daemon.mark("still")["instance"] == still
    until(lambda: daemon.last()["generation"] == number + 1, "the record")
    committed = [x for x in daemon.results() if x["result"] == "committed" and x["trigger"] == "watch"]
    assert len(committed) == number


def test_in_place_and_renamed_saves_take_turns_and_all_are_seen_in_order(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=0))
    seen = []
    for number in range(1, 21):
        (renamed if number % 2 else in_place)(daemon, daemon.marks(one=number))
        daemon.becomes("one", number)
        seen.append(daemon.value("one"))
    assert seen == list(range(1, 21))


@pytest.mark.parametrize("watch", ["auto", "poll"])
def test_a_swapped_configmap_is_one_reload_each(daemon: Daemon, watch: str) -> None:
    def put(number: int) -> None:
        version = daemon.root / f"..v{number}"
        version.mkdir()
        (version / "dshd.yaml").write_text(daemon.marks(one=number).replace("./plugins", str(daemon.root / "plugins")))
        link = daemon.root / "..data.new"
        link.symlink_to(version.name)
        link.replace(daemon.root / "..data")
        if number:
            shutil.rmtree(daemon.root / f"..v{number - 1}")

    put(0)
    daemon.config.symlink_to("..data/dshd.yaml")
    daemon.start(environ={"DSHD_WATCH": watch})
    for number in range(1, 2 if watch == "poll" else 5):
        put(number)
        daemon.becomes("one", number)
    assert daemon.status()["generation"] == number + 1


def test_a_directory_that_is_removed_and_made_again_is_watched_again(daemon: Daemon) -> None:
    place = daemon.root / "etc"
    place.mkdir()
    daemon.config = place / "dshd.yaml"
    text = daemon.marks(one=0).replace("./plugins", str(daemon.root / "plugins"))
    daemon.start(text)
    for number in (1, 2, 3):
        shutil.rmtree(place)
        time.sleep(0.2)
        place.mkdir()
        daemon.config.write_text(text.replace("value: 0", f"value: {number}"))
        daemon.becomes("one", number)
        daemon.config.write_text(text.replace("value: 0", f"value: {number}0"))
        daemon.becomes("one", number * 10)


def test_two_saves_close_together_always_end_on_the_last(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=0))
    chance = random.Random(7)
    number = 0
    for _ in range(25):
        for pause in (chance.uniform(0, 0.12), 0.0):
            number += 1
            (renamed if chance.random() < 0.5 else in_place)(daemon, daemon.marks(one=number))
            time.sleep(pause)
        daemon.becomes("one", number)


def test_edits_that_land_during_a_reload_are_not_lost(daemon: Daemon) -> None:
    daemon.python("slow", "yield\nawait anyio.sleep(2)")

    def text(a: int, b: int, slow: int) -> str:
        return daemon.marks(a=a, b=b) + f"  slow: {{use: ./plugins/slow.py, config: {{number: {slow}}}}}\n"

    daemon.start(text(0, 0, 0))
    daemon.write(text(1, 0, 1))
    time.sleep(0.5)
    daemon.write(text(1, 1, 1))
    time.sleep(0.5)
    daemon.write(text(2, 1, 2))
    until(lambda: (daemon.value("a"), daemon.value("b")) == (2, 1), "the last of both", 4)
    assert daemon.status()["generation"] <= 4


def test_an_edit_while_a_row_starts_overtakes_it(daemon: Daemon) -> None:
    daemon.python("slow", "await anyio.sleep(1.0)\nctx.log.info('slow row', number=config.number)")

    def text(a: int, slow: int) -> str:
        return daemon.marks(a=a) + f"  slow: {{use: ./plugins/slow.py, config: {{number: {slow}}}}}\n"

    daemon.start(text(0, 0))
    for number in range(1, 4):
        daemon.write(text(number, number))
        time.sleep(0.3)
    until(lambda: daemon.value("a") == 3, "the last", 5)
    assert [x for x in daemon.results() if x["result"] == "superseded"]


def test_the_correction_of_a_broken_save_is_noticed(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1))
    daemon.write("plugins: [\n")
    until(lambda: daemon.last()["result"] == "rejected", "the rejection", 5)
    assert daemon.value("one") == 1
    daemon.write(daemon.marks(one=2))
    until(lambda: daemon.value("one") == 2, "the correction", 1)


def test_resaving_the_old_content_after_a_failure_is_a_new_attempt(daemon: Daemon) -> None:
    text = daemon.marks(one=1)
    daemon.start(text)
    daemon.write("plugins: [\n")
    until(lambda: daemon.last()["result"] == "rejected", "the rejection", 5)
    daemon.write(text)
    until(lambda: daemon.last()["result"] == "noop", "the attempt", 5)
    assert daemon.status()["generation"] == 1


def test_a_start_on_the_last_good_tree_recovers_when_the_file_is_corrected(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1))
    daemon.kill()
    daemon.write("plugins: [\n")
    broken = daemon.config.read_bytes()
    daemon.start()
    assert daemon.value("one") == 1
    assert daemon.status()["state"] == "degraded"
    assert daemon.config.read_bytes() == broken
    daemon.write(daemon.marks(one=2))
    until(lambda: daemon.value("one") == 2, "the correction", 3)
    assert daemon.status()["state"] == "running"


def test_a_plugin_that_writes_beside_the_sources_starts_no_loop(daemon: Daemon) -> None:
    daemon.python("writer", f"open({str(daemon.root / 'noise.txt')!r}, 'a').write('started\\n')")
    daemon.start(daemon.marks(one=1) + "  writer: {use: ./plugins/writer.py}\n")
    before = len(daemon.results())
    for _ in range(20):
        (daemon.root / "noise.txt").write_text(str(time.monotonic()))
        os.utime(daemon.config)
        time.sleep(0.1)
    assert daemon.status()["generation"] == 1
    assert len(daemon.results()) <= before + 1
    assert len((daemon.root / "noise.txt").read_text()) < 40


def test_files_of_a_pattern_come_and_go_and_junk_does_not_count(daemon: Daemon) -> None:
    parts = daemon.root / "conf.d"
    parts.mkdir()

    def part(name: str, value: int) -> str:
        return daemon.marks(**{name: value}).replace("./plugins", "../plugins")

    (parts / "a.yaml").write_text(part("a", 1))
    daemon.start("include: [conf.d/*.yaml]\n" + daemon.marks(root=0))
    (parts / "b.yaml").write_text(part("b", 2))
    until(lambda: daemon.value("b") == 2, "a new file", 3)
    (parts / "a.yaml").unlink()
    until(lambda: daemon.mark("a") is None, "a deleted file", 3)
    attempts = len(daemon.results())
    for junk in ("b.yaml~", ".b.yaml.swp", "4913"):
        (parts / junk).write_text("plugins: [")
    (parts / "notes.txt").symlink_to("nowhere")
    time.sleep(0.6)
    assert len(daemon.results()) == attempts
    (parts / "c.yaml").symlink_to("nowhere")
    until(lambda: daemon.last()["result"] == "rejected", "the dangling link", 4)
    assert "c.yaml" in str(daemon.last()["issues"])
    assert daemon.value("b") == 2


def test_what_is_saved_between_the_first_read_and_the_watch_runs_soon(daemon: Daemon) -> None:
    daemon.python("slow", "await anyio.sleep(0.7)")
    text = daemon.marks(one=1) + "  slow: {use: ./plugins/slow.py}\n"
    daemon.start(text, ready=False)
    time.sleep(0.6)
    daemon.write(text.replace("value: 1", "value: 2"))
    daemon.manager.receive_until("READY=1")
    until(lambda: daemon.value("one") == 2, "the later content", 2)
