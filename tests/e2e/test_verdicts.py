"""A reload and `dshd check` in a fresh process say the same of the same files; what is refused changes nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Daemon, made_in

OFF = {"DSHD_WATCH": "off"}
USE = "use: ./plugins/mark.py"

BOMB = "x: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)

REFUSED = {
    "a key that stands twice": (f"plugins:\n  one: {{{USE}}}\n  two: {{{USE}}}\n  one: {{{USE}}}\n", "E0106", "one"),
    "an alias bomb": (f"settings:\n{''.join('  ' + line for line in BOMB.splitlines(True))}", "E0113", ""),
    "a mistyped field": (f"plugins:\n  one: {{{USE}, config: {{valeu: 1}}}}\n", "E0401", "value"),
    "a mistyped key of a row": (f"plugins:\n  one: {{{USE}, optinal: true}}\n", "E0214", "optional"),
    "a mistyped section": (f"plugin:\n  one: {{{USE}}}\n", "E0201", "plugins"),
    "an unset variable": (f"plugins:\n  one: {{{USE}, config: {{value: '${{NO_SUCH}}'}}}}\n", "", "NO_SUCH"),
    "an unset variable of env": (
        f"plugins:\n  one: {{{USE}, config: {{value: '${{env:NO_SUCH}}'}}}}\n", "", "NO_SUCH"
    ),
    "a tab": (f"plugins:\n  one:\n\t{USE}\n", "E0105", "tab"),
    "a Python tag": (
        f"plugins:\n  one: {{{USE}, config: {{value: !!python/object/apply:os.getcwd []}}}}\n", "E0107", ""
    ),
    "a tag of one's own": (f"plugins:\n  one: {{{USE}, config: {{value: !x 1}}}}\n", "E0107", ""),
    "a list for a mapping": (f"plugins:\n  - one: {{{USE}}}\n", "E0202", "plugins"),
    "an unknown plugin": ("plugins:\n  one: {use: ghost_plugin}\n", "", "ghost_plugin"),
    "an overlay of nothing": (
        f"plugins:\n  one: {{{USE}}}\noverlays:\n  too: {{config: {{value: 1}}}}\n", "E0216", "too"
    ),
    "a plain include that is not there": ("include: [nowhere.yaml]\n", "E0207", "nowhere"),
    "a word where a truth belongs": (f"plugins:\n  one: {{{USE}, config: {{flag: on}}}}\n", "", "true"),
    "a missing credential": (f"plugins:\n  one: {{{USE}, config: {{value: '${{credential:NONE}}'}}}}\n", "", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    """One daemon for the edits that it refuses."""
    with made_in() as daemon:
        daemon.start(daemon.marks(one=1), environ=OFF)
        yield daemon


def codes(issues: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(x["code"], x["row"], x["line"], x["col"]) for x in issues]


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_refused_by_both_with_its_place_and_the_old_serves_on(served: Daemon, what: str) -> None:
    text, code, word = REFUSED[what]
    daemon = served
    generation, instance = daemon.status()["generation"], daemon.mark("one")["instance"]
    daemon.write(text)
    begun = time.monotonic()
    status, result = daemon.ask("POST", "/api/v1/reload", {})
    assert time.monotonic() - begun < (3 if code == "E0207" else 1), "a missing file has its time of grace"
    assert status == 422
    assert result["result"] == "rejected"
    found = daemon.check("--json")
    assert found.returncode == 3
    assert codes(json.loads(found.stdout)["issues"]) == codes(result["issues"])
    first = result["issues"][0]
    assert first["line"]
    assert first["code"] == code or not code
    assert word in f"{first['message']} {first['hint']}"
    assert daemon.mark("one")["instance"] == instance
    assert daemon.status()["generation"] == generation


def test_both_lines_of_a_double_key_are_named_and_an_override_of_a_merged_key_is_none(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.write(f"plugins:\n  one: {{{USE}}}\n  two: {{{USE}}}\n  one: {{{USE}}}\n")
    message = daemon.reload()["issues"][0]["message"]
    assert "2" in message
    assert "'one'" in message
    daemon.write("settings:\n  base: &base {a: 1, b: 2}\n  more: {<<: *base, b: 3}\n" + daemon.marks(one=2))
    assert daemon.check().returncode == 0
    assert daemon.reload()["result"] == "committed"


def test_an_alias_bomb_costs_little_memory_and_time(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    before = memory(daemon)
    daemon.write(REFUSED["an alias bomb"][0])
    begun = time.monotonic()
    assert daemon.reload()["result"] == "rejected"
    assert time.monotonic() - begun < 1
    assert memory(daemon) - before < 50_000
    one = "".join(f"  k{n}: *n{n % 5}\n" for n in range(100))
    daemon.write("templates:\n" + "".join(f"  t{n}: &n{n} {{a: {n}}}\n" for n in range(5)) + one + daemon.marks(one=2))
    assert daemon.reload()["result"] == "committed"


def memory(daemon: Daemon) -> int:
    """Its greatest resident size so far, in KiB."""
    assert daemon.popen is not None
    with open(f"/proc/{daemon.popen.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


WRITTEN = {
    "no": "no", "off": "off", "0123": "0123", "08": "08", "12:30": "12:30", "2024-01-01": "2024-01-01",
    "'7'": "7", "7": 7,
    "$${A}": "${A}", "${env:NONE:-x}": "x",
}  # fmt: skip


def test_text_arrives_as_it_is_written(daemon: Daemon) -> None:
    rows = [
        f"  r{n}: {{{USE}, config: {{value: {text if text[0] != '$' else repr(text)}}}}}"
        for n, text in enumerate(WRITTEN)
    ]
    daemon.start("\n".join(["plugins:", *rows]) + "\n", environ=OFF)
    assert [daemon.value(f"r{n}") for n in range(len(WRITTEN))] == list(WRITTEN.values())


def test_lists_of_words_stay_words_and_truths_are_truths(daemon: Daemon) -> None:
    daemon.start(f"plugins:\n  one: {{{USE}, config: {{words: [de, no, se, 08, 09, 010], flag: true}}}}\n")
    found = daemon.mark("one")
    assert found["words"] == ["de", "no", "se", "08", "09", "010"]
    assert found["flag"] is True


def test_byte_order_mark_and_windows_lines_change_nothing(daemon: Daemon) -> None:
    text = daemon.marks(one=1, two=2)
    daemon.start(text, environ=OFF)
    for start, end in ((b"\xef\xbb\xbf", "\n"), (b"", "\r\n"), (b"\xef\xbb\xbf", "\r\n")):
        daemon.config.write_bytes(start + text.replace("\n", end).encode())
        assert daemon.reload()["result"] == "noop"
    assert daemon.check().returncode == 0


def test_a_file_that_is_not_utf_8_is_refused_with_the_offset(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.config.write_bytes(b"# caf\xe9\n" + daemon.marks(one=2).encode())
    first = daemon.reload()["issues"][0]
    assert first["code"] == "E0102"
    assert "5" in first["message"]
    assert daemon.check().returncode == 3


def test_one_id_in_two_layers_names_both_files_and_plugins(daemon: Daemon) -> None:
    over = daemon.root / "over.yaml"
    over.write_text("# nothing yet\n")
    daemon.write(daemon.marks(storage=1))
    daemon.start(None, "--config", str(over), environ=OFF)
    assert daemon.value("storage") == 1
    over.write_text("plugins:\n  storage: {use: hello}\n")
    result = daemon.reload()
    assert result["result"] == "rejected"
    message = str(result["issues"][0])
    for word in ("storage", "over.yaml", "dshd.yaml", "hello", "mark"):
        assert word in message
    assert daemon.value("storage") == 1
    for empty in ("", "# only this\n", "---\n"):
        over.write_text(empty)
        assert daemon.reload()["result"] == "noop"
    over.write_text(daemon.marks(storage=1))
    result = daemon.reload()
    assert [x["code"] for x in result["issues"]] == ["W0205"]
    assert daemon.states() == {"storage": "active"}
    over.write_text("- a\n")
    assert daemon.reload()["issues"][0]["code"] == "E0202"


def test_a_setting_that_the_environment_shadows_is_said_by_check_and_by_explain(daemon: Daemon) -> None:
    daemon.environ["DSHD_LOG_LEVEL"] = "warning"
    daemon.start("daemon: {log_level: info}\n" + daemon.marks(one=1), environ=OFF)
    daemon.write("daemon: {log_level: debug}\n" + daemon.marks(one=2))
    found = daemon.check()
    assert found.returncode == 0
    assert "DSHD_LOG_LEVEL" in found.stdout
    assert "DSHD_LOG_LEVEL" in daemon.cli("explain", "daemon", "--config", str(daemon.config)).stdout
    daemon.cli("reload")
    assert daemon.status()["settings"]["log_level"] == "warning"


def test_a_reload_says_which_of_its_changes_the_environment_shadows(daemon: Daemon) -> None:
    daemon.environ["DSHD_LOG_LEVEL"] = "warning"
    daemon.start("daemon: {log_level: info}\n" + daemon.marks(one=1), environ=OFF)
    daemon.write("daemon: {log_level: debug}\n" + daemon.marks(one=2))
    assert "DSHD_LOG_LEVEL" in daemon.cli("reload").stdout


def test_a_list_in_a_variable_is_read_as_json_and_nothing_else(daemon: Daemon) -> None:
    text = f"plugins:\n  one: {{{USE}, config: {{words: '${{env:WORDS}}'}}}}\n"
    daemon.start(text, environ={"WORDS": '["a","b"]'})
    assert daemon.mark("one")["words"] == ["a", "b"]
    daemon.kill()
    for wrong in ("a,b", "[a", ""):
        found = daemon.cli("check", "--config", str(daemon.config), WORDS=wrong)
        assert found.returncode == 3 or not wrong
        assert "WORDS" in found.stdout or not wrong


FORKS = """\
import json, os, sys
import dshd.app.offline, dshd.loader.sources
from dshd.app.cli import main

