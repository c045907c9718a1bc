"""Rows in the live tree: the context of a row, and what an attempt opens, retires and finds there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber
from dshd.kernel.keys import ServiceKey
from dshd.kernel.stage import Stage

from .events import ENTRY_INIT, PATCH_CONTEXT, RowContext, RowOpening
from .spec import Spec


def row_context(root: Context, spec: Spec) -> Context:
    """The context a row is mounted through: its realms and intercept layers, its groups' included."""
    ctx = root
    for name, realm in spec.realms.items():
        ctx = ctx.isolate(ServiceKey[Any](name), realm)
    for name, layer in spec.layers:
        ctx = ctx.intercept(ServiceKey[Any](name), **layer)
    return ctx


def open_row(root: Context, spec: Spec, stage: Stage) -> Fiber:
    """Mount a row in a stage, after telling who listens."""
    root.emit(ENTRY_INIT, RowOpening(spec.path, spec.plugin.name))
    ctx = row_context(root, spec)
    root.emit(PATCH_CONTEXT, RowContext(spec.path, ctx))
    return ctx.plugin(spec.plugin, spec.config, id=spec.path, stage=stage, optional=spec.optional)


class LiveTree:
    """The rows that run: the spec each was opened from, and its fiber."""

    def __init__(self) -> None:
        self.specs: dict[str, Spec] = {}
        self._fibers: dict[str, Fiber] = {}

    def fiber(self, path: str) -> Fiber | None:
        """The fiber of a row, or what updates outside the loader have put in its place."""
        fiber = self._fibers.get(path)
        return None if fiber is None else fiber.latest

    def swap(self, opened: Mapping[str, tuple[Spec, Fiber]], removed: list[str]) -> None:
        """A commit has opened these rows and retired those."""
        for path in removed:
            self.specs.pop(path, None)
            self._fibers.pop(path, None)
        for path, (spec, fiber) in opened.items():
            self.specs[path] = spec
            self._fibers[path] = fiber
        self.specs = dict(sorted(self.specs.items()))

    def failing(self) -> list[tuple[str, Fiber]]:
        """Optional rows that have failed and would not open again by themselves."""
        found = [(path, self.fiber(path)) for path in self.specs]
        optional = [(path, fiber) for path, fiber in found if fiber is not None and fiber.optional]
        return [(path, fiber) for path, fiber in optional if fiber.error is not None and not fiber.crashes]
