"""The command line, as a user meets it: what it prints, how it exits, and how quickly it is gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Process

HELLO = "plugins:\n  hello: {config: {who: ann}}\n"

HEAVY = [
    "anyio",
    "asyncio",
    "dataclasses",
    "pydantic",
    "structlog",
    "uvicorn",
    "watchfiles",
    "yaml",
    "importlib.metadata",
]


@pytest.mark.parametrize("verb", ["status", "tree", "reload", "confirm", "rollback", "plan"])
def test_a_client_verb_imports_nothing_heavy(short: Path, verb: str) -> None:
    script = (
        "import sys\nfrom dshd.app.cli import main\n"
        f"sys.argv = ['dshd', {verb!r}, '--socket', '/nowhere/dshd.sock']\n"
        "try:\n    main()\nexcept SystemExit as exc:\n"
        f"    print(exc.code, [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert found.stdout == "7 []\n"


def test_without_a_daemon_a_client_exits_7_and_says_what_to_do(process: Process) -> None:
    for verb in ("status", "tree", "reload", "confirm", "rollback", "plan"):
        found = process.cli(verb)
        assert (found.returncode, found.stdout) == (7, "")
        assert "dshd run" in found.stderr


def test_a_dead_socket_is_unreachable_and_a_mute_daemon_times_out(process: Process) -> None:
    process.socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(process.socket))
        assert process.cli("status").returncode == 7
        mute.listen()
        found = process.cli("reload", "--timeout", "300ms")
        assert found.returncode == 8
        assert "unknown" in found.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-verb"], ["reload", "--confirm", "soon"], ["rollback", "x"], ["init"], ["explain"]]
)
def test_usage_errors_exit_2(process: Process, arguments: list[str]) -> None:
    assert process.cli(*arguments).returncode == 2


def test_the_version_is_said(process: Process) -> None:
    assert process.cli("--version").stdout.startswith("dshd 0.")


def test_status_and_tree_show_what_runs_in_colours_only_on_a_terminal(process: Process) -> None:
    process.start("plugins:\n  hello: {}\n  greedy: {use: hello, optional: true, inject: [ghost]}\n")
    status, tree = process.cli("status"), process.cli("tree", "--effects")
    assert status.returncode == tree.returncode == 0
    assert "generation 1" in status.stdout
    assert "1 active, 1 pending" in status.stdout
    assert "ghost" in status.stdout
    assert "active    hello" in tree.stdout
    assert "\x1b" not in status.stdout + tree.stdout
    assert process.cli("tree", "hello").stdout.startswith("active    hello")
    missing = process.cli("tree", "nobody")
    assert missing.returncode == 2
    assert "dshd tree" in missing.stderr


def test_json_is_the_body_of_the_api(process: Process) -> None:
    process.start(HELLO)
    assert json.loads(process.cli("status", "--json").stdout)["generation"] == 1
    assert json.loads(process.cli("tree", "--json").stdout)["rows"][0]["row"] == "hello"
    assert json.loads(process.cli("reload", "--json").stdout)["result"] == "noop"
    problem = process.cli("tree", "nobody", "--json")
    assert (problem.returncode, json.loads(problem.stdout)["status"]) == (2, 404)


def test_plan_shows_what_would_change_with_and_without_a_daemon(process: Process) -> None:
    process.start(HELLO)
    process.write(HELLO + "  other: {use: hello}\n")
    alone = process.cli("plan", "--config", "dshd.yaml", "--state-dir", "elsewhere", DSHD_SOCKET="")
    assert alone.returncode == 0
    assert "+ add hello" in alone.stdout
    assert "no daemon runs" in alone.stdout


def test_check_names_the_files_and_says_when_the_daemon_reads_others(process: Process) -> None:
    process.start(HELLO)
    (process.root / "part.yaml").write_text("plugins: {more: {use: hello}}\n")
    (process.root / "other.yaml").write_text("include: [part.yaml]\n")
    found = process.cli("check", "--config", "other.yaml")
    assert found.returncode == 0
    assert "read: other.yaml part.yaml" in found.stdout
    assert "valid: 1 row" in found.stdout
    assert str(process.config) in found.stderr
    same = process.cli("check", "--config", "dshd.yaml", "--json")
    assert (same.returncode, same.stderr) == (0, "")
    body = json.loads(same.stdout)
    assert (body["valid"], body["daemon_reads"]) == (True, None)
    assert body["digest"] == process.ask("GET", "/api/v1/status")[1]["digest"]


def test_check_and_the_daemon_give_one_verdict_with_the_line_and_the_nearest_name(process: Process) -> None:
    process.write("plugins:\n  hello: {config: {whoo: ann}}\n")
    found = process.cli("check", "--config", "dshd.yaml")
    assert found.returncode == 3
    assert "dshd.yaml:2:" in found.stdout
    assert "did you mean 'who'?" in found.stdout
    process.start(None, ready=False)
    assert process.wait() == 78
    codes = [
        issue["code"] for issue in json.loads(process.cli("check", "--config", "dshd.yaml", "--json").stdout)["issues"]
    ]
    assert all(code in process.log.read_text() for code in codes)


def test_check_without_credentials_does_not_ask_for_them(process: Process) -> None:
    process.write("plugins:\n  http: {use: http_tcp, config: {tokens: {ci: {secret: '${credential:NOT_HERE}'}}}}\n")
    assert process.cli("check", "--config", "dshd.yaml").returncode == 3
    found = process.cli("check", "--no-credentials", "--config", "dshd.yaml")
    assert found.returncode == 0
    assert "NOT_HERE" in found.stdout


def test_a_literal_secret_is_shown_nowhere(process: Process) -> None:
    marker = "sk-marker-4711"
    process.write(
        f"plugins:\n  http: {{use: http_tcp, config: {{tokens: {{ci: {{secret: {marker}, scopes: [x]}}}}}}}}\n"
    )
    for arguments in (["check"], ["check", "--json"], ["explain", "http"], ["explain", "http", "--json"], ["plan"]):
        found = process.cli(*arguments, "--config", "dshd.yaml", DSHD_SOCKET="")
        assert marker not in found.stdout + found.stderr
    process.start(None, ready=False)
    assert process.wait() == 78
    assert marker not in process.log.read_text()


def test_explain_says_where_each_field_comes_from(process: Process) -> None:
    process.write(HELLO + "daemon: {drain: 5s}\noverlays:\n  hello: {config: {who: bob}}\n")
    found = process.cli("explain", "hello", "--config", "dshd.yaml")
    assert found.returncode == 0
    line = next(line for line in found.stdout.splitlines() if "config.who" in line)
    assert line.split() == ["config.who", "bob", f"{process.config}:5:25"]
    daemon = process.cli("explain", "daemon.drain", "--config", "dshd.yaml", DSHD_DRAIN="9s")
    assert f"DSHD_DRAIN, which shadows {process.config}:3:10" in daemon.stdout
    assert "9" in daemon.stdout
    unknown = process.cli("explain", "helo", "--config", "dshd.yaml")
    assert unknown.returncode == 2
    assert "did you mean 'hello'?" in unknown.stderr
    assert process.cli("explain", "hello.config.x", "--config", "dshd.yaml").returncode == 2


def test_the_schema_knows_the_installed_plugins_and_the_daemon(process: Process) -> None:
    schema = json.loads(process.cli("schema").stdout)
    text = json.dumps(schema)
    assert "Whom to greet." in text
    assert "drain_warn_after" in text


def test_init_writes_what_runs_and_overwrites_nothing(process: Process) -> None:
    found = process.cli("init", "demo")
    assert found.returncode == 0
    assert "dshd run --config demo/dshd.yaml" in found.stdout
    assert process.cli("check", "--config", "demo/dshd.yaml").stdout.splitlines()[-1] == "valid: 2 rows, no findings"
    again = process.cli("init", "demo")
    assert again.returncode == 4
    assert "not overwritten" in again.stderr
    process.config = process.root / "demo" / "dshd.yaml"
    process.start()
    assert process.ask("GET", "/api/v1/status")[1]["rows"]["by_state"] == {"active": 2}


def test_the_configurations_that_come_with_dshd_are_valid(process: Process) -> None:
    configs = Path(__file__).parents[2] / "configs"
    both = ["--config", str(configs / "dshd.yaml"), "--config", str(configs / "development.yaml")]
    for arguments in (both[:2], both):
        found = process.cli("check", *arguments)
        assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "valid: 1 row, no findings")


def test_doctor_finds_what_is_wrong_and_says_what_to_do(process: Process) -> None:
    process.write(HELLO)
    fine = process.cli("doctor", "--config", "dshd.yaml", "--state-dir", "state", "--json")
    checks = {check["name"]: check for check in json.loads(fine.stdout)["checks"]}
    assert {"python", "config", "state directory", "lock", "socket", "inotify", "bubblewrap"} - set(checks) <= {"lock"}
    wrong = process.cli("doctor", "--config", "nowhere.yaml", "--state-dir", "state")
    assert wrong.returncode == 1
    assert "nowhere.yaml" in wrong.stdout
    process.start()
    running = process.cli("doctor", "--config", "dshd.yaml", "--state-dir", "state")
    assert process.popen is not None
    assert f"held by process {process.popen.pid}" in running.stdout
    unnamed = process.cli("doctor", "--state-dir", "state")
    assert str(process.config) in unnamed.stdout, "what the daemon that answers has read"
    assert "none found" not in unnamed.stdout
    process.stop()
    assert "none found" in process.cli("doctor", "--state-dir", "state").stdout


def test_a_reader_that_has_had_enough_is_no_error_to_complain_about(process: Process) -> None:
    process.start(HELLO)
    command = f"{sys.executable} -m dshd status --json | true"
    found = subprocess.run(
        ["bash", "-c", command],
        env=process.environ | {"DSHD_SOCKET": str(process.socket)},
        capture_output=True,
        text=True,
    )
    assert found.stderr == ""


def test_clients_find_the_daemon_by_its_state_directory(process: Process) -> None:
    process.start(HELLO)
    found = process.cli("status", "--state-dir", str(process.state), DSHD_SOCKET="")
    assert found.returncode == 0, found.stderr
    assert os.path.basename(process.socket) == "dshd.sock"


def test_a_socket_with_a_name_too_long_for_an_address_works(process: Process) -> None:
    process.state = process.root / ("long" * 40) / "state"
    process.socket = process.state / "run" / "dshd.sock"
    process.start(HELLO)
    assert process.cli("status").returncode == 0
