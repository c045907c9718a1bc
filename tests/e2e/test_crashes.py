"""The process is killed, stopped, started twice; what is on disk stays usable and numbers are never used again."""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from .conftest import Daemon, until


def test_twenty_kills_in_the_middle_of_reloads_lose_nothing_and_reuse_no_number(daemon: Daemon) -> None:
    chance = random.Random(11)
    value = 0
    numbers: dict[int, str] = {}
    daemon.write(daemon.marks(one=value))
    for _ in range(20):
        daemon.start()
        body = daemon.status()
        assert body["state"] == "running", body["degraded"]
        assert daemon.value("one") == value
        assert body["generation"] not in numbers or numbers[body["generation"]] == body["digest"]
        numbers[body["generation"]] = body["digest"]

        def save() -> None:
            nonlocal value
            for _ in range(3):
                value += 1
                daemon.write(daemon.marks(one=value))
                time.sleep(0.005)

        def reload() -> None:
            try:
                result = daemon.reload()
            except (OSError, http.client.HTTPException):
                return
            if isinstance(result, dict) and result.get("result") == "committed":
                known = numbers.setdefault(result["generation"], result["digest"])
                assert known == result["digest"], "one number, one tree"

        savers = [threading.Thread(target=save), threading.Thread(target=reload), threading.Thread(target=reload)]
        for thread in savers:
            thread.start()
        time.sleep(chance.uniform(0, 0.06))
        daemon.kill()
        for thread in savers:
            thread.join()
    daemon.start()
    assert daemon.value("one") == value
    until(lambda: len(list((daemon.state / "generations").glob("*.json"))) <= 20, "the end of old generations", 5)
    assert daemon.status()["generation"] >= max(numbers)


def test_numbers_grow_by_one_and_go_on_after_a_restart(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=0))
    found = [daemon.status()["generation"]]
    for number in (1, 2):
        daemon.write(daemon.marks(one=number))
        found.append(daemon.reload()["generation"])
    daemon.stop()
    daemon.start()
    found.append(daemon.status()["generation"])
    assert found == [1, 2, 3, 4]


def test_a_state_directory_full_of_rubbish_does_not_keep_the_daemon_from_starting(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=0))
    daemon.write(daemon.marks(one=1))
    daemon.reload()
    daemon.kill()
    names = ("reloads.json", "number.json", "hold.json", "unconfirmed.json", "generations/00000002.json")
    for rubbish in ("", "{", "[]", "null", '{"last": "many"}', '{"generation": "x", "previous": [], "by": "y"}'):
        for name in names:
            (daemon.state / name).write_text(rubbish)
        daemon.start()
        assert daemon.value("one") == 1, rubbish
        assert daemon.status()["generation"] >= 1
        daemon.kill()
        for name in names:
            (daemon.state / name).unlink(missing_ok=True)


def test_an_invalid_file_after_a_kill_starts_the_last_good_tree_and_touches_nothing(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1))
    daemon.write("plugins:\n  one: {use: ./plugins/mark.py, config: {valeu: 2}}\n")
    until(lambda: daemon.last()["result"] == "rejected", "the rejection")
    broken = daemon.config.read_bytes()
    daemon.kill()
    daemon.start()
    assert daemon.value("one") == 1
    assert daemon.status()["state"] == "degraded"
    assert daemon.config.read_bytes() == broken
    assert "degraded" in daemon.cli("status").stdout
    daemon.stop()
    daemon.start(None, "--strict", ready=False)
    assert daemon.wait() == 78
    assert "valeu" in "\n".join(daemon.log.read_text().splitlines()[-6:])


def test_what_is_wrong_with_the_files_is_shown_while_the_last_good_tree_runs(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1))
    daemon.kill()
    daemon.write("plugins:\n  one: {use: ./plugins/mark.py, config: {valeu: 2}}\n")
    daemon.start()
    assert "valeu" in str(daemon.status())
    assert "valeu" in daemon.cli("status").stdout


def test_a_rollback_holds_across_a_restart_until_a_source_changes(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1))
    daemon.write(daemon.marks(one=2))
    daemon.reload()
    assert daemon.cli("rollback").returncode == 0
    assert daemon.value("one") == 1
    time.sleep(0.3)
    assert daemon.value("one") == 1
    daemon.kill()
    daemon.start()
    assert daemon.value("one") == 1
    assert daemon.status()["state"] == "degraded"
    daemon.write(daemon.marks(one=3))
    until(lambda: daemon.value("one") == 3, "the edit")
    assert daemon.status()["state"] == "running"


def test_a_restart_never_starts_an_unconfirmed_generation(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ={"DSHD_WATCH": "off"})
    daemon.write(daemon.marks(one=2))
    assert daemon.cli("reload", "--confirm", "60s").returncode == 0
    assert daemon.value("one") == 2
    daemon.kill()
    daemon.start(environ={"DSHD_WATCH": "off"})
    assert daemon.value("one") == 1
    daemon.kill()
    daemon.start(environ={"DSHD_WATCH": "off"})
    assert daemon.value("one") == 1, "nor does the restart after that"


def test_a_stop_in_the_middle_of_a_reload_ends_in_time(daemon: Daemon) -> None:
    daemon.python("slow", "if config.number:\n    await anyio.sleep(30)")
    row = "  slow: {use: ./plugins/slow.py, config: {number: 0}}\n"
    daemon.start(daemon.marks(one=1) + row)
    daemon.write(daemon.marks(one=1) + row.replace("0", "1"))
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(daemon.ask("POST", "/api/v1/reload", {})))
    asking.start()
    time.sleep(0.4)
    begun = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert time.monotonic() - begun < 5
    asking.join()
    assert answers[0][0] == 503


def test_two_starts_at_once_on_one_state_directory_give_one_daemon(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), ready=False)
    first = daemon.popen
    daemon.start(ready=False)
    second = daemon.popen
    assert first is not None
    assert second is not None
    loser = until(lambda: next((each for each in (first, second) if each.poll() is not None), None), "the end of one")
    assert loser.poll() == 75
    winner = second if loser is first else first
    daemon.manager.receive_until("READY=1")
    assert f"process {winner.pid}" in daemon.log.read_text()
    assert daemon.value("one") == 1
    daemon.popen = winner


def test_hang_ups_while_it_starts_do_not_end_it(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), ready=False)
    assert daemon.popen is not None
    status = Path(f"/proc/{daemon.popen.pid}/status")

    def caught() -> bool:
        mask = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        return bool(int(mask, 16) & 1 << (signal.SIGHUP - 1))

    until(caught, "its handler")
    assert not daemon.state.exists(), "long before anything else, the imports included"
    while not any("READY=1" in text for text in daemon.manager.drain()):
        daemon.signal(signal.SIGHUP)
        time.sleep(0.01)
        assert daemon.alive()
    until(lambda: daemon.value("one") == 1, "the start")
