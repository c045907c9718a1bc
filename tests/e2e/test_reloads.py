"""What a reload does to the rows of a running process, and what it says about it."""

from __future__ import annotations

import signal
import time

import pytest

from .conftest import Daemon, until

OFF = {"DSHD_WATCH": "off"}


def test_a_failed_addition_keeps_what_the_same_edit_removes(daemon: Daemon) -> None:
    daemon.python("bad", "raise RuntimeError('no such luck')")
    text = daemon.marks(a=1, c=1)
    daemon.start(text, environ=OFF)
    instances = {name: daemon.mark(name)["instance"] for name in "ac"}
    daemon.write(daemon.marks(c=1) + "  b: {use: ./plugins/bad.py}\n")
    result = daemon.reload()
    assert result["result"] == "prepare_failed"
    assert "no such luck" in str(result["issues"])
    assert {name: daemon.mark(name)["instance"] for name in "ac"} == instances
    assert daemon.states() == {"a": "active", "c": "active"}
    daemon.write(text)
    assert daemon.reload()["result"] == "noop"
    assert {name: daemon.mark(name)["instance"] for name in "ac"} == instances


@pytest.mark.parametrize("how", ["file", "api", "cli", "signal"])
def test_the_new_instance_has_the_new_config_whoever_asked(daemon: Daemon, how: str) -> None:
    daemon.start(daemon.marks(one="bar", two="x"), environ={} if how == "file" else OFF)
    two = daemon.mark("two")["instance"]
    daemon.write(daemon.marks(one="baz", two="x"))
    if how == "api":
        daemon.reload()
    elif how == "cli":
        assert daemon.cli("reload").returncode == 0
    elif how == "signal":
        daemon.signal(signal.SIGHUP)
    until(lambda: daemon.value("one") == "baz", "the new value", 3)
    assert daemon.mark("two")["instance"] == two


