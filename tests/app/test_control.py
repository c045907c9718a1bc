"""The control socket of a real daemon: its routes, its results, and who may use it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dshd.loader.result import Outcome

if TYPE_CHECKING:
    from .conftest import Process

HELLO = "plugins:\n  hello: {config: {who: ann}}\n"
QUIET = {"DSHD_WATCH": "off"}

CHILD = '''
import subprocess, sys
from dshd import Config, Context, plugin

SCRIPT = """
import os, socket, sys, time
time.sleep({delay})
s = socket.socket(socket.AF_UNIX); s.connect({path!r})
s.sendall(b"GET /api/v1/status HTTP/1.1\\\\r\\\\nhost: x\\\\r\\\\nconnection: close\\\\r\\\\n\\\\r\\\\n")
answer = b""
while chunk := s.recv(65536):
    answer += chunk
open({answer!r} + ".new", "wb").write(answer)
os.rename({answer!r} + ".new", {answer!r})
"""

class Child(Config):
    path: str
    answer: str
    orphan: bool = False

@plugin("child", config=Child)
async def child(ctx: Context, config: Child) -> None:
    script = SCRIPT.format(path=config.path, answer=config.answer, delay=1 if config.orphan else 0.3)
    if config.orphan:
        # The one between ends at once, so the one that connects has lost its parent.
        script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {script!r}], start_new_session=True)"
    started = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    if config.orphan:
        started.wait()
'''


def test_a_committed_reload_is_200_and_says_what_changed(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    process.write(HELLO.replace("ann", "bob"))
    status, result = process.ask("POST", "/api/v1/reload", {})
    assert (status, result["result"], result["trigger"], result["generation"]) == (200, "committed", "api", 2)
    assert {(a["row"], a["action"], tuple(a["changed"])) for a in result["plan"]["actions"]} == {
        ("hello", "replace", ("config.who",))
    }
    assert process.ask("POST", "/api/v1/reload")[1]["result"] == "noop"
    status, last = process.ask("GET", "/api/v1/reload")
    assert (status, last["result"]) == (200, "noop")
    _, history = process.ask("GET", "/api/v1/reloads")
    assert [each["result"] for each in history["reloads"]] == ["noop", "committed", "committed"]


def test_a_broken_configuration_is_no_success_and_changes_nothing(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    process.write("plugins:\n  hello: {config: {who: ]}}\n")
    status, result = process.ask("POST", "/api/v1/reload")
    assert (status, result["result"], result["generation"]) == (422, "rejected", 1)
    issue = result["issues"][0]
    assert issue["file"].endswith("dshd.yaml")
    assert issue["line"] == 2
    found = process.cli("reload")
    assert found.returncode == 3
    assert "dshd.yaml:2:" in found.stdout
    assert "generation 1 runs" in found.stdout
    assert len(found.stderr.splitlines()) == 1
    assert process.ask("GET", "/api/v1/status")[1]["generation"] == 1


def test_plan_only_changes_nothing(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    process.write(HELLO.replace("ann", "bob"))
    status, result = process.ask("POST", "/api/v1/reload", {"plan_only": True})
    assert (status, result["generation"]) == (200, 1)
    assert result["plan"]["actions"][0]["action"] == "replace"
    assert process.logged("hello", who="bob") is None


def test_a_generation_that_does_not_run_is_a_conflict(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    assert process.ask("POST", "/api/v1/reload", {"if_generation": 7})[0] == 409
    assert process.ask("POST", "/api/v1/reload", headers={"If-Match": '"7"'})[0] == 409
    assert process.ask("POST", "/api/v1/reload", headers={"If-Match": '"1"'})[0] == 200
    assert process.ask("POST", "/api/v1/reload", headers={"If-Match": "seven"})[0] == 400
    assert process.cli("reload", "--if-generation", "7").returncode == 4


def test_emptying_the_tree_is_held_until_it_is_allowed(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    process.write("plugins: {}\n")
    status, result = process.ask("POST", "/api/v1/reload")
    assert (status, result["result"]) == (409, "held")
    assert process.cli("reload").returncode == 4
    assert process.cli("reload", "--allow-removals").returncode == 0


def test_a_row_that_does_not_start_leaves_what_runs(process: Process) -> None:
    process.plugin(
        "broken",
        "from dshd import Config, Context, plugin\n@plugin('broken')\n"
        "async def broken(ctx: Context, config: Config) -> None:\n    raise RuntimeError('no')\n",
    )
    process.start(HELLO, environ=QUIET)
    process.write(HELLO + "  broken: {use: ./plugins/broken.py}\n")
    assert process.ask("POST", "/api/v1/reload")[0] == 422
    found = process.cli("reload")
    assert found.returncode == 5
    assert "RuntimeError: no" in found.stdout
    assert process.ask("GET", "/api/v1/status")[1]["rows"]["by_state"] == {"active": 1}


def test_a_rollback_goes_back_and_an_unknown_generation_is_not_there(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    process.write(HELLO.replace("ann", "bob"))
    process.ask("POST", "/api/v1/reload")
    assert process.cli("rollback", "99").returncode == 2
    status, result = process.ask("POST", "/api/v1/rollback", {"generation": 1})
    assert (status, result["trigger"], result["generation"]) == (200, "rollback", 3)
    assert process.ask("GET", "/api/v1/status")[1]["state"] == "degraded"
    assert "degraded" in process.cli("status").stdout


def test_an_unconfirmed_reload_rolls_back_and_a_confirmed_one_stays(process: Process) -> None:
    process.start(HELLO, environ=QUIET)
    process.write(HELLO.replace("ann", "bob"))
    found = process.cli("reload", "--confirm", "60s")
    assert found.returncode == 0
    assert "dshd confirm" in found.stdout
    assert process.ask("GET", "/api/v1/status")[1]["confirm_by"]
    assert process.cli("confirm").returncode == 0
    assert process.ask("GET", "/api/v1/status")[1]["confirm_by"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/nothing", None, {}, 404),
        ("GET", "/api/v1/rows/nobody", None, {}, 404),
        ("DELETE", "/api/v1/status", None, {}, 405),
        ("POST", "/api/v1/reload", {"plan": True}, {}, 400),
        ("POST", "/api/v1/reload", {"plan_only": "yes"}, {}, 400),
        ("POST", "/api/v1/reload", [], {}, 400),
        ("POST", "/api/v1/reload", {}, {"content-type": "text/plain"}, 415),
        ("POST", "/api/v1/reload", "x" * (2 << 20), {}, 413),
    ],
)
def test_a_wrong_request_gets_a_problem_document(
    process: Process, method: str, path: str, body: object, headers: dict[str, str], status: int
) -> None:
    process.start(HELLO, environ=QUIET)
    found, document = process.ask(method, path, body, headers)
    assert found == status
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]


def test_health_metrics_and_pictures_are_there(process: Process) -> None:
    process.start("plugins:\n  group: {group: {hello: {}}}\n  lonely: {use: hello, optional: true}\n", environ=QUIET)
    for path in ("/livez", "/startupz", "/readyz"):
        assert process.ask("GET", path) == (200, {"status": "ok"})
    status, text = process.ask("GET", "/metrics")
    assert status == 200
    for line in (
        "dshd_config_last_reload_successful 1.0",
        "dshd_config_generation 1.0",
        'dshd_reloads_total{result="committed",trigger="start"} 1.0',
        'dshd_rows{state="active"} 2.0',
        "dshd_generations_live 1.0",
        "dshd_effect_leaks_total 0.0",
        "dshd_drain_oldest_seconds 0.0",
    ):
        assert line in text
    assert 'dshd_reload_phase_seconds_bucket{le="+Inf",phase="prepare"} 1.0' in text
    assert "dshd_config_last_reload_success_timestamp_seconds" in text
    assert "dshd_effects" in text
    assert [row["row"] for row in process.ask("GET", "/api/v1/tree")[1]["rows"]] == ["group/hello", "lonely"]
    status, row = process.ask("GET", "/api/v1/rows/group/hello")
    assert (status, row["state"], row["use"], row["optional"]) == (200, "active", "hello", False)


@pytest.mark.parametrize("orphan", [False, True])
def test_a_process_that_the_daemon_has_started_is_refused_even_as_an_orphan(process: Process, orphan: bool) -> None:
    from .conftest import until

    process.plugin("child", CHILD)
    answer = process.root / "answer"
    process.start(
        f"plugins:\n  child:\n    use: ./plugins/child.py\n"
        f"    config: {{path: {process.socket}, answer: {answer}, orphan: {str(orphan).lower()}}}\n"
    )
    until(answer.exists, "an answer")
    text = answer.read_text()
    assert text.startswith("HTTP/1.1 403")
    assert "no administrator" in text
    assert process.ask("GET", "/livez")[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_user_is_refused_and_a_member_of_the_group_is_not(process: Process) -> None:
    script = (
        "import os, socket, sys; uid, gid, groups, path = eval(sys.argv[1]);"
        "os.setgroups(groups); os.setgid(gid); os.setuid(uid);"
        "s = socket.socket(socket.AF_UNIX); s.connect(path);"
        "s.sendall(b'GET /livez HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n');"
        "print(s.recv(4096).decode())"
    )

    def come(uid: int, gid: int, groups: list[int]) -> str:
        arguments = repr((uid, gid, groups, str(process.socket)))
        found = subprocess.run([sys.executable, "-c", script, arguments], capture_output=True, text=True, timeout=20)
        return found.stdout.partition("\r")[0] or found.stderr.splitlines()[-1]

    process.start(HELLO, environ=QUIET)
    assert "PermissionError" in come(65534, 65534, [])
    for path in (process.root, process.state):
        path.chmod(0o711)
    process.write(HELLO + "daemon: {group: '12345'}\n")
    process.ask("POST", "/api/v1/reload")
    assert process.socket.stat().st_mode & 0o777 == 0o660
    assert "200" in come(65534, 12345, [])
    assert "200" in come(65534, 65534, [12345])
    process.socket.chmod(0o666)  # even if somebody opens it wide
    process.socket.parent.chmod(0o711)
    assert "403" in come(65534, 65534, [])


def test_the_command_line_knows_the_outcomes_of_the_loader() -> None:
    from dshd.app.verbs import EXITS

    assert {outcome.value: outcome.exit_status for outcome in Outcome} == EXITS
