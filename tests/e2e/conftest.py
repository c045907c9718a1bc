from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..app.conftest import Process, until

__all__ = ["Daemon", "made_in", "until"]

MARK = '''\
"""A plugin that can be asked which value is live, and which instance has it."""

import itertools

from dshd import Config, Context, plugin
from dshd.capabilities.http import Request, Response, Route, serve

instances = itertools.count(1)


class Mark(Config):
    value: str | int = ""
    flag: bool = False
    words: list[str] = []


@plugin("mark", config=Mark)
async def mark(ctx: Context, config: Mark) -> None:
    number = next(instances)

    async def answer(request: Request) -> Response:
        return Response.json({"value": config.value, "flag": config.flag, "words": config.words, "instance": number})

    serve(ctx, Route(method="GET", path=f"/mark/{ctx.fiber.path}", handler=answer, scope="read"))
'''

HEAD = """\
import os
import sys
import time

import anyio

from dshd import Config, Context, Emit, ServiceKey, plugin


"""


class Daemon(Process):
    """A real `dshd run`, with words for what these tests do to it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.plugin("mark", MARK)

    def python(self, name: str, body: str, *, config: str = "class Settings(Config):\n    number: int = 0\n") -> None:
        """A plugin whose body is given, in `./plugins/NAME.py`."""
        lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
        text = (
            f"{HEAD}{config}\n\n@plugin({name!r}, config=Settings)\nasync def {name}(ctx: Context, config: Settings):\n"
        )
        self.plugin(name, f"{text}{lines}\n")

    def marks(self, **values: str | int) -> str:
        """The text of a configuration with one `mark` row for each value."""
        rows = [f"  {name}: {{use: ./plugins/mark.py, config: {{value: {value}}}}}" for name, value in values.items()]
        return "\n".join(["plugins:", *rows]) + "\n"

    def mark(self, name: str) -> Any:
        """What the live instance of a `mark` row says, or `None`."""
        status, body = self.ask("GET", f"/mark/{name}")
        return body if status == 200 else None

    def value(self, name: str) -> Any:
        found = self.mark(name)
        return None if found is None else found["value"]

    def becomes(self, name: str, value: object, seconds: float = 5) -> None:
        """Wait until a `mark` row has this value."""
        until(lambda: self.value(name) == value, f"{name} = {value}", seconds)

    def status(self) -> Any:
        return self.ask("GET", "/api/v1/status")[1]

    def states(self) -> dict[str, str]:
        """The state of each row by its path."""
        found: dict[str, str] = {}

        def walk(rows: list[Mapping[str, Any]]) -> None:
            for row in rows:
                found[row["row"]] = row["state"]
                walk(row["children"])

        walk(self.ask("GET", "/api/v1/tree")[1]["rows"])
        return found

    def reload(self, **options: Any) -> Any:
        return self.ask("POST", "/api/v1/reload", options)[1]

    def results(self) -> list[Any]:
        """The results of past attempts, the newest first."""
        found = self.ask("GET", "/api/v1/reloads")[1]
        listed: list[Any] = found["reloads"]
        return listed

    def last(self) -> Any:
        return self.ask("GET", "/api/v1/reload")[1]

    def check(self, *options: str) -> Any:
        """`dshd check` in a fresh process on the same files."""
        return self.cli("check", "--config", str(self.config), "--state-dir", str(self.state), *options)

    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()


@contextmanager
def made_in() -> Iterator[Daemon]:
    """A daemon in a directory with a short name, so that sockets in it have ordinary addresses; not started yet."""
    with tempfile.TemporaryDirectory(prefix="dshd-") as name:
        made = Daemon(Path(name))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with made_in() as made:
        yield made
