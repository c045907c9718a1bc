from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DSHD = [sys.executable, "-m", "dshd"]


@pytest.fixture
def anyio_backend() -> str:
    """The process runs on asyncio, because its HTTP server does."""
    return "asyncio"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name, so that sockets in it have ordinary addresses."""
    with tempfile.TemporaryDirectory(prefix="dshd-") as name:
        yield Path(name)


def until(happened: Callable[[], Any], what: str, seconds: float = 15) -> Any:
    """Wait for something that comes by itself; gives what `happened` gives once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = happened()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} s")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=15)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(15)
        self.sock.connect(self._path)


class Manager:
    """A service manager's end of the notify socket."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(15)
        self.seen: list[str] = []

    def receive(self) -> str:
        """The next datagram."""
        text = self._socket.recv(8192).decode()
        self.seen.append(text)
        return text

    def receive_until(self, word: str) -> str:
        """Skip datagrams up to the one that contains `word`."""
        while True:
            text = self.receive()
            if word in text.split("\n") or word in text:
                return text

    def drain(self) -> list[str]:
        """What has arrived up to now."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self._socket.recv(8192).decode())
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(15)
        self.seen += found
        return found

    def close(self) -> None:
        self._socket.close()


class Process:
    """A real `dshd run` in a directory of its own, and a client to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "dshd.yaml"
        self.state = root / "state"
        self.socket = self.state / "run" / "dshd.sock"
        self.manager = Manager(root / "notify")
        self.popen: subprocess.Popen[bytes] | None = None
        self.log = root / "log"
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DSHD_", "XDG_")) and name not in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY")
        } | {"NOTIFY_SOCKET": self.manager.address, "HOME": str(root)}

    def write(self, text: str) -> None:
        """Save the configuration as an editor does: beside, then renamed over."""
        beside = self.config.with_name(".dshd.yaml.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.config)

    def plugin(self, name: str, text: str) -> None:
        path = self.root / "plugins" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def start(
        self, text: str | None = None, *options: str, ready: bool = True, environ: dict[str, str] | None = None
    ) -> None:
        if text is not None:
            self.write(text)
        self.manager.drain()  # of an earlier process
        command = [*DSHD, "run", "--config", str(self.config), "--state-dir", str(self.state), *options]
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                command, env=self.environ | (environ or {}), stderr=log, stdin=subprocess.DEVNULL
            )
        if ready:
            self.manager.receive_until("READY=1")

    def signal(self, number: signal.Signals) -> None:
        assert self.popen is not None
        self.popen.send_signal(number)

    def wait(self, seconds: float = 20) -> int:
        assert self.popen is not None
        return self.popen.wait(seconds)

    def stop(self) -> int:
        """Ask it to stop, and give its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """One request; the status and the JSON of the answer."""
        connection = UnixConnection(self.socket)
        try:
            data = None if body is None else json.dumps(body)
            more = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, data, more | (headers or {}))
            response = connection.getresponse()
            content = response.read()
            is_json = "json" in response.getheader("content-type", "")
            return response.status, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()

    def cli(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DSHD, *arguments],
            env=self.environ | {"DSHD_SOCKET": str(self.socket)} | environ,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def lines(self) -> list[dict[str, Any]]:
        """The log so far, event by event."""
        found = []
        for line in self.log.read_text("utf-8").splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
        return found

    def logged(self, event: str, **fields: Any) -> dict[str, Any] | None:
        """The first line of the log that says `event` with these fields."""
        return next(
            (x for x in self.lines() if x["event"] == event and all(x.get(k) == v for k, v in fields.items())), None
        )

    def close(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.manager.close()


@pytest.fixture
def process(short: Path) -> Iterator[Process]:
    made = Process(short)
    try:
        yield made
    finally:
        made.close()
