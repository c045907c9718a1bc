"""The loader as plugins see it: `ctx.get(LOADER)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .code import Watcher
from .events import CodeWatcher
from .request import Request

if TYPE_CHECKING:
    from .reconciler import Reconciler


class LoaderFace:
    """What a plugin may ask. It changes nothing by itself: attempts run on the reconciler's own task."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    @property
    def generation(self) -> int:
        return self._reconciler.generation

    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            path: {"plugin": spec.plugin.name, "digest": spec.digest, "optional": spec.optional}
            for path, spec in self._reconciler.specs.items()
        }

    async def plan(self) -> Mapping[str, Any]:
        return (await self._reconciler.reload("plugin", plan_only=True)).as_json()

    def request_reload(self, *, allow_removals: bool = False, confirm_seconds: float | None = None) -> str:
        request = Request(trigger="plugin", allow_removals=allow_removals, confirm_seconds=confirm_seconds)
        self._reconciler.request(request)
        return request.id

    def history(self) -> Sequence[Mapping[str, Any]]:
        return list(self._reconciler.results)

    def code_watcher(self) -> CodeWatcher:
        return Watcher(self._reconciler.code)
