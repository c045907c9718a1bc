"""Plugin code on disk: which rows run code that has changed since it was imported.

In development, while an `hmr` row is live, changed code is imported beside the old and the rows that use it are
replaced; elsewhere such rows are listed as waiting for a restart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import anyio

from dshd.kernel.context import Context

from .events import HMR_CHANGE, SourceChanged
from .resolve import CodeReload, Resolver, stale_rows
from .spec import Spec

State = dict[str, tuple[tuple[str, int, int], ...]]
"""What has changed since it was imported: unit → its changed files with their times and sizes."""


class Code:
    """The plugin sources of a reconciler."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._judged: State = {}
        self.watchers = 0

    @property
    def reloading(self) -> bool:
        """Whether changed code is reloaded, because an `hmr` row is live."""
        return self.watchers > 0

    def files(self) -> list[str]:
        """Source files, and directories of packages, of the plugins that were imported."""
        return self._resolver.watched()

    def _state(self) -> State:
        return {unit: tuple(map(_stamp, files)) for unit, files in self._resolver.changed().items()}

    def differs(self) -> bool:
        """Whether code has changed that no attempt has judged yet. Reads the disk."""
        state = self._state()
        return self.reloading and state != self._judged and bool(state)

    def judge(self) -> tuple[CodeReload | None, list[str]]:
        """Import what has changed beside the old, if code is reloaded; give that and the changed files. Blocks."""
        self._judged = self._state()
        if not self.reloading or not self._judged:
            return None, []
        files = [file for stamps in self._judged.values() for file, _, _ in stamps]
        return self._resolver.refresh(), files

    def stale(self, specs: Mapping[str, Spec]) -> dict[str, str]:
        """Rows that run code which has changed, with the words for it. Reads the disk."""
        return stale_rows(specs, self._resolver.changed())

    def tell(self, root: Context, files: Sequence[str]) -> None:
        for file in files:
            root.emit(HMR_CHANGE, SourceChanged(file))


class Watcher:
    """The code watcher as the `hmr` row provides it: reloading is on while `run` runs."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def files(self) -> Sequence[str]:
        return self._code.files()

    async def run(self) -> None:
        """Have changed code reloaded until cancelled."""
        self._code.watchers += 1
        try:
            await anyio.sleep_forever()
        finally:
            self._code.watchers -= 1


def _stamp(file: str) -> tuple[str, int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return file, 0, 0
    return file, found.st_mtime_ns, found.st_size
