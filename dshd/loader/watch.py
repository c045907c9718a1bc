"""The watch: sees that inputs may have changed, waits until they rest, and asks for an attempt if they really did.

Directories are watched, never files: a file is renamed over, a ConfigMap swaps a link beside it. Events only say
"look"; what counts is the content, compared with what was judged last. A periodic rescan covers lost events and file
systems that have none, and is the only source with `watch: poll`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog
from watchfiles import awatch

from .attempt import Request
from .sources import Reading

if TYPE_CHECKING:
    from .reconciler import Reconciler

_log = structlog.get_logger("dshd.loader")

SETTLE = 0.05
SETTLE_AT_MOST = 1.0
GIT_AT_MOST = 5.0


class Watch:
    """Watches the sources of a reconciler. `mode` is what `status` shows."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler
        self.mode = reconciler.options.watch
        self.disk: Reading | None = None
        """What was read from the disk last, as opposed to from a stored generation."""
        self._directories: frozenset[str] = frozenset()
        self._moved = anyio.Event()
        self._stirred = anyio.Event()

    def judged(self, reading: Reading) -> None:
        """An attempt has read these inputs."""
        if reading.files.from_disk:
            self.disk = reading
        code = self._reconciler.code
        directories = frozenset(_directories(reading, code.files() if code.reloading else ()))
        if directories != self._directories:
            self._directories = directories
            self._moved.set()

    async def run(self) -> None:
        """Watch for ever, or not at all with `off`."""
        if self.mode == "off":
            return
        async with anyio.create_task_group() as tasks:
            if self.mode != "poll":
                tasks.start_soon(self._listen, name="events")
            while True:
                interval = self._reconciler.options
                with anyio.move_on_after(interval.poll if self.mode.startswith("poll") else interval.rescan) as quiet:
                    await self._stirred.wait()
                if not quiet.cancelled_caught:
                    await self._settle()
                if await self._differs():
                    self._reconciler.request(Request(trigger="watch"))
                    await anyio.sleep(SETTLE)

    async def _settle(self) -> None:
        """Wait for a moment without events; longer while git is at work beside a source."""
        begun = anyio.current_time()
        while True:
            self._stirred = anyio.Event()
            with anyio.move_on_after(SETTLE) as quiet:
                await self._stirred.wait()
            waited = anyio.current_time() - begun
            busy = any(os.path.exists(os.path.join(d, ".git", "index.lock")) for d in self._directories)
            if waited >= (GIT_AT_MOST if busy else SETTLE_AT_MOST) or (quiet.cancelled_caught and not busy):
                return

    async def _differs(self) -> bool:
        """Whether what is on disk is not what was judged last."""
        if self.disk is None:
            return True
        from .sources import fingerprint_again

        again = await anyio.to_thread.run_sync(fingerprint_again, self._reconciler.sources, self.disk.files)
        return again != self.disk.fingerprint or await anyio.to_thread.run_sync(self._code_changed)

    def _code_changed(self) -> bool:
        return self._reconciler.code.differs()

    async def _listen(self) -> None:
        """Turn events of the directories into "look"; start anew when there are others to watch."""
        while True:
            self._moved = moved = anyio.Event()
            present = [directory for directory in self._directories if os.path.isdir(directory)]
            self._stirred.set()  # what changed before the watch began is seen as well
            if not present:
                with anyio.move_on_after(self._reconciler.options.poll):
                    await moved.wait()
                continue
            try:
                await self._until_moved(present, moved)
            except OSError as exc:
                self.mode = "polling (limit)"
                _log.warning(
                    "file events are not available; looking every few seconds instead",
                    error=str(exc),
                    hint="raise fs.inotify.max_user_watches and fs.inotify.max_user_instances with sysctl",
                )
                return

    async def _until_moved(self, directories: list[str], moved: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await moved.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop, name="watch moved")
            changes = awatch(
                *directories, watch_filter=None, debounce=50, step=10, recursive=False, raise_interrupt=False
            )
            async for _ in changes:
                self._stirred.set()
                if any(not os.path.isdir(directory) for directory in directories):
                    await anyio.sleep(0.05)  # removed, perhaps to be made again: watch what is there by then
                    break
            tasks.cancel_scope.cancel()


def _directories(reading: Reading, code: Sequence[str]) -> list[str]:
    """Where a change of the inputs would show: beside each file, where links lead, and above, for what is re-made."""
    tree = reading.desired.tree
    places: dict[str, None] = {}
    for file in (*tree.sources, *reading.desired.referenced, *reading.files.missing):
        places[os.path.dirname(file)] = None
        places[os.path.dirname(os.path.realpath(file))] = None
    places.update(dict.fromkeys(tree.directories))
    for unit in code:
        inside = [entry.path for entry in os.scandir(unit) if entry.is_dir()] if os.path.isdir(unit) else []
        places.update(dict.fromkeys([*inside, unit if os.path.isdir(unit) else os.path.dirname(unit)]))
    for directory in list(places):
        places[str(Path(directory).parent)] = None
    return list(places)
