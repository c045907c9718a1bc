"""The daemon as a process: how it starts, reloads and stops, on a real `dshd run`."""

from __future__ import annotations

import os
import signal
import stat
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Process

HELLO = "plugins:\n  hello: {config: {who: ann}}\n"

HOLDER = """
import anyio
from dshd import Config, Context, plugin

class Holder(Config):
    seconds: float = 30

@plugin("holder", config=Holder)
async def holder(ctx: Context, config: Holder) -> None:
    async def work() -> None:
        await ctx.published()
        with ctx.root.leased("a long turn"):
            ctx.log.info("working")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(config.seconds)
            ctx.log.info("worked")
    ctx.spawn(work, while_open=True)
"""

STUBBORN = """
import anyio
from dshd import Config, Context, plugin

@plugin("stubborn")
async def stubborn(ctx: Context, config: Config):
    yield
    while True:
        try:
            await anyio.sleep(100)
        except BaseException:
            pass
"""


def modes(process: Process) -> dict[str, int]:
    paths = {
        "state": process.state,
        "run": process.socket.parent,
        "socket": process.socket,
        "lock": process.state / "lock",
    }
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in paths.items()}


def test_it_becomes_ready_with_the_first_commit_and_says_what_runs(process: Process) -> None:
    process.start(HELLO)
    assert "STATUS=generation 1 runs, 1 row" in process.manager.seen[-1]
    assert process.ask("GET", "/readyz") == (200, {"status": "ok"})
    status, body = process.ask("GET", "/api/v1/status")
    assert status == 200
    assert (body["generation"], body["state"], body["rows"]["by_state"]) == (1, "running", {"active": 1})
    assert process.stop() == 0
    assert not process.socket.exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_its_directories_and_files_are_private_whatever_the_umask(process: Process, umask: int) -> None:
    before = os.umask(umask)
    try:
        process.start(HELLO)
    finally:
        os.umask(before)
    assert modes(process) == {"state": 0o700, "run": 0o700, "socket": 0o600, "lock": 0o600}


def test_a_second_daemon_on_one_state_directory_exits_75_and_names_the_first(process: Process) -> None:
    process.start(HELLO)
    second = process.cli("run", "--config", str(process.config), "--state-dir", str(process.state))
    assert second.returncode == 75
    assert process.popen is not None
    assert f"process {process.popen.pid}" in second.stderr
    assert process.ask("GET", "/livez")[0] == 200


def test_the_lock_and_the_socket_of_a_killed_daemon_are_taken_over(process: Process) -> None:
    process.start(HELLO)
    process.signal(signal.SIGKILL)
    process.wait()
    assert process.socket.exists()
    process.start()
    assert process.ask("GET", "/livez")[0] == 200


def test_another_daemon_behind_the_same_socket_is_not_replaced(process: Process) -> None:
    process.start(HELLO)
    other = process.cli(
        "run", "--config", str(process.config), "--state-dir", str(process.root / "other"),
        RUNTIME_DIRECTORY=str(process.socket.parent),
    )  # fmt: skip
    assert other.returncode == 75
    assert str(process.socket) in other.stderr
    assert process.ask("GET", "/livez")[0] == 200


def test_sighup_is_one_reloading_datagram_with_the_time_and_then_ready(process: Process) -> None:
    process.start(HELLO)
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    process.signal(signal.SIGHUP)
    reloading = process.manager.receive_until("RELOADING=1").split("\n")
    assert reloading[0] == "RELOADING=1"
    name, _, stamp = reloading[1].partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(stamp) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    ready = process.manager.receive().split("\n")
    assert ready[0] == "READY=1"
    assert ready[1].startswith("STATUS=generation 1")


def test_a_rejected_reload_is_followed_by_ready_too_and_logged_at_error(process: Process) -> None:
    process.start(HELLO + "daemon: {watch: 'off'}\n", environ={"DSHD_WATCH": "off"})
    process.write("plugins:\n  hello: {config: {whom: bob}}\n")
    process.signal(signal.SIGHUP)
    process.manager.receive_until("RELOADING=1")
    process.manager.receive_until("READY=1")
    assert process.logged("reload rejected", level="error", trigger="signal", generation=1)
    finding = process.logged("unknown field 'config.whom'")
    assert finding is not None
    assert (finding["level"], finding["row"], finding["line"]) == ("error", "hello", 2)
    assert process.ask("GET", "/readyz")[0] == 200


