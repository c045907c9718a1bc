"""Verbs that judge a configuration without a daemon: the same steps as a start takes, up to the plan."""

from __future__ import annotations

import json
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from dshd.loader.credentials import Credentials
from dshd.loader.files import Disk
from dshd.loader.plan import plan as planned
from dshd.loader.sources import Sources
from dshd.loader.spec import Desired

from .client import Unknown, Unreachable, ask
from .places import NoConfigError, config_files, shown, sockets, state_directory
from .render import Painter
from .settings import DaemonSettings, shadowed
from .text import issues_text, plan_text, rows_text, verdict

INVALID = 3


class _NotAsked(Credentials):
    """Takes every credential for present: for machines that have none, such as CI."""

    def check(self, name: str) -> str | None:
        return None

    def where(self, name: str) -> str | None:
        return "not asked"


def desired(args: Namespace, environ: Mapping[str, str], *, credentials: bool = True) -> Desired:
    """What the configuration named by `args` says should run. Opens nothing. Raises `NoConfigError`."""
    state = state_directory(args.state_dir, environ)
    sources = Sources(
        roots=config_files(args.config, environ),
        environ=environ,
        credentials=(Credentials if credentials else _NotAsked)(environ, state),
        key=_key(state),
        daemon_model=DaemonSettings,
        also=lambda tree: shadowed(tree.daemon, environ),
    )
    return sources.evaluate(Disk())


def _key(state: Path) -> bytes:
    """The state directory's key, so that digests can be compared with the daemon's; nothing is made here."""
    try:
        return (state / "digest.key").read_bytes()
    except OSError:
        return secrets.token_bytes(32)


def check(args: Namespace) -> int:
    """`dshd check`: every finding, the files that were read, and whether it would start."""
    try:
        found = desired(args, os.environ, credentials=not args.no_credentials)
    except NoConfigError as exc:
        return complain(str(exc))
    others = _read_by_the_daemon(args, found)
    errors, warnings = len(found.issues.errors), len(found.issues.warnings)
    if args.json:
        body = {
            "valid": found.ok,
            "issues": [issue.as_json() for issue in found.issues],
            "sources": list(found.tree.sources),
            "referenced": list(found.referenced),
            "environment": list(found.environment),
            "credentials": list(found.credentials),
            "rows": len(found.specs),
            "digest": found.digest,
            "daemon_reads": others,
        }
        print(json.dumps(body, ensure_ascii=False))
    else:
        _print(issues_text(found.issues, found.tree.texts))
        print("read:", *(shown(path) for path in (*found.tree.sources, *found.referenced) if os.path.exists(path)))
        if args.no_credentials and found.credentials:
            print(f"credentials not asked for: {', '.join(found.credentials)}")
        print(f"{'valid' if found.ok else 'invalid'}: {rows_text(len(found.specs))}, {verdict(errors, warnings)}")
    if others is not None:
        print(f"dshd: the running daemon reads other files: {', '.join(others)}", file=sys.stderr)
    return 0 if found.ok else complain(f"{verdict(errors, 0)}; correct what is listed and check again")


def plan(args: Namespace) -> int:
    """`dshd plan` without a daemon: what a start would mount."""
    try:
        found = desired(args, os.environ)
    except NoConfigError as exc:
        return complain(str(exc))
    actions = planned({}, found.specs)
    if args.json:
        body = {
            "result": "noop" if found.ok else "rejected",
            "generation": 0,
            "digest": found.digest,
            "plan": actions.as_json(),
            "issues": [issue.as_json() for issue in found.issues],
        }
        print(json.dumps(body, ensure_ascii=False))
    else:
        _print(issues_text(found.issues, found.tree.texts))
        _print(plan_text(actions))
        print(f"plan: {len(found.specs)} to add; no daemon runs, so this is what a start would do")
    return 0 if found.ok else complain(f"{verdict(len(found.issues.errors), 0)}; a start would be refused")


def schema(args: Namespace) -> int:
    """`dshd schema`: the JSON Schema of a configuration file."""
    from dshd.loader.resolve import Resolver
    from dshd.loader.schema import file_schema

    plugins, broken = Resolver().all()
    made = file_schema({name: found.plugin for name, found in plugins.items()}, daemon_model=DaemonSettings)
    print(json.dumps(made, indent=None if args.json else 2, ensure_ascii=False))
    for name, error in broken.items():
        print(f"dshd: plugin {name!r} is left out, because it cannot be loaded: {error}", file=sys.stderr)
    return 0


def complain(message: str, status: int = INVALID) -> int:
    print(f"dshd: {message}", file=sys.stderr)
    return status


def _print(lines: list[str]) -> None:
    if lines:
        print(Painter(sys.stdout, os.environ).result("\n".join(lines)))


def _read_by_the_daemon(args: Namespace, found: Desired) -> list[str] | None:
    """The root files of a daemon that runs and reads others than these."""
    try:
        answer = ask(
            sockets(args.socket, args.instance, args.state_dir, os.environ), "GET", "/api/v1/status", timeout=2
        )
        theirs = [str(path) for path in answer.json()["config"]]
    except (Unreachable, Unknown, ValueError, KeyError, TypeError):
        return None
    ours = list(config_files(args.config, os.environ))
    return theirs if [os.path.realpath(path) for path in theirs] != [os.path.realpath(path) for path in ours] else None