def test_a_broken_file_is_no_success_for_anybody(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.write("plugins:\n  one: {use: ./plugins/mark.py\n")
    status, body = daemon.ask("POST", "/api/v1/reload", {})
    assert status == 422
    assert body["issues"][0]["line"]
    found = daemon.cli("reload")
    assert found.returncode == 3
    assert "dshd.yaml:" in found.stdout
    assert daemon.value("one") == 1
    assert daemon.status()["generation"] == 1


def test_ten_reloads_leave_as_much_as_one(daemon: Daemon) -> None:
    daemon.python("ring_a", "pass", config="from . import ring_b\nclass Settings(Config):\n    number: int = 0\n")

    def text(n: int) -> str:
        return daemon.marks(one=n, two=0)

    daemon.start(text(0), environ=OFF)
    daemon.write(text(1))
    daemon.reload()
    before = daemon.status()["effects"]
    for number in range(2, 12):
        daemon.write(text(number))
        assert daemon.reload()["generation"] == number + 1
        assert daemon.value("one") == number
    until(lambda: daemon.status()["effects"] == before, "the same count of effects")
    assert daemon.status()["draining"] == []


def test_a_package_of_two_modules_that_import_each_other_works_and_loads_once(daemon: Daemon) -> None:
    package = daemon.root / "plugins" / "ring"
    package.mkdir()
    (package / "__init__.py").write_text("from .a import ring\n")
    (package / "a.py").write_text(
        "from dshd import Config, Context, plugin\nfrom . import b\n\n\n"
        "class Settings(Config):\n    number: int = 0\n\n\n"
        "@plugin('ring', config=Settings)\nasync def ring(ctx: Context, config: Settings) -> None:\n"
        "    ctx.log.info('ring', number=config.number, other=b.name())\n"
    )
    (package / "b.py").write_text("from . import a\n\n\ndef name() -> str:\n    return a.__name__.rpartition('.')[2]\n")
    daemon.start("plugins:\n  ring: {use: ./plugins/ring, config: {number: 1}}\n", environ=OFF)
    daemon.write("plugins:\n  ring: {use: ./plugins/ring, config: {number: 2}}\n")
    daemon.reload()
    assert [x["number"] for x in daemon.lines() if x["event"] == "ring"] == [1, 2]


def test_a_row_changes_its_plugin_in_one_reload_without_a_moment_without_its_route(daemon: Daemon) -> None:
    text = (daemon.root / "plugins" / "mark.py").read_text()
    daemon.plugin("other", text.replace('@plugin("mark"', '@plugin("other"'))
    daemon.start(daemon.marks(one=1), environ=OFF)
    daemon.write(daemon.marks(one=2).replace("mark.py", "other.py"))
    import threading

    missed: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            status, _ = daemon.ask("GET", "/mark/one")
            missed.extend([status] if status != 200 else [])

    looking = threading.Thread(target=look)
    looking.start()
    result = daemon.reload()
    time.sleep(0.2)
    over.set()
    looking.join()
    assert result["result"] == "committed"
    assert daemon.value("one") == 2
    assert missed == []


def test_an_optional_row_that_waits_for_a_service_waits_alone_and_starts_with_it(daemon: Daemon) -> None:
    daemon.plugin(
        "ghosts",
        "from dshd import Config, Context, ServiceKey, plugin\nGHOST = ServiceKey('ghost')\n\n\n"
        "@plugin('ghost', provides=[GHOST])\nasync def ghost(ctx: Context, config: Config) -> None:\n"
        "    ctx.provide(GHOST, 1)\n\n\n"
        "@plugin('seer', inject=[GHOST])\nasync def seer(ctx: Context, config: Config) -> None:\n    pass\n",
    )
    seer = "  seer: {use: './plugins/ghosts.py:seer', optional: true}\n"
    daemon.start(daemon.marks(one=1) + seer, environ=OFF)
    assert daemon.states() == {"one": "active", "seer": "pending"}
    waiting = daemon.status()["rows"]["not_active"]
    assert "ghost" in waiting[0]["reason"]
    assert "ghost" in daemon.cli("status").stdout
    daemon.write(daemon.marks(one=1) + seer.replace(", optional: true", ""))
    result = daemon.reload()
    assert result["result"] == "rejected"
    assert "ghost" in str(result["issues"])
    daemon.write(daemon.marks(one=1) + seer + "  ghost: {use: './plugins/ghosts.py:ghost'}\n")
    assert daemon.reload()["result"] == "committed"
    until(lambda: daemon.states()["seer"] == "active", "its start")


def test_a_broken_file_that_stays_broken_is_logged_once(daemon: Daemon) -> None:
    daemon.start("daemon: {rescan: 100ms}\n" + daemon.marks(one=1))
    daemon.write("plugins: [\n")
    until(lambda: daemon.logged("reload rejected"), "the rejection")
    size = daemon.log.stat().st_size
    time.sleep(1.5)
    assert daemon.log.stat().st_size - size < 2000
    assert len([x for x in daemon.lines() if x["event"] == "reload rejected"]) == 1


def test_each_section_says_what_came_of_its_change(daemon: Daemon) -> None:
    base = {
        "bundles": "bundles: []\n",
        "daemon": "daemon: {log_level: info, timezone: UTC, drain: 60s}\n",
        "settings": "settings: {x: {y: 1}}\n",
        "templates": "templates: {base: {route: a}}\n",
        "plugins": daemon.marks(one=1),
    }
    changes = {
        "daemon": "daemon: {log_level: debug, timezone: UTC, drain: 60s}\n",
        "settings": "settings: {x: {y: 2}}\n",
        "templates": "templates: {base: {route: b}}\n",
        "plugins": daemon.marks(one=2),
    }
    daemon.start("".join(base.values()), environ=OFF)
    silent = []
    for section, text in changes.items():
        daemon.write("".join({**base, section: text}.values()))
        result = daemon.reload()
        if not (
            result["pending_restart"]
            or result["plan"]["applied"]
            or [a for a in result["plan"]["actions"] if a["action"] != "keep"]
        ):
            silent.append((section, result))
        daemon.write("".join(base.values()))
        daemon.reload()
    assert [section for section, _ in silent] == []


def test_a_field_of_the_process_that_waits_for_a_restart_says_why(daemon: Daemon) -> None:
    daemon.start("daemon: {timezone: UTC}\n" + daemon.marks(one=1))
    daemon.write("daemon: {timezone: Europe/Berlin}\n" + daemon.marks(one=2))
    until(lambda: daemon.value("one") == 2, "what can be applied")
    until(lambda: daemon.status()["pending_restart"], "what waits")
    assert "daemon.timezone" in daemon.status()["pending_restart"][0]
    assert "restart" in daemon.cli("status").stdout


def test_the_reason_of_an_optional_row_that_failed_names_the_line_in_its_plugin(daemon: Daemon) -> None:
    daemon.python("bad", "x = 1\nraise RuntimeError('not today')")
    daemon.start(daemon.marks(one=1) + "  bad: {use: ./plugins/bad.py, optional: true}\n", environ=OFF)
    (row,) = daemon.status()["rows"]["not_active"]
    text = (daemon.root / "plugins" / "bad.py").read_text()
    line = text[: text.index("raise")].count("\n") + 1
    assert f"RuntimeError: not today ({daemon.root / 'plugins' / 'bad.py'}:{line})" in row["reason"]
    assert f"bad.py:{line}" in daemon.cli("tree").stdout
