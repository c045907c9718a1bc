"""What a service manager and an operator see of a process that reloads: its protocol, its resources, its state."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

from .conftest import Daemon, until

OFF = {"DSHD_WATCH": "off"}
BAD = "  bad: {use: ./plugins/bad.py, config: {number: NUMBER}}\n"


class Ear:
    """Takes in all datagrams as they come, as a service manager does: the queue of a socket is short."""

    def __init__(self, daemon: Daemon) -> None:
        daemon.manager.drain()
        self.heard: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hear, args=(daemon,))

    def _hear(self, daemon: Daemon) -> None:
        while not self._over.wait(0.01):
            self.heard += daemon.manager.drain()

    def __enter__(self) -> Ear:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def attempts(self) -> list[str]:
        """What was told of attempts."""
        return [text for text in self.heard if text.startswith(("RELOADING=1", "READY=1"))]


def came(daemon: Daemon, outcome: str) -> None:
    until(lambda: daemon.last()["result"] == outcome, outcome, 5)


def test_every_attempt_is_one_reloading_and_then_one_ready(daemon: Daemon) -> None:
    daemon.python("bad", "raise RuntimeError('no')")
    daemon.start(daemon.marks(one=1))
    time.sleep(0.3)
    edits = {
        "committed": daemon.marks(one=2), "rejected": "plugins: [\n", "held": "plugins: {}\n",
        "noop": daemon.marks(one=2), "prepare_failed": daemon.marks(one=2) + BAD.replace("NUMBER", "1"),
    }  # fmt: skip
    for outcome, text in edits.items():
        with Ear(daemon) as ear:
            daemon.write(text)
            came(daemon, outcome)
            time.sleep(0.1)
        assert [line.split("\n")[0] for line in ear.attempts] == ["RELOADING=1", "READY=1"], outcome
        assert "STATUS=generation" in ear.attempts[-1]
    for ask in (lambda: daemon.signal(signal.SIGHUP), lambda: daemon.cli("reload")):
        with Ear(daemon) as ear:
            ask()
            time.sleep(0.3)
        assert [line.split("\n")[0] for line in ear.attempts] == ["RELOADING=1", "READY=1"]


def test_a_storm_of_hang_ups_ends_ready_with_the_last_content(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=0), environ=OFF)
    with Ear(daemon) as ear:
        for number in range(1, 41):
            daemon.write(daemon.marks(one=number))
            daemon.signal(signal.SIGHUP)
        until(lambda: daemon.value("one") == 40, "the last content", 5)
        until(lambda: ear.attempts[-1].startswith("READY=1"), "what was lost is sent again", 5)
    assert ear.attempts[-1].startswith("READY=1")


def test_signs_of_life_go_on_while_rows_hang(daemon: Daemon) -> None:
    daemon.python("bad", "if config.number == 2:\n    await anyio.sleep(60)\nyield\nawait anyio.sleep(60)")
    head = "daemon: {load_timeout: 1s, unload_timeout: 1s}\n" + daemon.marks(one=1)
    daemon.start(head + BAD.replace("NUMBER", "1"), environ=OFF | {"WATCHDOG_USEC": "400000"})
    daemon.write(head + BAD.replace("NUMBER", "2"))
    with Ear(daemon) as ear:
        assert daemon.reload()["result"] == "prepare_failed"
        daemon.write(head)
        assert daemon.reload()["result"] == "committed"
        time.sleep(1)
    assert ear.heard.count("WATCHDOG=1") >= 10, "in two seconds, at half of the interval at least"


def test_a_hundred_reloads_leave_descriptors_threads_and_memory_where_they_were(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=0, two=0), environ=OFF)
    assert daemon.popen is not None
    process = Path(f"/proc/{daemon.popen.pid}")

    def counts() -> tuple[int, int, int]:
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
        return len(os.listdir(process / "fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])

    def reload(number: int) -> None:
        daemon.write(daemon.marks(one=number, two=0))
        assert daemon.reload()["result"] == "committed"

    for number in range(1, 31):
        reload(number)
    effects, before = daemon.status()["effects"], counts()
    for number in range(31, 131):
        reload(number)
    until(lambda: daemon.status()["effects"] == effects, "as many effects as before")
    after = counts()
    assert after[0] <= before[0] + 1
    assert after[1] <= before[1] + 1
    assert after[2] - before[2] < 3000, "KiB"


def test_a_state_directory_that_is_lost_while_it_runs_costs_no_reload(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    shutil.rmtree(daemon.state / "generations")
    daemon.write(daemon.marks(one=2))
    result = daemon.reload()
    assert daemon.alive()
    assert daemon.value("one") == 2
    assert result["result"] == "committed"
    daemon.write(daemon.marks(one=3))
    assert daemon.reload()["result"] == "committed"
    assert daemon.status()["generation"] == 3


def test_no_descriptor_is_passed_on_to_what_a_plugin_starts(daemon: Daemon) -> None:
    out = daemon.root / "fds"
    daemon.python("bad", f"import subprocess\nsubprocess.run('ls -l /proc/self/fd > {out}', shell=True)")
    daemon.start(daemon.marks(one=1) + BAD.replace("NUMBER", "1"), environ=OFF)
    assert "socket:" not in out.read_text()
    assert "anon_inode:inotify" not in out.read_text()


LATER = """\
class Settings(Config):
    number: int = 0


async def later(ctx: Context) -> None:
    ctx.log.info("later")
"""


def test_what_a_row_logs_names_its_row_the_generation_and_the_attempt_that_opened_it(daemon: Daemon) -> None:
    daemon.python("talker", "ctx.log.info('opening')\nctx.spawn(later, ctx)", config=LATER)
    daemon.start("plugins:\n  a: {use: ./plugins/talker.py}\n", environ={"DSHD_LOG_FORMAT": "json"})
    daemon.write("plugins:\n  a: {use: ./plugins/talker.py}\n  b: {use: ./plugins/talker.py}\n")

    def lines() -> list[dict[str, object]]:
        found = [json.loads(line) for line in daemon.log.read_text().splitlines()]
        return [line for line in found if line.get("row") == "b"]

    said = until(lambda: len(lines()) == 2 and lines(), "two lines of the row")
    until(lambda: daemon.status()["generation"] == 2, "the second generation")
    attempt = daemon.last()["attempt"]
    assert [(line["event"], line["attempt"]) for line in said] == [("opening", attempt), ("later", attempt)]
    assert said[1]["generation"] == 2


def test_a_daemon_that_polls_its_files_is_idle_between_two_looks(daemon: Daemon) -> None:
    daemon.start("bundles: [core]\ndaemon: {watch: poll}\n" + daemon.marks(one=1))
    daemon.becomes("one", 1)
    assert daemon.popen is not None
    stat = Path(f"/proc/{daemon.popen.pid}/stat")

    def used() -> float:
        """Seconds of processor time so far."""
        fields = stat.read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(5)  # the load of a stretch of time; two looks fall into it
    assert used() - before < 0.05, "under one per cent"
