"""Every verb ends with the status that the interface promises, and says in a sentence what to do."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Daemon, made_in, until

OFF = {"DSHD_WATCH": "off"}


@pytest.fixture(scope="module")
def steady() -> Iterator[Daemon]:
    """One daemon for the verbs that change nothing."""
    with made_in() as daemon:
        daemon.start(daemon.marks(one=1, two=2), environ=OFF)
        yield daemon


CONFIG = "CONFIG"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["status"], 0), (["tree"], 0), (["tree", "one"], 0), (["tree", "none"], 2), (["plan"], 0), (["reload"], 0),
        (["confirm"], 0), (["rollback", "99"], 2), (["rollback", "x"], 2), (["reload", "--if-generation", "99"], 4),
        (["check", "--config", CONFIG], 0), (["explain", "one", "--config", CONFIG], 0),
        (["explain", "none", "--config", CONFIG], 2), (["explain", "daemon", "--config", CONFIG], 0),
        (["schema"], 0), (["doctor", "--config", CONFIG], 0), (["reload", "--confirm", "soon"], 2),
        (["fly"], 2), ([], 2),
        (["check", "--config", "nowhere.yaml"], 3), (["status", "--socket", "/nowhere.sock"], 7),
        (["reload", "--socket", "/nowhere.sock"], 7), (["plan", "--socket", "/nowhere.sock"], 7),
        (["rollback", "--socket", "/nowhere.sock"], 7), (["confirm", "--socket", "/nowhere.sock"], 7),
        (["tree", "--socket", "/nowhere.sock"], 7),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)  # fmt: skip
def test_a_verb_ends_with_its_status_and_complains_on_standard_error_only(
    steady: Daemon, arguments: list[str], status: int
) -> None:
    given = [str(steady.config) if each == CONFIG else each for each in arguments]
    done = steady.cli(*given)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == bool(status)
    assert len(done.stderr.splitlines()) <= 3 or "usage" in done.stderr


@pytest.mark.parametrize("verb", [["status"], ["tree"], ["tree", "one"], ["plan"], ["reload"]])
def test_json_is_one_document_on_standard_output(steady: Daemon, verb: list[str]) -> None:
    assert isinstance(json.loads(steady.cli(*verb, "--json").stdout), dict)


def test_an_edit_that_is_invalid_held_or_does_not_start_has_its_own_status(daemon: Daemon) -> None:
    daemon.python("bad", "raise RuntimeError('no')")
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.write("plugins: [\n")
    assert daemon.cli("reload").returncode == daemon.cli("plan").returncode == 3
    daemon.write("plugins: {}\n")
    assert daemon.cli("reload").returncode == 4
    assert daemon.cli("plan").returncode == 4
    daemon.write(daemon.marks(one=1) + "  bad: {use: ./plugins/bad.py}\n")
    done = daemon.cli("reload")
    assert done.returncode == 5
    assert "no" in done.stdout
    daemon.write("plugins: {}\n")
    assert daemon.cli("reload", "--allow-removals").returncode == 0
    assert daemon.states() == {}


def test_a_confirmation_that_comes_too_late_exits_6(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.write(daemon.marks(one=2))
    done = daemon.cli("reload", "--confirm", "300ms", "--json")
    result: Any = json.loads(done.stdout)
    assert done.returncode == 0
    assert result["confirm_by"]
    until(lambda: daemon.last()["trigger"] == "confirm", "the return", 5)
    assert daemon.last()["result"] == "rolled_back"
    assert daemon.value("one") == 1
    assert daemon.cli("confirm").returncode == 6


def test_a_daemon_that_does_not_answer_in_time_is_an_unknown_outcome(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.signal(signal.SIGSTOP)
    try:
        assert daemon.cli("reload", "--timeout", "300ms").returncode == 8
        assert daemon.cli("status", "--timeout", "300ms").returncode == 8
    finally:
        daemon.signal(signal.SIGCONT)


def test_plan_without_a_daemon_and_init_work_from_nothing(daemon: Daemon, tmp_path: Path) -> None:
    done = daemon.cli("init", "demo")
    assert done.returncode == 0
    assert daemon.cli("init", "demo").returncode != 0
    file = str(daemon.root / "demo" / "dshd.yaml")
    assert daemon.cli("check", "--config", file).returncode == 0
    del daemon.environ["NOTIFY_SOCKET"]
    found = daemon.cli("plan", "--config", file, "--state-dir", str(tmp_path), DSHD_SOCKET="")
    assert found.returncode == 0
    assert "add greeter" in found.stdout


def test_a_plan_of_a_broken_file_is_no_failed_reload(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.write("plugins: [\n")
    assert daemon.cli("plan").returncode == 3
    assert daemon.status()["last_reload"]["result"] == "committed"
    assert "dshd_config_last_reload_successful 1.0" in daemon.ask("GET", "/metrics")[1]
