"""Where things are: config files, the state directory, the runtime directory and the control socket in it.

Light on purpose: client verbs come through here and import nothing beyond the standard library.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SOCKET = "dshd.sock"
LONGEST_ADDRESS = 107
"""Bytes that a unix socket's address can hold."""


class NoConfigError(Exception):
    """No config file was named, and none is where one is looked for."""


class Places(NamedTuple):  # no dataclass: importing those takes as long as the rest of a client verb
    """The three places of one daemon, absolute, and the files it reads first."""

    config: tuple[str, ...]
    state: Path
    runtime: Path

    @property
    def socket(self) -> Path:
        return self.runtime / SOCKET

    @property
    def lock(self) -> Path:
        return self.state / "lock"


def places(config: Sequence[str], state_dir: str | None, environ: Mapping[str, str]) -> Places:
    """The places of a daemon started with these options. Raises `NoConfigError`."""
    state = state_directory(state_dir, environ)
    return Places(config=config_files(config, environ), state=state, runtime=runtime_directory(state, environ))


def config_files(given: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The config files in the order of their layers, absolute. Raises `NoConfigError`."""
    named = list(given) or [name for name in environ.get("DSHD_CONFIG", "").split(":") if name]
    if named:
        return tuple(os.path.abspath(name) for name in named)
    usual = [_xdg(environ, "XDG_CONFIG_HOME", ".config") / "dshd" / "dshd.yaml", Path("/etc/dshd/dshd.yaml")]
    for path in usual:
        if path.exists():
            return (str(path),)
    looked = " or ".join(map(str, usual))
    raise NoConfigError(f"no config file at {looked}; name one with --config, or make one with `dshd init DIR`")


def state_directory(given: str | None, environ: Mapping[str, str]) -> Path:
    """The state directory; systemd may name several, of which the first is meant."""
    named = given or environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(os.path.abspath(named)) if named else _xdg(environ, "XDG_STATE_HOME", ".local/state") / "dshd"


def runtime_directory(state: Path, environ: Mapping[str, str]) -> Path:
    """Where the control socket is: systemd's directory, the session's, else below the state directory."""
    named = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if named:
        return Path(os.path.abspath(named))
    session = environ.get("XDG_RUNTIME_DIR")
    return Path(session) / "dshd" if session else state / "run"


def sockets(socket: str | None, instance: str | None, state_dir: str | None, environ: Mapping[str, str]) -> list[Path]:
    """Where a client looks for a daemon, in this order; one place only if it was named."""
    if socket or environ.get("DSHD_SOCKET"):
        return [Path(os.path.abspath(socket or environ["DSHD_SOCKET"]))]
    if instance:
        return [Path(f"/run/dshd-{instance}") / SOCKET]
    state = state_directory(state_dir, environ)
    directories = [runtime_directory(state, environ), state / "run", Path("/run/dshd")]
    if state_dir:  # whoever says which daemon means no other
        directories = [state / "run", runtime_directory(state, environ)]
    return list(dict.fromkeys(directory / SOCKET for directory in directories))


def _xdg(environ: Mapping[str, str], variable: str, default: str) -> Path:
    named = environ.get(variable)
    return Path(named) if named else Path(environ.get("HOME") or os.path.expanduser("~")) / default


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can enter, whatever the umask; one of ours that is wider is narrowed.

    A directory of somebody else is left as it is: whoever made it decided.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    found = directory.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
        directory.chmod(0o700)


def shown(path: str | Path) -> str:
    """A path as a message shows it: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """An address to bind or connect to: the path, or a short name for it while the block lasts.

    The kernel takes 107 bytes; a directory opened by us gives any path a short name.
    """
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
