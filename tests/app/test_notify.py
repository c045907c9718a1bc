"""What the service manager is told, datagram by datagram."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dshd.app.notify import Notifier

from .conftest import Manager


@pytest.fixture
def manager(short: Path) -> Iterator[Manager]:
    made = Manager(short / "notify")
    yield made
    made.close()


def test_a_reload_is_announced_in_one_datagram_and_always_followed_by_ready(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.address})
    notifier.reloading()  # before it is ready it has nothing to be reloading from
    notifier.reloaded("starting")
    notifier.ready("generation 1")
    notifier.reloading()
    notifier.reloading()
    notifier.reloaded("generation 2")
    notifier.reloaded("generation 2")
    notifier.close()
    seen = manager.drain()
    assert seen[:2] == ["STATUS=starting", "READY=1\nSTATUS=generation 1"]
    first, second, middle, last = seen[2:]
    for datagram in (first, second):  # each asker's is told, with its own time
        lines = datagram.split("\n")
        assert lines[0] == "RELOADING=1"
        assert lines[1].removeprefix("MONOTONIC_USEC=").isdigit()
    assert (middle, last) == ("STATUS=generation 2", "READY=1\nSTATUS=generation 2")


def test_an_abstract_socket_is_an_address_too() -> None:
    name = f"dshd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0{name}")
        notifier = Notifier({"NOTIFY_SOCKET": f"@{name}"})
        notifier.ready("up")
        assert server.recv(100) == b"READY=1\nSTATUS=up"
        notifier.close()


def test_without_a_socket_or_with_a_dead_one_nothing_happens(short: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"NOTIFY_SOCKET": str(short / "gone")}):
        notifier = Notifier(environ)
        notifier.ready("up")
        notifier.alive()
        notifier.stopping("down")
        notifier.close()


def test_children_do_not_inherit_the_right_to_speak_for_us(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid()), "X": "1"}
    notifier = Notifier(environ)
    assert environ == {"X": "1"}
    assert notifier.watchdog == 2.0
    notifier.close()


@pytest.mark.parametrize("variables", [{"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}, {}])
def test_a_watchdog_of_somebody_else_is_not_ours(manager: Manager, variables: dict[str, str]) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.address, **variables})
    assert notifier.watchdog is None
    notifier.close()


def test_a_status_is_one_line(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.address})
    notifier.status("first\nREADY=1")
    assert manager.receive() == "STATUS=first READY=1"
    notifier.close()
