"""The listeners that rows contribute: accepted on from the commit that publishes their row until it is retired."""

from __future__ import annotations

import anyio
import structlog

from dshd.capabilities.http import LISTENERS, LISTENERS_CHANGED, Listener
from dshd.kernel.context import Context
from dshd.kernel.registry import RegistryChange

from .gate import TcpGate
from .site import Door, Site

_log = structlog.get_logger("dshd.http")


class Pool:
    """Keeps the sockets that are accepted on equal to the registry `LISTENERS`."""

    def __init__(self, root: Context, site: Site) -> None:
        self._root = root
        self._site = site
        self._open: dict[str, tuple[Listener, anyio.Event]] = {}
        self._changed = anyio.Event()
        root.on(LISTENERS_CHANGED, self._note)

    def _note(self, _change: RegistryChange) -> None:
        self._changed.set()

    @property
    def addresses(self) -> list[str]:
        return [listener.address for listener, _ in self._open.values()]

    async def run(self) -> None:
        """Follow the registry for ever; cancelling it closes everything."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed = anyio.Event()
                wanted = dict(self._root.registry(LISTENERS).items())
                previous = dict(self._open)
                for name, listener in wanted.items():
                    if name not in previous or previous[name][0] is not listener:
                        self._open[name] = (listener, over := anyio.Event())
                        try:
                            await tasks.start(self._serve, listener, over, name=f"http {listener.address}")
                        except OSError as exc:
                            _log.error("cannot accept connections", address=listener.address, error=str(exc))
                # Only now: what stays under another owner has no instant without somebody who accepts.
                for name, (listener, over) in previous.items():
                    if wanted.get(name) is not listener:
                        over.set()
                        if self._open.get(name, (None,))[0] is listener:
                            del self._open[name]
                await self._changed.wait()

    async def _serve(self, listener: Listener, over: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        from .server import accepting  # heavy, and not every daemon listens on TCP

        door = Door(self._site, TcpGate(listener))
        async with accepting(door, listener.socket, grace=listener.grace):
            task_status.started()
            _log.info("accepting connections", address=listener.address)
            await over.wait()
        _log.info("no longer accepting connections", address=listener.address)
