"""One daemon per state directory: a kernel lock that dies with its process, so nothing stale is ever left."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InUseError(Exception):
    """Another daemon holds the state directory, or answers on the control socket."""


@contextmanager
def held(path: Path, owner: dict[str, object]) -> Iterator[None]:
    """Hold the lock for the length of the block. `owner` is written for those who lose; raises `InUseError`."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(
                f"state directory {str(path.parent)!r} is in use by {_named(handle)}; "
                f"stop that one, or give this one another with --state-dir"
            ) from None
        text = json.dumps(owner).encode()
        os.ftruncate(handle, 0)
        os.pwrite(handle, text, 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def owner_of(path: Path) -> dict[str, object] | None:
    """Who holds the lock now, or `None`."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(handle)
    finally:
        os.close(handle)
    return None


def _read(handle: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(handle, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(handle: int) -> str:
    owner = _read(handle)
    if "pid" not in owner:
        return "another process"
    return f"process {owner['pid']} (started {owner.get('started', 'some time ago')}, socket {owner.get('socket')})"
