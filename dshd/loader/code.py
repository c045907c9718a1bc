"""Plugin code on disk: which rows run code that has changed since it was imported.

In development, while an `hmr` row is live, changed code is imported beside the old and the rows that use it are
replaced; elsewhere such rows are listed as waiting for a restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from dshd.kernel.context import Context

from .events import HMR_CHANGE, SourceChanged
from .resolve import CodeReload, Resolver, stale_rows
from .spec import Spec

State = dict[str, tuple[tuple[str, int, int], ...]]
"""What has changed since it was imported: unit → its changed files with their times and sizes."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a look at the plugin sources has found."""

    changed: dict[str, tuple[str, ...]]
    """What waits for a restart: unit → its changed files."""
    fresh: CodeReload | None = None
    files: Sequence[str] = ()
    """The changed files that are reloaded."""


class Code:
    """The plugin sources of a reconciler."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._judged: State = {}
        self._fresh: CodeReload | None = None
        self.watchers = 0
        self.on_switch: Callable[[], None] = lambda: None
        """Called when reloading may have been switched on or off."""

    @property
    def reloading(self) -> bool:
        """Whether changed code is reloaded, because an `hmr` row is live."""
        return self.watchers > 0

    def files(self) -> list[str]:
        """Source files, and directories of packages, of the plugins that were imported."""
        return self._resolver.watched()

    def _state(self, changed: Mapping[str, tuple[str, ...]]) -> State:
        return {unit: tuple(map(_stamp, files)) for unit, files in changed.items()}

    def differs(self) -> bool:
        """Whether code has changed that no attempt has judged yet. Reads the disk."""
        if not self.reloading:
            return False
        state = self._state(self._resolver.changed())
        if not state:  # what was refused was taken back, which has to be said
            return self._fresh is not None and not self._fresh.committed
        return state != self._judged

    def judge(self) -> Verdict:
        """Look at the code, and import what has changed beside the old if code is reloaded. Blocks."""
        changed = self._resolver.changed()
        self._fresh = None
        if not self.reloading or not changed:
            self._judged = {}
            return Verdict(changed=changed)
        self._judged = self._state(changed)
        fresh = self._fresh = self._resolver.refresh()
        return Verdict(fresh=fresh, files=[file for files in changed.values() for file in files], changed={})

    def stale(self, specs: Mapping[str, Spec], changed: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """Rows that run code which has changed, with the words for it."""
        return stale_rows(specs, changed)

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
        self._code.on_switch()
        try:
            await anyio.sleep_forever()
        finally:
            self._code.watchers -= 1
            self._code.on_switch()


def _stamp(file: str) -> tuple[str, int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return file, 0, 0
    return file, found.st_mtime_ns, found.st_size
