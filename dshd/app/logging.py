"""The log: one stream of events on standard error, as JSON, for the journal, or for people at a terminal.

Level and format may change while loggers are in use, so both are looked up at each event. What other libraries write
with the standard `logging` joins the same stream.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
JOURNAL = "/run/systemd/journal/socket"
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

Facts = Callable[[], Mapping[str, Any]]
"""Fields for every line, asked for at each: the generation that runs."""


class Log:
    """Where log events go. `level` and `format` are those of `DaemonSettings` and take effect at the next event."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str], facts: Facts = dict) -> None:
        self.facts = facts
        self._stream = stream
        self._environ = environ
        self._threshold = LEVELS["info"]
        self._journal: socket.socket | None = None
        self._json = structlog.processors.JSONRenderer(serializer=_dumps)
        self._console = structlog.dev.ConsoleRenderer(
            colors=colours(stream, environ), exception_formatter=structlog.dev.plain_traceback
        )
        self._write: Callable[[EventDict], None] = self._write_json
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        self._traceback = structlog.processors.ExceptionRenderer()

    def apply(self, level: str, format: str) -> None:
        """Use another level and format from now on."""
        self._threshold = LEVELS[level]
        logging.getLogger().setLevel(self._threshold)
        # Their news are not news to whoever runs the daemon.
        for name in ("uvicorn", "watchfiles", "asyncio", "httpx", "httpcore"):
            logging.getLogger(name).setLevel(max(self._threshold, LEVELS["warning"]))
        chosen = self._natural() if format == "auto" else format
        if chosen == "journal":
            self._open_journal()
        self._write = {"json": self._write_json, "console": self._write_console, "journal": self._write_journal}[chosen]

    def _natural(self) -> str:
        if goes_to_journal(self._stream, self._environ):
            return "journal"
        return "console" if self._stream.isatty() else "json"

    def close(self) -> None:
        """Let go of the journal; later events go to the stream."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._write = self._write_json

    # -- structlog's end: processors, the last of which writes

    def __call__(self, _logger: Any, method: str, event: EventDict) -> EventDict:
        level = "error" if method == "exception" else "warning" if method == "warn" else method
        if LEVELS.get(level, 20) < self._threshold:
            raise structlog.DropEvent
        event["level"] = level
        for key, value in self.facts().items():
            event.setdefault(key, value)
        event = self._stamp(None, method, event)
        with suppress(OSError, ValueError):  # nobody reads any more; that must not end what is logged about
            self._write(event)
        raise structlog.DropEvent

    def _write_json(self, event: EventDict) -> None:
        first = {name: event[name] for name in ("timestamp", "level", "event")}
        self._line(str(self._json(None, "", {**first, **self._traceback(None, "", event)})))

    def _write_console(self, event: EventDict) -> None:
        self._line(str(self._console(None, "", event)))

    def _line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    # -- the journal

    def _open_journal(self) -> None:
        if self._journal is None:
            self._journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def _write_journal(self, event: EventDict) -> None:
        assert self._journal is not None
        try:
            self._journal.sendto(journal_entry(self._traceback(None, "", dict(event))), JOURNAL)
        except OSError:
            self._write_json(event)  # too long for a datagram, or no journal: the stream takes everything


def journal_entry(event: Mapping[str, Any]) -> bytes:
    """A log event in the journal's native protocol: `DSHD_ROW` and the like can be filtered by."""
    level = str(event.get("level", "info"))
    rest = {key: value for key, value in event.items() if key not in ("event", "level", "timestamp", "exception")}
    words = " ".join(f"{key}={_word(value)}" for key, value in rest.items())
    message = f"{event['event']} {words}".rstrip()
    if "exception" in event:
        message += f"\n{event['exception']}"
    fields = {
        "MESSAGE": message,
        "PRIORITY": str(_PRIORITIES.get(level, 6)),
        "SYSLOG_IDENTIFIER": "dshd",
        **{f"DSHD_{key.upper()}": _word(value) for key, value in rest.items() if key.isidentifier()},
    }
    entry = io.BytesIO()
    for name, value in fields.items():
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            entry.write(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            entry.write(name.encode() + b"=" + data + b"\n")
    return entry.getvalue()


def _word(value: object) -> str:
    return value if isinstance(value, str) else _dumps(value)


def _dumps(value: object, **_options: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def goes_to_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether systemd connected this very stream to the journal."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def colours(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class _Forward(logging.Handler):
    """Passes what libraries log on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = next((name for name, value in LEVELS.items() if value >= record.levelno), "critical")
        more: dict[str, Any] = {} if record.exc_info is None else {"exc_info": record.exc_info}
        structlog.get_logger(record.name).log(LEVELS[level], record.getMessage(), logger=record.name, **more)


def set_up(log: Log) -> None:
    """Make `log` the end of every logger in this process."""
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, log],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Forward())
    logging.captureWarnings(True)


def standard_error() -> TextIO:
    """Standard error as UTF-8 whatever the locale: a log line must not raise."""
    stream = sys.stderr
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return stream