for line in sys.stdin:
    if os.fork() == 0:
        sys.stdin = open(os.devnull)
        main(json.loads(line))
    os.wait()
    print(flush=True)
"""


class Checks:
    """`dshd check --json` in a fresh process at each call: a fork of one that has only imported dshd."""

    def __init__(self, daemon: Daemon) -> None:
        self._command = ["check", "--json", "--config", str(daemon.config), "--state-dir", str(daemon.state)]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", FORKS], env=daemon.environ, cwd=daemon.root, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Checks:
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.communicate()

    def ask(self) -> Any:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(self._command) + "\n")
        self._popen.stdin.flush()
        return json.loads("".join(iter(self._popen.stdout.readline, "\n")))


def test_a_hundred_random_edits_get_one_verdict(daemon: Daemon) -> None:
    """Generated edits: what the running daemon says equals what a fresh process says, and so does the digest."""
    chance = random.Random(3)
    daemon.start(daemon.marks(a=0, b=0, c=0), environ=OFF)
    pieces: list[Callable[[int], str]] = [
        lambda n: f"config: {{value: {n}}}", lambda n: "optional: true", lambda n: "disabled: ${env:OFF:-false}",
        lambda n: f"config: {{valu: {n}}}", lambda n: "inject: [ghost]", lambda n: "isolate: [thing]",
        lambda n: f"config: {{words: [x{n}, no]}}", lambda n: "config: {flag: no}", lambda n: "group: {}",
    ]  # fmt: skip
    good = 0
    with Checks(daemon) as checks:
        for number in range(100):
            rows = []
            for name in chance.sample("abcdef", chance.randint(1, 5)):
                weights = [6, 2, 1, 0.5, 0.3, 1, 3, 0.3, 0.3]
                rows.append(f"  {name}: {{{USE}, {chance.choices(pieces, weights)[0](number)}}}")
            daemon.write("plugins:\n" + "\n".join(rows) + "\n")
            result = daemon.reload(allow_removals=True)
            fresh = checks.ask()
            assert fresh["valid"] == (result["result"] in ("committed", "noop")), daemon.config.read_text()
            assert codes(fresh["issues"]) == codes(result["issues"])
            if fresh["valid"]:
                good += 1
                assert fresh["digest"] == result["digest"] == daemon.status()["digest"]
    assert 30 < good < 90
