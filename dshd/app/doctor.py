"""`dshd doctor`: looks at this machine for what would keep a daemon from running well, and says what to do."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from .client import Unknown, Unreachable, ask
from .lock import owner_of
from .places import (
    SOCKET,
    NoConfigError,
    config_files,
    is_socket,
    runtime_directory,
    sockets,
    state_directory,
)
from .render import Painter

WATCHES, INSTANCES = 8192, 64
"""Fewer than so many inotify watches and instances have kept people from noticing their edits."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `note` is for what is fine to be so, but worth knowing."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str
    hint: str | None = None


def doctor(args: Namespace) -> int:
    """Look at everything; 1 if there is a problem."""
    found = [check for look in LOOKS for check in look(args)]
    problems = sum(check.status == "problem" for check in found)
    if args.json:
        print(json.dumps({"ok": not problems, "checks": [asdict(check) for check in found]}, ensure_ascii=False))
    else:
        paint = Painter(sys.stdout, os.environ)
        colours = {"ok": "green", "note": "yellow", "problem": "red"}
        for check in found:
            print(f"{paint(f'{check.status:<8}', colours[check.status])} {check.name}: {check.detail}")
            if check.hint:
                print(f"         {check.hint}")
    if problems:
        print(f"dshd: {problems} problem{'s' if problems > 1 else ''}; the hints say what to do", file=sys.stderr)
    return 1 if problems else 0


def _python(args: Namespace) -> Iterator[Check]:
    version = platform.python_version()
    fine = sys.version_info >= (3, 11)
    yield Check(
        name="python", status="ok" if fine else "problem", detail=f"{version} at {sys.executable}",
        hint=None if fine else "dshd needs Python 3.11 or newer",
    )  # fmt: skip


def _config(args: Namespace) -> Iterator[Check]:
    try:
        files = config_files(args.config, os.environ)
    except NoConfigError as exc:
        running = [] if args.config else _sources(args)
        if not running:
            yield Check(name="config", status="problem", detail="none found", hint=str(exc))
            return
        files = tuple(running)
        yield Check(name="config", status="ok", detail="none named; these are read by the daemon that runs:")
    for path in files:
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as exc:
            yield Check(
                name="config", status="problem", detail=f"{path}: {exc.strerror}",
                hint="make it readable for the user that runs the daemon",
            )  # fmt: skip
        else:
            wide = os.stat(path).st_mode & 0o022
            yield Check(
                name="config", status="note" if wide else "ok", detail=path,
                hint="others may write it, and so decide what this daemon runs: chmod go-w" if wide else None,
            )  # fmt: skip


def _state(args: Namespace) -> Iterator[Check]:
    state = state_directory(args.state_dir, os.environ)
    yield _directory("state directory", state)
    if state.is_dir():
        owner = owner_of(state / "lock")
        if owner is not None:
            yield Check(name="lock", status="ok", detail=f"held by process {owner.get('pid', '?')}: a daemon runs")
        else:
            yield Check(name="lock", status="ok", detail="free: no daemon runs on this state directory")


def _sources(args: Namespace) -> list[str]:
    """The files that the daemon which answers has read; none if none answers."""
    try:
        there = sockets(args.socket, args.instance, args.state_dir, os.environ)
        answer = ask(there, "GET", "/api/v1/status", timeout=5)
        found = answer.json()["sources"] if answer.status == 200 else []
    except (Unreachable, Unknown):
        return []
    return [path for path in found if os.path.isfile(path)]


def _directory(name: str, path: Path) -> Check:
    present = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(present, os.W_OK | os.X_OK):
        hint = "name another one, or let the user that runs the daemon write there"
        return Check(name=name, status="problem", detail=f"{present} is not writable", hint=hint)
    if present != path:
        return Check(name=name, status="ok", detail=f"{path} (made at the first start)")
    if path.stat().st_mode & 0o077:
        return Check(name=name, status="note", detail=str(path), hint="others can look in; the next start narrows it")
    return Check(name=name, status="ok", detail=str(path))


def _socket(args: Namespace) -> Iterator[Check]:
    state = state_directory(args.state_dir, os.environ)
    yield _directory("runtime directory", runtime_directory(state, os.environ))
    for path in sockets(args.socket, args.instance, args.state_dir, os.environ):
        if not is_socket(path):
            continue
        try:
            answer = ask([path], "GET", "/readyz", timeout=5)
        except (Unreachable, Unknown) as exc:
            yield Check(
                name="socket", status="problem", detail=str(exc),
                hint=f"if no daemon runs there, the next start replaces {path.name}",
            )  # fmt: skip
        else:
            ready = answer.status == 200
            yield Check(
                name="socket", status="ok" if ready else "problem",
                detail=f"{path} {'answers and is ready' if ready else answer.text.strip()}",
            )  # fmt: skip
        return
    yield Check(name="socket", status="note", detail=f"no {SOCKET}: no daemon runs where one is looked for")


def _inotify(args: Namespace) -> Iterator[Check]:
    for name, least in (("max_user_watches", WATCHES), ("max_user_instances", INSTANCES)):
        try:
            limit = int(Path(f"/proc/sys/fs/inotify/{name}").read_text())
        except (OSError, ValueError):
            yield Check(name="inotify", status="note", detail="not available; edits are noticed by looking every 2 s")
            return
        low = limit < least
        yield Check(
            name="inotify", status="problem" if low else "ok", detail=f"{name} is {limit}",
            hint=f"sysctl fs.inotify.{name}={least}; until then edits may be noticed late" if low else None,
        )  # fmt: skip


def _sandbox(args: Namespace) -> Iterator[Check]:
    path = shutil.which("bwrap")
    if path is not None:
        yield Check(name="bubblewrap", status="ok", detail=path)
    else:
        yield Check(
            name="bubblewrap", status="note", detail="not installed",
            hint="commands of agents run with the daemon's own rights; install bubblewrap to confine them",
        )  # fmt: skip


def _root(args: Namespace) -> Iterator[Check]:
    if os.geteuid() == 0:
        yield Check(
            name="user", status="note", detail="root",
            hint="what agents run would run as root; give the daemon a user of its own",
        )  # fmt: skip


LOOKS: tuple[Callable[[Namespace], Iterator[Check]], ...] = (
    _python, _root, _config, _state, _socket, _inotify, _sandbox,
)  # fmt: skip
