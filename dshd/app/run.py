"""`dshd run`: make the places, take the lock, set up the log, run the daemon, and end the process for certain."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import anyio

from .daemon import REFUSED, Daemon
from .lock import InUseError, held
from .logging import Log, set_up, standard_error
from .notify import Notifier
from .places import NoConfigError, Places, make_private, places
from .settings import OverrideError, effective, overrides
from .text import issues_text, verdict

IN_USE, FAILED = 75, 1
END_WITHIN = 5.0
"""Seconds that threads which are still busy get when everything else has ended."""


def run(config: Sequence[str], state_dir: str | None, *, strict: bool = False) -> int:
    """Run a daemon in the foreground until it is told to stop; give the exit status."""
    # A hang-up that comes before we can reload would end the process; what it asks for is about to happen anyway.
    signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        found = places(config, state_dir, os.environ)
        over = overrides(os.environ)
        for directory in (found.state, found.runtime):
            make_private(directory)
    except (NoConfigError, OverrideError) as exc:
        return _refuse(str(exc), REFUSED)
    except OSError as exc:
        return _refuse(f"{exc.filename}: {exc.strerror}; name another directory with --state-dir", FAILED)
    log = Log(standard_error(), dict(os.environ))
    set_up(log)
    first = effective({}, over)
    log.apply(first.log_level, first.log_format)
    owner = {
        "pid": os.getpid(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "socket": str(found.socket),
        "config": list(found.config),
    }
    notifier = Notifier(os.environ)
    try:
        with held(found.lock, owner):
            status = anyio.run(_serve, found, log, notifier, over, strict)
    except InUseError as exc:
        return _refuse(str(exc), IN_USE)
    finally:
        notifier.close()
    _end_for_certain(status)
    return status


async def _serve(found: Places, log: Log, notifier: Notifier, over: dict[str, object], strict: bool) -> int:
    daemon = Daemon(places=found, environ=os.environ, log=log, notifier=notifier, overrides=over, strict=strict)
    status = await daemon.run()
    if daemon.refused is not None:
        # The last lines, whatever the format of the log: this is what one sees of a unit that did not start.
        issues = daemon.refused.issues
        errors = sum(issue.severity == "error" for issue in issues)
        text = "\n".join(issues_text(issues, daemon.reconciler.texts))
        said = verdict(errors, len(issues) - errors)
        # A row that did not start is nothing that `dshd check`, which starts none, could show.
        look = "start again" if all(issue.code.endswith("0602") for issue in issues) else "look with `dshd check`"
        print(f"{text}\ndshd: refused to start: {said}; correct it, and {look}", file=sys.stderr)
    return status


def _refuse(message: str, status: int) -> int:
    print(f"dshd: {message}", file=sys.stderr)
    return status


def _end_for_certain(status: int) -> None:
    """Let the process end even if a thread of some plugin never does."""

    def end() -> None:
        names = [thread.name for thread in threading.enumerate() if not thread.daemon]
        print(f"dshd: ending in spite of busy threads: {', '.join(names)}", file=sys.stderr, flush=True)
        os._exit(status)

    timer = threading.Timer(END_WITHIN, end)
    timer.daemon = True
    timer.start()
