"""Log lines: their fields, their format, and that nothing about them can hurt."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from dshd.app import logging as ours
from dshd.app.logging import Log, goes_to_journal, journal_entry, set_up


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = structlog.get_config()
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    yield io.StringIO()
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    logging.captureWarnings(False)


def test_a_line_has_its_own_fields_and_those_of_the_process(stream: io.StringIO) -> None:
    log = Log(stream, {}, lambda: {"generation": 7})
    set_up(log)
    log.apply("info", "json")
    logger = structlog.get_logger("x").bind(row="a/b")
    with structlog.contextvars.bound_contextvars(attempt="0x1"):
        logger.warning("careful", n=1)
    logger.debug("not shown")
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"level": "warning", "event": "careful", "row": "a/b", "attempt": "0x1", "n": 1, "generation": 7}


def test_level_and_format_change_for_loggers_already_in_use(stream: io.StringIO) -> None:
    log = Log(stream, {})
    set_up(log)
    log.apply("error", "json")
    logger = structlog.get_logger("x")
    logger.info("one")
    log.apply("debug", "console")
    logger.debug("two")
    assert "one" not in stream.getvalue()
    assert "[debug    ] two" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_what_libraries_log_joins_the_stream(stream: io.StringIO) -> None:
    log = Log(stream, {})
    set_up(log)
    log.apply("info", "json")
    logging.getLogger("some.library").warning("hm %s", 1)
    logging.getLogger("watchfiles.main").info("noise")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["event"], found["logger"], found["level"]) == ("hm 1", "some.library", "warning")


def test_a_stream_that_nobody_reads_hurts_nobody(stream: io.StringIO) -> None:
    log = Log(stream, {})
    set_up(log)
    log.apply("info", "json")
    stream.close()
    structlog.get_logger("x").info("into the void")


def test_an_exception_is_in_the_line_and_values_of_any_kind_are(stream: io.StringIO) -> None:
    log = Log(stream, {})
    set_up(log)
    log.apply("info", "json")
    try:
        raise ValueError("ü\n")
    except ValueError:
        structlog.get_logger("x").exception("failed", what=Path("/x"))
    line = json.loads(stream.getvalue())
    assert "ValueError: ü" in line["exception"]
    assert (line["what"], line["level"]) == ("/x", "error")


def test_the_journal_gets_fields_that_can_be_filtered_by() -> None:
    entry = journal_entry(
        {
            "event": "reload rejected",
            "level": "error",
            "row": "a/b",
            "generation": 3,
            "timestamp": "x",
            "exception": "T\nE",
        }
    )
    assert b"PRIORITY=3\n" in entry
    assert b"DSHD_ROW=a/b\n" in entry
    assert b"DSHD_GENERATION=3\n" in entry
    message = b"reload rejected row=a/b generation=3\nT\nE"
    assert b"MESSAGE\n" + len(message).to_bytes(8, "little") + message + b"\n" in entry


def test_under_systemd_the_journal_is_chosen_and_without_it_the_stream_takes_all(
    stream: io.StringIO, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (short / "err").open("w+") as file:
        found = os.fstat(file.fileno())
        environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert goes_to_journal(file, environ)
        assert not goes_to_journal(file, {"JOURNAL_STREAM": "1:2"})
        monkeypatch.setattr(ours, "JOURNAL", str(short / "journal"))
        log = Log(file, environ)
        set_up(log)
        log.apply("info", "auto")
        structlog.get_logger("x").info("to the file")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.bind(str(short / "journal"))
            structlog.get_logger("x").info("to the journal")
            assert journal.recv(4096).startswith(b"MESSAGE=to the journal\n")
        log.close()
        assert json.loads((short / "err").read_text())["event"] == "to the file"
