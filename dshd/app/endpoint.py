"""The control socket as a file: bound by one daemon, for its owner or a group, and gone with it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .lock import InUseError
from .places import address_of, is_socket


@contextmanager
def control_socket(path: Path) -> Iterator[socket.socket]:
    """Bind the control socket, for its owner alone, and unlink it at the end.

    Takes the place of a socket that nobody answers on any more. Raises `InUseError` if somebody does.
    """
    if is_socket(path) and _answers(path):
        raise InUseError(
            f"another daemon answers on {str(path)!r}; give this one a runtime directory of its own: RUNTIME_DIRECTORY"
        )
    with suppress(FileNotFoundError):
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        bound.setblocking(False)
        # Nobody may connect in the instant before a mode could be set: the socket is born with the narrowest.
        umask = os.umask(0o177)
        try:
            with address_of(path) as address:
                bound.bind(address)
        finally:
            os.umask(umask)
        bound.listen(128)
        ours = path.stat()
        try:
            yield bound
        finally:
            with suppress(FileNotFoundError):
                found = path.stat()
                if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                    path.unlink()
    finally:
        bound.close()


def share(path: Path, group: int | None) -> None:
    """Let a group use the control socket, or its owner alone. Raises `OSError`."""
    path.chmod(0o600)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o660)
        _let_through(path.parent, group)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, address_of(path) as address:
        probe.settimeout(1)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # too busy to take us: but there
            return True
    return True


def _let_through(directory: Path, group: int) -> None:
    """Let a group reach the socket in a directory of ours, and nothing else of it."""
    found = directory.stat()
    if found.st_uid == os.geteuid() and not found.st_mode & 0o011:
        os.chown(directory, -1, group)
        directory.chmod(stat.S_IMODE(found.st_mode) | 0o010)
