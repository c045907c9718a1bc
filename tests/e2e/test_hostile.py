"""Plugins that misbehave cost themselves; the daemon goes on, and so does the next edit."""

from __future__ import annotations

import time

import pytest

from .conftest import Daemon, until

QUICK = "daemon: {load_timeout: 1s, unload_timeout: 500ms}\n"


def bad(daemon: Daemon, number: int = 1, value: int = 1, extra: str = "") -> str:
    return f"{QUICK}{daemon.marks(good=value)}  bad: {{use: ./plugins/bad.py, config: {{number: {number}}}{extra}}}\n"


def test_a_plugin_that_raises_50_ms_after_its_start_is_contained(daemon: Daemon) -> None:
    daemon.python(
        "bad",
        "async def later():\n    await anyio.sleep(0.05)\n    raise RuntimeError('too late')\nctx.spawn(later)",
    )
    daemon.start(bad(daemon))
    until(lambda: "too late" in daemon.log.read_text(), "the error in the log")
    assert daemon.alive()
    assert daemon.value("good") == 1
    daemon.write(bad(daemon, value=2))
    assert daemon.reload()["result"] == "committed"
    assert daemon.value("good") == 2


def test_a_plugin_that_hangs_in_its_start_costs_its_own_deadline_only(daemon: Daemon) -> None:
    daemon.python("bad", "if config.number == 2:\n    await anyio.sleep(3600)")
    daemon.start(bad(daemon))
    instance = daemon.mark("good")["instance"]
    daemon.write(bad(daemon, 2))
    begun = time.monotonic()
    result = daemon.reload()
    assert result["result"] == "prepare_failed"
    assert time.monotonic() - begun < 4
    assert any(issue["row"] == "bad" for issue in result["issues"])
    assert daemon.mark("good")["instance"] == instance
    assert daemon.states()["bad"] == "active"


def test_an_edit_that_corrects_a_hanging_start_does_not_wait_for_it(daemon: Daemon) -> None:
    daemon.python("bad", "if config.number == 2:\n    await anyio.sleep(3600)")
    daemon.start(bad(daemon).replace("load_timeout: 1s", "load_timeout: 60s"))
    daemon.write(bad(daemon, 2, 2).replace("load_timeout: 1s", "load_timeout: 60s"))
    time.sleep(0.6)
    daemon.write(bad(daemon, 3, 3).replace("load_timeout: 1s", "load_timeout: 60s"))
    begun = time.monotonic()
    until(lambda: daemon.value("good") == 3, "the corrected edit", 3)
    assert time.monotonic() - begun < 3


def test_a_start_that_ignores_its_cancellation_wedges_nothing(daemon: Daemon) -> None:
    daemon.python(
        "bad",
        "while config.number == 2:\n    try:\n        await anyio.sleep(3600)\n    except BaseException:\n        pass",
    )
    daemon.start(bad(daemon))
    daemon.write(bad(daemon, 2))
    assert daemon.reload()["result"] == "prepare_failed"
    daemon.write(bad(daemon, 1, 2))
    assert daemon.reload()["result"] == "committed"
    assert daemon.value("good") == 2
    daemon.stop()


def test_a_cleanup_that_hangs_is_abandoned_by_name_and_later_reloads_go_on(daemon: Daemon) -> None:
    daemon.python("bad", "yield\nif config.number == 1:\n    await anyio.sleep(3600)")
    daemon.start(bad(daemon))
    begun = time.monotonic()
    daemon.write(bad(daemon, 2))
    assert daemon.reload()["result"] == "committed"
    daemon.write(bad(daemon, 2, 2))
    assert daemon.reload()["result"] == "committed"
    assert daemon.value("good") == 2
    assert time.monotonic() - begun < 4
    until(lambda: [x for x in daemon.lines() if x["level"] in ("error", "warning") and "bad" in str(x)], "its name")


def test_a_cleanup_that_ignores_its_cancellation_is_a_leak_with_a_name(daemon: Daemon) -> None:
    daemon.python(
        "bad",
        "yield\nwhile config.number == 1:\n    try:\n        await anyio.sleep(3600)\n    except BaseException:\n"
        "        pass",
    )
    daemon.start(bad(daemon))
    daemon.write(bad(daemon, 2))
    assert daemon.reload()["result"] == "committed"

    def leaked() -> bool:
        status, body = daemon.ask("GET", "/readyz")
        return status == 503 and "bad" in str(body)

    until(leaked, "the report", 6)
    daemon.write(bad(daemon, 2, 2))
    result = daemon.reload()
    assert result["result"] == "committed"
    assert "bad" in str(result["leaks"])


@pytest.mark.parametrize("how", ["sys.exit(3)", "raise KeyboardInterrupt"])
@pytest.mark.parametrize("when", ["start", "later", "cleanup", "import"])
def test_a_plugin_that_wants_to_end_the_process_ends_nothing(daemon: Daemon, how: str, when: str) -> None:
    later = "async def later():\n    await anyio.sleep(0.05)\n"
    body = {
        "start": f"if config.number == 2:\n    {how}",
        "later": f"{later}    {how}\nif config.number == 2:\n    ctx.spawn(later)",
        "cleanup": f"yield\nif config.number == 1:\n    {how}",
        "import": "pass",
    }[when]
    daemon.python("bad", body)
    daemon.start(bad(daemon))
    if when == "import":
        daemon.python("worse", "pass", config=f"import sys\n{how}\nclass Settings(Config):\n    pass\n")
        daemon.write(bad(daemon) + "  worse: {use: ./plugins/worse.py}\n")
    else:
        daemon.write(bad(daemon, 2))
    try:
        result = daemon.reload()["result"]
    except (OSError, TypeError):
        result = "no answer"
    assert result == {"start": "prepare_failed", "import": "rejected"}.get(when, "committed")
    time.sleep(0.3)
    assert daemon.alive()
    daemon.write(bad(daemon, 1, 5))
    assert daemon.reload()["result"] == "committed"
    assert daemon.value("good") == 5


NOTHING = ("[]\n", "", "# nothing\n", "---\n", "null\n", "plugins: {}\n", "text\n", "plugins:\n")


def test_a_file_without_rows_does_not_empty_the_tree(daemon: Daemon) -> None:
    daemon.start(daemon.marks(one=1, two=2))
    before = daemon.mark("one")["instance"]
    for number, text in enumerate(NOTHING):
        daemon.config.write_text(text)
        assert daemon.reload()["result"] in ("rejected", "held"), text
        assert daemon.mark("one")["instance"] == before
        daemon.write(daemon.marks(one=1, two=number))
        daemon.becomes("two", number)
    assert daemon.mark("one")["instance"] == before
