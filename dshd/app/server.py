"""Accepting: uvicorn as a library, on sockets that stay ours.

It is kept away from our signals and from the process's exit, works on a duplicate of the socket, and raises what goes
wrong at its start.
"""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from anyio.abc import TaskStatus
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server

from .peers import Peer, peer_of
from .site import Door


class _Protocol(H11Protocol):
    """Notes who connected at the moment of accepting, when the kernel's answer is freshest."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        peer: Peer | None = None
        if connection is not None and connection.family == socket.AF_UNIX:
            peer = peer_of(connection)
        self.app_state = {**self.app_state, "peer": peer}


class _Server(Server):
    """A uvicorn server that ends when it is told to, not by signals and not by looking ten times a second."""

    def __init__(self, config: Config, status: TaskStatus[None]) -> None:
        super().__init__(config)
        self._status = status
        self._told = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._status.started()

    async def main_loop(self) -> None:
        await self._told.wait()

    def finish(self) -> None:
        self.should_exit = True
        self._told.set()

    def cut(self) -> None:
        """Close what is left, also towards a client that does not read."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@asynccontextmanager
async def accepting(door: Door, bound: socket.socket, *, grace: float) -> AsyncIterator[None]:
    """Accept on a duplicate of a bound socket for the length of the block.

    At its end nothing new is accepted, streams get their farewell, and answers in progress have `grace` seconds.
    """
    server: _Server | None = None

    async def serve(*, task_status: TaskStatus[None]) -> None:
        nonlocal server
        config = Config(
            door, loop="none", http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, date_header=False,
            timeout_graceful_shutdown=max(1, math.ceil(grace)),
        )  # fmt: skip
        server = _Server(config, task_status)
        # Not cancelled, but told to finish, so that answers in progress have their time whoever ends us.
        with anyio.CancelScope(shield=True):
            await server.serve([bound.dup()])
        server.cut()

    async with anyio.create_task_group() as tasks:
        try:
            await tasks.start(serve, name="http server")
            yield
        finally:
            door.close()
            if server is not None:
                server.finish()
