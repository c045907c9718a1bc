"""The watch: sees that inputs may have changed, waits until they rest, and asks for an attempt if they really did.

Directories are watched, never files: a file is renamed over, a ConfigMap swaps a link beside it. Events only say
"look"; what counts is the content, compared with what was judged last. A periodic rescan covers lost events and file
systems that have none, and is the only source with `watch: poll`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import structlog
from watchfiles import awatch

from .request import Request
from .sources import Reading, fingerprint_again
from .threads import in_thread

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
        self._limited = False
        self._busy = False
        self._missed = False
        self.disk: Reading | None = None
        """What was read from the disk last, as opposed to from a stored generation."""
        self._directories: frozenset[str] = frozenset()
        self._moved = anyio.Event()
        self._stirred = anyio.Event()
        reconciler.code.on_switch = self._switched

    @property
    def mode(self) -> str:
        return "polling (limit)" if self._limited else self._reconciler.options.watch

    def reading(self, busy: bool) -> None:
        """An attempt is reading the disk, and will have seen what changes meanwhile; or it has read."""
        self._busy = busy
        if not busy and self._missed:
            self._missed = False
            self._stirred.set()

    def judged(self, reading: Reading, directories: frozenset[str]) -> None:
        """An attempt has read these inputs; changes of them would show in `directories`."""
        if reading.files.from_disk:
            self.disk = reading
        self._look_at(directories if reading.files.from_disk else self._directories | directories)

    def _look_at(self, directories: frozenset[str]) -> None:
        if directories != self._directories:
            self._directories = directories
            self._moved.set()

    def _switched(self) -> None:
        """Code reload was switched on or off: look, and watch where the code is."""
        if self._reconciler.code.reloading and self.disk is not None:
            self._look_at(self._directories | places(self.disk, self._reconciler.code.files()))
        self._stirred.set()

    async def run(self) -> None:
        """Watch for ever, or not at all with `off`."""
        options = self._reconciler.options
        if options.watch == "off":
            return
        async with anyio.create_task_group() as tasks:
            if options.watch != "poll":
                tasks.start_soon(self._listen, name="events")
            self._stirred.set()  # what has changed since the first attempt read it
            while True:
                options = self._reconciler.options
                with anyio.move_on_after(options.rescan if self.mode == "auto" else options.poll) as quiet:
                    await self._stirred.wait()
                if not quiet.cancelled_caught:
                    await self._settle()
                if not await in_thread(self._differs):
                    continue
                if self._busy:
                    self._missed = True
                else:
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

    def _differs(self) -> bool:
        """Whether what is on disk is not what was judged last. Reads the disk."""
        if self.disk is None:
            return True
        again = fingerprint_again(self._reconciler.sources, self.disk.files)
        return again != self.disk.fingerprint or self._reconciler.code.differs()

    # -- events

    async def _listen(self) -> None:
        """Turn events of the directories into "look"; start anew when there are others to watch."""
        while True:
            self._moved = moved = anyio.Event()
            try:
                await self._until_moved(_present(self._directories), moved)
            except (FileNotFoundError, NotADirectoryError):
                await anyio.sleep(SETTLE)  # one of them went away just now
            except Exception as exc:
                self._limited = True
                self._stirred.set()
                _log.warning(
                    "file events are not available; looking every few seconds instead",
                    error=str(exc) or type(exc).__name__,
                    hint="raise fs.inotify.max_user_watches and fs.inotify.max_user_instances with sysctl",
                )
                return

    async def _until_moved(self, directories: list[str], moved: anyio.Event) -> None:
        """Listen until there are other directories, or one of these is another than it was."""
        failure: Exception | None = None
        stop = anyio.Event()  # cancelling alone would wait for the thread that listens
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                try:
                    await moved.wait()
                finally:
                    stop.set()

            tasks.start_soon(end, name="watch moved")
            try:
                await self._hear(directories, stop)
            except Exception as exc:  # raised again below, where no task group wraps it
                failure = exc
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _hear(self, directories: list[str], stop: anyio.Event) -> None:
        if not directories:
            await stop.wait()
            return
        before = _identities(directories)
        changes = awatch(
            *directories, watch_filter=None, debounce=50, step=10, recursive=False, stop_event=stop,
            ignore_permission_denied=True,
        )  # fmt: skip
        self._stirred.set()
        async with aclosing(changes):
            async for change in changes:
                self._stirred.set()
                gone = any(path in before for _, path in change) or _identities(directories) != before
                if gone or _present(self._directories) != directories:
                    return  # removed and perhaps made again: a watch may be of what is not there any more


def places(reading: Reading, code: Sequence[str]) -> frozenset[str]:
    """Where a change of the inputs would show: beside each file, where links lead, and above, for what is re-made."""
    tree = reading.desired.tree
    links: dict[str, None] = {}
    found: dict[str, None] = dict.fromkeys(tree.directories)
    for file in (*tree.sources, *reading.desired.referenced, *reading.files.missing):
        found[os.path.dirname(file)] = None
        if os.path.islink(file):
            found[os.path.dirname(_follow(file, links))] = None
    for directory in list(found):
        found[_follow(directory, links)] = None
    for unit in code:
        found.update(dict.fromkeys(_inside(unit) if os.path.isdir(unit) else (os.path.dirname(unit),)))
    return frozenset((*found, *links, *(os.path.dirname(directory) for directory in found)))


def _follow(path: str, links: dict[str, None]) -> str:
    """Where a path really leads; the directories in which links on the way lie are added to `links`."""
    left, here, steps = [part for part in path.split(os.sep) if part][::-1], os.sep, 0
    while left:
        part = left.pop()
        step = os.path.normpath(os.path.join(here, part))
        if part in (os.curdir, os.pardir) or steps >= 40 or not os.path.islink(step):
            here = step
            continue
        steps += 1
        links[here] = None
        target = os.readlink(step)
        here = os.sep if os.path.isabs(target) else here
        left += [part for part in target.split(os.sep) if part][::-1]
    return here


def _inside(package: str) -> Iterator[str]:
    for directory, names, _ in os.walk(package):
        names[:] = [name for name in names if not name.startswith((".", "__pycache__"))]
        yield directory


def _present(directories: Iterable[str]) -> list[str]:
    """Those that are there; for one that is not, what of the way to it is: it will show when it is made."""
    found: dict[str, None] = {}
    for directory in sorted(directories):
        while not os.path.isdir(directory) and directory != os.sep:
            directory = os.path.dirname(directory)
        found[directory] = None
    return [directory for directory in found if os.access(directory, os.R_OK)]


def _identities(directories: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    found: dict[str, tuple[int, int] | None] = {}
    for directory in directories:
        try:
            seen = os.stat(directory)
            found[directory] = (seen.st_dev, seen.st_ino)
        except OSError:
            found[directory] = None
    return found
