"""Who is at the other end of the control socket: the user's and root's processes, but none that an agent has started.

What is proved, by the kernel and without the peer's help: its uid, gid and groups at the time it connected; and that it
is no descendant of the daemon. The latter holds for a process whose parents have ended as well, because the daemon is a
*child subreaper*: whatever its descendants leave behind becomes its own child, never init's, so the chain of parents
stays whole. A peer that has ended, or that this process may not look at, proves nothing and is refused.

What is not proved: that a peer does not act for an agent. A descendant that talks somebody outside into connecting
(cron, a terminal multiplexer, `systemd-run`, a container engine) is not seen here, nor is one left over from an earlier
daemon; run agents' commands in a sandbox without this socket where that matters.
"""

from __future__ import annotations

import ctypes
import grp
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import structlog

PR_SET_CHILD_SUBREAPER = 36
SO_PEERGROUPS = 59
REAP_AFTER = 60.0
"""Seconds an ended orphan is left to whoever might wait for it."""

_log = structlog.get_logger("dshd.control")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A process that connected, as the kernel vouches for it."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]


def peer_of(connection: socket.socket) -> Peer:
    """Who connected to this unix socket."""
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    groups: frozenset[int] = frozenset()
    with suppress(OSError):  # a kernel before 4.13, or more than 256 groups: then only the primary one counts
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
        groups = frozenset(struct.unpack(f"{len(raw) // 4}I", raw))
    return Peer(pid=pid, uid=uid, gid=gid, groups=groups | {gid})


def objection(peer: Peer, group: int | None) -> str | None:
    """Why this peer may not use the control socket, or `None`."""
    if peer.uid not in (0, os.geteuid()) and (group is None or group not in peer.groups):
        return f"the control socket is for uid {os.geteuid()} and root; ask as one of them, or set daemon.group"
    if peer.pid == os.getpid():
        return None
    if peer.pid <= 0:
        return "the peer is in another pid namespace, so nothing shows that no agent started it"
    pid = peer.pid
    for _ in range(4096):
        parent = _parent(pid)
        if parent is None:
            return "the peer has ended or is hidden, so nothing shows that no agent started it"
        if parent == os.getpid():
            return "the control socket refuses processes that the daemon has started: an agent is no administrator"
        if parent == 0 or pid == 1:
            return None
        pid = parent
    return "the peer has too many ancestors"


def _parent(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("latin-1")
    except OSError:
        return None
    # The name of the command, in parentheses, may itself contain spaces and parentheses.
    return int(text.rpartition(")")[2].split()[1])


def group_id(name: str) -> int:
    """The id of a group by its name or number. Raises `LookupError`."""
    if name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise LookupError(f"there is no group {name!r}") from None


def become_subreaper() -> bool:
    """Let orphaned descendants become children of this process. Answers whether the system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


async def reap_orphans(every: float = 30.0, after: float = REAP_AFTER) -> None:
    """Clear away orphans that have ended, for ever.

    Who starts a process waits for it, and at once; so a child that ended a while ago and still was not waited for is
    one that this process only inherited.
    """
    ended: dict[int, float] = {}
    while True:
        await anyio.sleep(every)
        if not _any_ended():
            ended.clear()
            continue
        now = anyio.current_time()
        ended = {pid: ended.get(pid, now) for pid in _zombies()}
        for pid, since in ended.items():
            if now - since >= after:
                _clear_away(pid)


def _any_ended() -> bool:
    """Whether some child has ended and was not waited for. Looks without waiting for it."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _clear_away(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
        _log.debug("an orphan has been cleared away", pid=pid)


def _zombies() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for word in (task / "children").read_text().split():
                text = Path(f"/proc/{word}/stat").read_text("latin-1")
                if text.rpartition(")")[2].split()[0] == "Z":
                    found.append(int(word))
    return found
