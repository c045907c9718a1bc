"""The verbs that ask a daemon: one request, its answer printed, its outcome as the exit status."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from .client import Answer, Unknown, Unreachable, ask
from .places import sockets
from .render import Painter, row_text, status_text, tree_text

UNREACHABLE, UNKNOWN, NO_SUCH, FAILED = 7, 8, 2, 1

EXITS = {
    "committed": 0, "noop": 0, "superseded": 0, "rejected": 3, "held": 4, "conflict": 4, "prepare_failed": 5,
    "rolled_back": 6, "timed_out": 8,
}  # fmt: skip
"""As in `Outcome`, which is too heavy to import here; a test compares the two."""

_NEXT = {
    "rejected": "the configuration is invalid; correct what is listed, then save or reload again",
    "held": "nothing has changed; say --allow-removals if so much is to be removed",
    "conflict": "another generation runs than was expected; look at `dshd status`",
    "prepare_failed": "nothing has changed; the rows named did not start",
    "rolled_back": "the change was rolled back; `dshd status` shows what runs",
    "timed_out": "the attempt timed out; look at `dshd status`",
}


def places_of(args: Namespace) -> list[Path]:
    return sockets(args.socket, args.instance, args.state_dir, os.environ)


def complain(message: str) -> None:
    """Say on standard error what went wrong and what to do."""
    print(f"dshd: {message}", file=sys.stderr)


def verb_reload(args: Namespace) -> int:
    body: dict[str, Any] = {"allow_removals": args.allow_removals}
    if args.if_generation is not None:
        body["if_generation"] = args.if_generation
    if args.confirm is not None:
        body["confirm_seconds"] = args.confirm
    return _attempt(args, "/api/v1/reload", body)


def verb_plan(args: Namespace) -> int:
    """What the daemon would do; without one, what a start would do."""
    named = args.socket or args.instance or os.environ.get("DSHD_SOCKET")
    try:
        answer = _ask(args, "POST", "/api/v1/reload", {"plan_only": True})
    except Unreachable as exc:
        if not named:
            from .offline import plan

            return plan(args)
        complain(str(exc))
        return UNREACHABLE
    except Unknown as exc:
        complain(str(exc))
        return UNKNOWN
    return _show_result(args, answer)


def verb_confirm(args: Namespace) -> int:
    return _attempt(args, "/api/v1/confirm", {})


def verb_rollback(args: Namespace) -> int:
    return _attempt(args, "/api/v1/rollback", {} if args.generation is None else {"generation": args.generation})


def verb_status(args: Namespace) -> int:
    return _show(args, "/api/v1/status", status_text)


def verb_tree(args: Namespace) -> int:
    if args.path is not None:
        from urllib.parse import quote

        return _show(args, f"/api/v1/rows/{quote(args.path.strip('/'))}", row_text)
    return _show(args, "/api/v1/tree", lambda tree, paint: tree_text(tree, paint, effects=args.effects))


def _ask(args: Namespace, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
    # A result is asked for as text: the daemon has the source lines to show.
    text = method == "POST" and not args.json
    return ask(places_of(args), method, path, body, text=text, timeout=args.timeout)


def _attempt(args: Namespace, path: str, body: dict[str, Any]) -> int:
    try:
        answer = _ask(args, "POST", path, body)
    except Unreachable as exc:
        complain(str(exc))
        return UNREACHABLE
    except Unknown as exc:
        complain(str(exc))
        return UNKNOWN
    return _show_result(args, answer)


def _show_result(args: Namespace, answer: Answer) -> int:
    outcome = answer.headers.get("dshd-result")
    if outcome is None:
        return _problem(args, answer)
    print(answer.text if args.json else Painter(sys.stdout, os.environ).result(answer.text.rstrip("\n")))
    if outcome in _NEXT:
        complain(_NEXT[outcome])
    return EXITS.get(outcome, FAILED)


def _show(args: Namespace, path: str, render: Any) -> int:
    try:
        answer = _ask(args, "GET", path)
    except Unreachable as exc:
        complain(str(exc))
        return UNREACHABLE
    except Unknown as exc:
        complain(str(exc))
        return UNKNOWN
    if answer.status != 200:
        return _problem(args, answer)
    if args.json:
        print(answer.text)
    else:
        sys.stdout.write(render(answer.json(), Painter(sys.stdout, os.environ)))
    return 0


def _problem(args: Namespace, answer: Answer) -> int:
    if args.json:
        print(answer.text)
    complain(answer.detail)
    return NO_SUCH if answer.status in (400, 404) else FAILED
