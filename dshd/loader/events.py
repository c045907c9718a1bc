"""What plugins may hear of reloads and ask of the loader. Imports only the kernel; `dshd` re-exports these names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dshd.kernel.context import Context
from dshd.kernel.events import Emit
from dshd.kernel.keys import ServiceKey


@dataclass(frozen=True, slots=True)
class RowOpening:
    """A row is about to be opened: its path and the name of its plugin."""

    row: str
    plugin: str


@dataclass(frozen=True, slots=True)
class RowContext:
    """The context of a row, with its realms and intercept layers, has been derived for a new instance."""

    row: str
    context: Context


@dataclass(frozen=True, slots=True)
class RowClosing:
    """A row is taken down or replaced by a reload."""

    row: str
    replaced: bool


@dataclass(frozen=True, slots=True)
class ConfigUpdated:
    """A generation was committed. `plan` is the plan as in the result type."""

    generation: int
    attempt: str
    trigger: str
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SourceChanged:
    """A watched source file of a plugin changed on disk."""

    file: str


@dataclass(frozen=True, slots=True)
class CodeReloaded:
    """Rows are being replaced because their code changed."""

    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exiting:
    """The process is ending on a signal."""

    signal: str


ENTRY_INIT = Emit[RowOpening]("loader/entry-init")
PATCH_CONTEXT = Emit[RowContext]("loader/patch-context")
PARTIAL_DISPOSE = Emit[RowClosing]("loader/partial-dispose")
CONFIG_UPDATE = Emit[ConfigUpdated]("loader/config-update")
HMR_CHANGE = Emit[SourceChanged]("hmr/change")
HMR_RELOAD = Emit[CodeReloaded]("hmr/reload")
EXIT = Emit[Exiting]("exit")


class Loader(Protocol):
    """The booted loader as plugins see it."""

    @property
    def generation(self) -> int:
        """The number of the tree that runs; 0 before the first commit."""

    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows that run, by path: plugin, digest, optional."""

    async def plan(self) -> Mapping[str, Any]:
        """The result of an attempt that stops before it touches anything."""

    def request_reload(self, *, allow_removals: bool = False, confirm_seconds: float | None = None) -> str:
        """Ask for an attempt; return its id at once. It runs on the loader's own task."""

    def history(self) -> Sequence[Mapping[str, Any]]:
        """The results of past attempts, the newest first."""

    def code_watcher(self) -> CodeWatcher:
        """The watcher of plugin sources, for the row that turns code reload on."""


class CodeWatcher(Protocol):
    """The watcher of plugin sources, present only while it runs."""

    def files(self) -> Sequence[str]:
        """The source files it watches, and the directories of packages."""

    async def run(self) -> None:
        """Have changed code reloaded until cancelled; for the row that provides it."""


LOADER = ServiceKey[Loader]("loader")
HMR = ServiceKey[CodeWatcher]("hmr")
