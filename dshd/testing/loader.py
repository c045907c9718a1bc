"""A real configuration in a directory, with a real kernel and reconciler for the length of a block."""

from __future__ import annotations

import os
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber
from dshd.kernel.runtime import open_kernel
from dshd.kernel.watchdog import Backoff, Timing
from dshd.loader.credentials import Credentials
from dshd.loader.issues import Issue
from dshd.loader.options import ReloadOptions
from dshd.loader.reconciler import Reconciler
from dshd.loader.resolve import Resolver
from dshd.loader.result import Outcome, Result
from dshd.loader.sources import Sources, state_key

from .parts import THINGS

QUICK = Timing(load=5, unload=5, grace=0.05, slow=4)
OPTIONS = ReloadOptions(watch="off", backoff=Backoff(initial=0.02, maximum=0.1))
USE = "dshd.testing.parts"


class Site:
    """A directory with `dshd.yaml` and a state directory; `running` runs it, any number of times, one after another."""

    def __init__(self, home: Path, *, options: ReloadOptions = OPTIONS, timing: Timing = QUICK) -> None:
        self.home = home
        self.file = home / "dshd.yaml"
        self.state = home / "state"
        self.state.mkdir(exist_ok=True)
        self.environ: dict[str, str] = {}
        self.options = options
        self.timing = timing
        self.told: list[Result] = []
        self.resolver = Resolver()
        self._told = anyio.Event()
        self.root: Context
        self.reconciler: Reconciler

    # -- files

    def write(self, text: str, name: str = "dshd.yaml") -> Path:
        """Replace a file by renaming another over it."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.tmp")
        beside.write_text(textwrap.dedent(text))
        beside.replace(path)
        return path

    def parts(self, **rows: int | str | None) -> str:
        """`a=1` is a part of that id and value; text is the rest of its config; `None` leaves it out."""
        lines = [_row(name, value) for name, value in rows.items() if value is not None]
        text = f"plugins:\n{''.join(lines)}" if lines else "plugins: {}\n"
        self.write(text)
        return text

    def sources(self) -> Sources:
        return Sources(
            roots=(str(self.file),),
            environ=self.environ,
            credentials=Credentials(self.environ, self.state),
            key=state_key(self.state),
            resolver=self.resolver,
        )

    # -- running

    @asynccontextmanager
    async def running(self, *, strict: bool = False, **options: Any) -> AsyncIterator[Reconciler]:
        """Start what the files say, and run."""

        def told(result: Result) -> None:
            self.told.append(result)
            self._told.set()
            self._told = anyio.Event()
            self.options.on_result(result)

        chosen = replace(self.options, **options)
        failure: Exception | None = None
        async with open_kernel(timing=self.timing, backoff=Backoff(initial=0.01), stop_within=5) as self.root:
            self.reconciler = Reconciler(self.root, self.sources(), self.state, options=replace(chosen, on_result=told))
            async with anyio.create_task_group() as tasks:
                try:
                    await self.reconciler.start(strict=strict)
                    tasks.start_soon(self.reconciler.run)
                    yield self.reconciler
                except Exception as exc:  # raised again below, where no task group wraps it
                    failure = exc
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def reload(self, **how: Any) -> Result:
        return await self.reconciler.reload("api", **how)

    async def edit(self, text: str, **how: Any) -> Result:
        self.write(text)
        return await self.reload(**how)

    # -- what runs

    @property
    def things(self) -> dict[str, int]:
        """What the parts that are visible have registered."""
        return dict(self.root.registry(THINGS).items())

    @property
    def instances(self) -> dict[str, Fiber]:
        found = {path: self.reconciler.fiber(path) for path in self.reconciler.specs}
        return {path: fiber for path, fiber in found.items() if fiber is not None}

    async def until(self, holds: Callable[[], object], seconds: float = 15) -> None:
        """Wait until something holds, looking often; raises `TimeoutError`."""
        with anyio.fail_after(seconds):
            while not holds():  # noqa: ASYNC110 (anything may be waited for)
                await anyio.sleep(0.005)

    async def attempt(self, *results: Outcome, seconds: float = 15, after: int | None = None) -> Result:
        """Wait until an attempt has ended so, that was not told of before (the first `after`)."""
        seen = len(self.told) if after is None else after
        found: list[Result] = []

        def came() -> bool:
            found.extend(result for result in self.told[seen:] if result.result in results)
            return bool(found)

        await self.until(came, seconds)
        return found[0]


def _row(name: str, value: int | str) -> str:
    config = f"value: {value}" if isinstance(value, int) else value
    return f"  {name}: {{use: {USE}:part, config: {{id: {name}, {config}}}}}\n"


def row(name: str, use: str = "part", more: str = "", **config: Any) -> str:
    """One line of YAML for a row that uses one of `dshd.testing.parts`."""
    fields = ", ".join(f"{key}: {value}" for key, value in {"id": name, **config}.items())
    return f"  {name}: {{use: {USE}:{use}, config: {{{fields}}}{', ' if more else ''}{more}}}\n"


def errors(result: Result) -> list[Issue]:
    return [issue for issue in result.issues if issue.severity == "error"]


def kinds(result: Result) -> Mapping[str, str]:
    """Row → action, without those that are kept."""
    return {action.row: action.kind for action in result.plan.actions if action.kind != "keep"}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
