"""Where things are looked for, and who holds them."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dshd.app.lock import InUseError, held, owner_of
from dshd.app.places import (
    NoConfigError,
    address_of,
    config_files,
    make_private,
    places,
    runtime_directory,
    sockets,
    state_directory,
)


def test_named_config_files_come_before_the_variable_and_that_before_the_usual_places(tmp_path: Path) -> None:
    usual = tmp_path / "dshd" / "dshd.yaml"
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with pytest.raises(NoConfigError, match="--config"):
        config_files([], environ)
    usual.parent.mkdir()
    usual.touch()
    assert config_files([], environ) == (str(usual),)
    assert config_files([], {**environ, "DSHD_CONFIG": "/a.yaml:/b.yaml"}) == ("/a.yaml", "/b.yaml")
    assert config_files(["/c.yaml", "d.yaml"], {**environ, "DSHD_CONFIG": "/a.yaml"}) == (
        "/c.yaml",
        os.path.abspath("d.yaml"),
    )


def test_the_state_directory_is_named_given_by_systemd_or_of_the_session() -> None:
    environ = {"HOME": "/home/ann"}
    assert state_directory(None, environ) == Path("/home/ann/.local/state/dshd")
    assert state_directory(None, {**environ, "XDG_STATE_HOME": "/x"}) == Path("/x/dshd")
    assert state_directory(None, {**environ, "STATE_DIRECTORY": "/var/lib/dshd:/var/lib/more"}) == Path("/var/lib/dshd")
    assert state_directory("/here", {**environ, "STATE_DIRECTORY": "/var/lib/dshd"}) == Path("/here")


def test_the_runtime_directory_is_given_by_systemd_or_the_session_else_below_the_state() -> None:
    state = Path("/state")
    assert runtime_directory(state, {}) == Path("/state/run")
    assert runtime_directory(state, {"XDG_RUNTIME_DIR": "/run/user/1"}) == Path("/run/user/1/dshd")
    both = {"XDG_RUNTIME_DIR": "/run/user/1", "RUNTIME_DIRECTORY": "/run/dshd"}
    assert runtime_directory(state, both) == Path("/run/dshd")
    assert places(["/c.yaml"], "/state", both).socket == Path("/run/dshd/dshd.sock")


def test_a_client_looks_where_it_is_told_else_in_all_places() -> None:
    environ = {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert sockets("/s", "x", None, {**environ, "DSHD_SOCKET": "/t"}) == [Path("/s")]
    assert sockets(None, "x", None, {**environ, "DSHD_SOCKET": "/t"}) == [Path("/t")]
    assert sockets(None, "x", None, environ) == [Path("/run/dshd-x/dshd.sock")]
    assert sockets(None, None, None, environ) == [
        Path("/run/user/1/dshd/dshd.sock"),
        Path("/home/ann/.local/state/dshd/run/dshd.sock"),
        Path("/run/dshd/dshd.sock"),
    ]
    assert sockets(None, None, "/state", environ)[0] == Path("/state/run/dshd.sock")


def test_directories_are_made_private_with_their_parents_and_narrowed(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
    (tmp_path / "a" / "b").chmod(0o755)
    make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_long_path_gets_a_short_address(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 60) / ("y" * 60) / "s"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with address_of(path) as address:
            server.bind(address)
        server.listen()
        with address_of(path) as address:
            client.connect(address)


def test_the_lock_names_its_owner_and_is_free_when_the_owner_has_died(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert owner_of(lock) is None
    with held(lock, {"pid": 4711}):
        assert owner_of(lock) == {"pid": 4711}
        with pytest.raises(InUseError, match="process 4711"), held(lock, {"pid": 1}):
            pass
        assert owner_of(lock) == {"pid": 4711}
    assert owner_of(lock) is None
    script = (
        "import os\nfrom pathlib import Path\nfrom dshd.app.lock import held\n"
        f"with held(Path({str(lock)!r}), {{}}):\n    os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)
    with held(lock, {}):
        pass
