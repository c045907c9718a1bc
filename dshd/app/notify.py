"""The service manager's protocol: datagrams to `$NOTIFY_SOCKET`. Without one everything here does nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

import structlog

_log = structlog.get_logger("dshd.notify")


class Notifier:
    """Says what state the process is in. The variables are taken out of `environ`, so that no child speaks for us."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        interval, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._reloads = 0
        self._ready = False
        self._status = "starting"
        self._owed = False
        self._socket: socket.socket | None = None
        self._address = ""
        if address[:1] in ("/", "@"):
            self._address = "\0" + address[1:] if address[0] == "@" else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        ours = meant in ("", str(os.getpid()))
        self.watchdog: float | None = int(interval) / 1e6 if self._socket and ours and interval.isdigit() else None
        """Seconds within which the manager wants a sign of life."""

    def ready(self, status: str) -> None:
        """The first commit is done."""
        self._ready = True
        self.status(status)

    def status(self, status: str) -> None:
        """Say in one line what runs now."""
        self._status = status.replace("\n", " ")
        self._tell()

    def reloading(self) -> None:
        """A reload that was asked for begins; `reloaded` must follow, whatever comes of it."""
        self._reloads += 1
        if self._ready:
            # In one datagram, and for each who asks: the manager takes only one that is younger than its own signal.
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self, status: str) -> None:
        self._reloads -= 1
        self.status(status)

    def stopping(self, status: str) -> None:
        self._ready = False
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """A sign of life; to be called by the event loop itself, so that a blocked one gives none."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")
        if self._owed:
            self._tell()

    def extend(self, seconds: float) -> None:
        """Ask for so much more time to stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _tell(self) -> None:
        # A queue that is full loses what is sent; a manager that waits for READY must get it in the end.
        state = ["READY=1"] if self._ready and not self._reloads else []
        self._owed = not self._send(*state, f"STATUS={self._status}")

    def _send(self, *lines: str) -> bool:
        """Whether the manager has taken it, or there is none."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as exc:
            _log.warning("the service manager does not take a notification", lines=lines, error=str(exc))
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