def test_without_a_notify_socket_nothing_is_said_and_nothing_fails(process: Process) -> None:
    del process.environ["NOTIFY_SOCKET"]
    process.start(HELLO, ready=False)
    from .conftest import until

    until(process.socket.exists, "the socket")
    until(lambda: process.ask("GET", "/startupz")[0] == 200, "the start")
    process.signal(signal.SIGHUP)
    until(lambda: process.logged("reload noop"), "the reload")
    assert process.stop() == 0


def test_a_blocked_loop_gives_no_signs_of_life_and_is_named(process: Process) -> None:
    process.plugin(
        "blocker",
        "import time, anyio\nfrom dshd import Config, Context, plugin\n"
        "@plugin('blocker')\nasync def blocker(ctx: Context, config: Config) -> None:\n"
        "    async def block() -> None:\n"
        "        await anyio.sleep(0.5)\n"
        "        time.sleep(2)\n"
        "        ctx.log.info('unblocked')\n"
        "        await anyio.sleep(1000)\n"
        "    ctx.spawn(block)\n",
    )
    process.start("plugins:\n  blocker: {use: ./plugins/blocker.py}\n", environ={"WATCHDOG_USEC": "600000"})
    begun, beats = time.monotonic(), []
    while time.monotonic() - begun < 4:
        if process.manager.receive() == "WATCHDOG=1":
            beats.append(time.monotonic())
    gaps = sorted(b - a for a, b in pairwise(beats))
    assert gaps[-1] > 1.5, "the block is a gap"
    assert gaps[len(gaps) // 2] <= 0.3, "signs of life come at half of the interval at most"
    warning = process.logged("the event loop is blocked")
    assert warning is not None
    assert warning["row"] == "blocker"
    assert "blocker.py:7" in warning["at"]


def test_sigterm_lets_what_holds_a_lease_finish(process: Process) -> None:
    process.plugin("holder", HOLDER)
    process.start("plugins:\n  holder: {use: ./plugins/holder.py, config: {seconds: 2}}\n")
    begun = time.monotonic()
    process.signal(signal.SIGTERM)
    process.manager.receive_until("STOPPING=1")
    assert process.wait() == 0
    assert 1 < time.monotonic() - begun < 8
    assert process.logged("worked")


def test_the_drain_ends_at_its_deadline(process: Process) -> None:
    process.plugin("holder", HOLDER)
    process.start(
        "daemon: {drain: 1s, unload_timeout: 1s}\n"
        "plugins:\n  holder: {use: ./plugins/holder.py, config: {seconds: 60}}\n"
    )
    begun = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begun < 8


def test_a_second_sigterm_does_not_wait(process: Process) -> None:
    process.plugin("holder", HOLDER)
    process.start("plugins:\n  holder: {use: ./plugins/holder.py, config: {seconds: 60}}\n")
    begun = time.monotonic()
    process.signal(signal.SIGINT)
    process.manager.receive_until("STOPPING=1")
    assert process.ask("GET", "/readyz")[0] == 503
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - begun < 8


def test_a_stop_while_a_row_still_opens_is_obeyed(process: Process) -> None:
    process.plugin(
        "slow",
        "import anyio\nfrom dshd import Config, Context, plugin\n"
        "@plugin('slow')\nasync def slow(ctx: Context, config: Config) -> None:\n    await anyio.sleep(25)\n",
    )
    process.start("plugins:\n  slow: {use: ./plugins/slow.py}\n", ready=False)
    from .conftest import until

    until(process.socket.exists, "the socket")
    until(lambda: process.ask("GET", "/livez")[0] == 200, "life")
    assert process.ask("GET", "/startupz")[0] == 503
    begun = time.monotonic()
    process.stop()
    assert time.monotonic() - begun < 8


def test_what_is_abandoned_does_not_keep_the_process(process: Process) -> None:
    process.plugin("stubborn", STUBBORN)
    process.start("daemon: {unload_timeout: 200ms, drain: 1s}\nplugins:\n  stubborn: {use: ./plugins/stubborn.py}\n")
    begun = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begun < 10
    assert process.logged("ending the process in spite of what does not end")
    assert not process.socket.exists()


def test_a_busy_thread_does_not_keep_the_process(process: Process) -> None:
    process.plugin(
        "busy",
        "import threading, time\nfrom dshd import Config, Context, plugin\n"
        "@plugin('busy')\nasync def busy(ctx: Context, config: Config) -> None:\n"
        "    threading.Thread(target=time.sleep, args=(60,), name='busy one').start()\n",
    )
    process.start("plugins:\n  busy: {use: ./plugins/busy.py}\n")
    begun = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begun < 12
    assert "busy one" in process.log.read_text()


def test_listeners_of_exit_are_told_the_signal(process: Process) -> None:
    process.plugin(
        "witness",
        "from dshd import Config, Context, plugin, Emit\n"
        "@plugin('witness')\nasync def witness(ctx: Context, config: Config) -> None:\n"
        "    ctx.on(Emit('exit'), lambda told: ctx.log.info('told', signal_name=told.signal))\n",
    )
    process.start("plugins:\n  witness: {use: ./plugins/witness.py}\n")
    process.stop()
    assert process.logged("told", signal_name="SIGTERM")


def test_an_invalid_configuration_at_start_exits_78_with_the_findings_last(process: Process) -> None:
    process.start("plugins:\n  hello: {config: {whom: bob}}\n", ready=False)
    assert process.wait() == 78
    last = process.log.read_text().splitlines()
    assert last[-1].startswith("dshd: refused to start: 1 error")
    assert any("dshd.yaml:2" in line and "E0401" in line for line in last[-6:])


def test_the_last_good_configuration_runs_degraded_and_strict_does_not_want_it(process: Process) -> None:
    process.start(HELLO)
    process.stop()
    process.start("plugins:\n  hello: {config: {whom: bob}}\n")
    _, body = process.ask("GET", "/api/v1/status")
    assert body["state"] == "degraded"
    assert body["rows"]["by_state"] == {"active": 1}
    assert process.ask("GET", "/readyz")[0] == 200
    process.stop()
    process.start(None, "--strict", ready=False)
    assert process.wait() == 78


def test_no_configuration_anywhere_is_said_with_what_to_do(process: Process) -> None:
    found = process.cli("run", "--state-dir", str(process.state))
    if os.path.exists("/etc/dshd/dshd.yaml"):
        pytest.skip("this machine has a configuration")
    assert found.returncode == 78
    assert "--config" in found.stderr
    assert "dshd init" in found.stderr


def test_a_changed_log_level_is_applied_live_and_a_shadowed_one_is_not(process: Process) -> None:
    process.start(HELLO + "daemon: {log_level: error, drain: 5s}\n", environ={"DSHD_DRAIN": "2s"})
    assert process.logged("hello") is None
    # It counts from the commit on, so the row that the same edit opens would not be heard yet.
    process.write(HELLO + "daemon: {log_level: info, drain: 7s}\n")
    process.ask("POST", "/api/v1/reload")
    process.write(HELLO.replace("ann", "bob") + "daemon: {log_level: info, drain: 7s}\n")
    process.ask("POST", "/api/v1/reload")
    assert process.logged("hello", who="bob")
    _, body = process.ask("GET", "/api/v1/status")
    assert body["settings"]["drain"] == 2
    assert body["settings_from_environment"] == ["drain"]


def test_a_field_that_needs_a_restart_is_listed_until_it_was_restarted(process: Process) -> None:
    process.start(HELLO)
    process.write(HELLO + "daemon: {timezone: Europe/Berlin}\n")
    _, result = process.ask("POST", "/api/v1/reload")
    assert [text.partition(":")[0] for text in result["pending_restart"]] == ["daemon.timezone"]
    process.stop()
    process.start()
    assert process.ask("GET", "/api/v1/status")[1]["pending_restart"] == []
