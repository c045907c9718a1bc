"""Speaking with a daemon over its control socket. Standard library only: a client verb is gone before it is noticed."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .places import address_of, is_socket

CONNECT_WITHIN = 5.0


class Unreachable(Exception):
    """No daemon answers."""


class Unknown(Exception):
    """The daemon was asked and its answer did not come: what it did is not known."""


class Answer(NamedTuple):  # no dataclass: importing those takes as long as the rest of a verb
    """What the daemon said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def detail(self) -> str:
        """What a problem document says."""
        try:
            found = self.json()
        except ValueError:
            return self.text.strip() or f"status {self.status}"
        return str(found.get("detail", self.text)) if isinstance(found, dict) else self.text


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_WITHIN)
        with address_of(self._path) as address:
            self.sock.connect(address)
        self.sock.settimeout(self.timeout)


def ask(
    sockets: Sequence[Path],
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    text: bool = False,
    timeout: float | None = None,
) -> Answer:
    """Send one request to the first daemon there is. `text` asks for the answer as people read it.

    Raises `Unreachable`, and `Unknown` when the request went out and no answer came within `timeout` seconds.
    """
    found = next((path for path in sockets if is_socket(path)), None)
    if found is None:
        looked = " or ".join(map(str, sockets))
        raise Unreachable(f"no daemon at {looked}; start one with `dshd run`, or name its socket with --socket")
    headers = {"User-Agent": "dshd-cli", "Accept": "text/plain" if text else "application/json"}
    data: bytes | None = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    connection = _Connection(found, timeout)
    try:
        connection.connect()
    except PermissionError:
        raise Unreachable(f"uid {os.geteuid()} may not use {found}; ask as its owner or root") from None
    except OSError as exc:
        raise Unreachable(f"no daemon answers on {found} ({exc.strerror or exc}); start it with `dshd run`") from None
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return Answer(
            status=response.status,
            headers={name.lower(): value for name, value in response.getheaders()},
            body=response.read(),
        )
    except TimeoutError:
        raise Unknown(f"no answer within {timeout:g} s, so the outcome is unknown; see `dshd status`") from None
    except (OSError, http.client.HTTPException) as exc:
        why = type(exc).__name__ if not str(exc) else exc
        raise Unknown(f"the daemon went away before it answered ({why}); see `dshd status`") from None
    finally:
        connection.close()
