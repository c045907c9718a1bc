"""Importing one plugin: the module that is meant, the unit it belongs to, its plugin value, and who is to blame.

An error inside a module is told apart from the absence of the module, and is shown as itself with its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any

from dshd.kernel.errors import EXITS, describe
from dshd.kernel.plugin import Plugin

from .issues import nearest
from .modules import Unit, importing

_HERE = tuple(os.path.join(os.path.dirname(__file__), name) for name in ("imports.py", "modules.py", "resolve.py"))


class ResolveError(Exception):
    """Why `use` means no plugin: a code for the issue, words, and a hint."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        self.code = code
        self.hint = hint
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Target:
    """A module to import and perhaps an attribute of it; `path` if it was named by one."""

    module: str
    attribute: str | None = None
    path: str | None = None


def exists(module: str) -> bool:
    """Whether there is a top-level module of this name; imports nothing."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        return True


def unit_of(module: str, use: str) -> tuple[str, str | None]:
    """Root and path of the unit a module belongs to; no path if its source is not known or is dshd itself.

    A module of `dshd_plugins` is its own unit; of anything else the outermost package is. Raises `ResolveError`.
    """
    parts = module.split(".")
    if parts[0] == "dshd":
        return module, None
    depth = 2 if parts[0] == "dshd_plugins" else 1
    try:
        for length in range(depth, len(parts) + 1):
            root = ".".join(parts[:length])
            spec = importlib.util.find_spec(root)
            if spec is None:
                break
            if spec.origin is not None and spec.has_location and spec.origin.endswith(".py"):
                return root, os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
            if spec.submodule_search_locations is None:
                break
    except ValueError:
        pass
    except (Exception, *EXITS) as exc:
        raise failed(use, exc, None) from exc
    return module, None


def import_target(target: Target, use: str, unit: Unit | None) -> tuple[str, Plugin[Any]]:
    """Import the module that is meant; its plugin, and the name it has there. Raises `ResolveError`."""
    with importing(unit):
        try:
            module = importlib.import_module(target.module)
        except (Exception, *EXITS) as exc:
            if isinstance(exc, ModuleNotFoundError) and _is_absent(exc, target.module):
                above, _, last = target.module.rpartition(".")
                raise ResolveError("0311", f"there is no module {exc.name!r}", nearest(last, nearby(above))) from None
            raise failed(use, exc, unit) from exc
        return pick(module, target.attribute, use)


def failed(use: str, exc: BaseException, unit: Unit | None) -> ResolveError:
    """The error for a plugin whose code raised `exc` when it was imported."""
    return ResolveError("0313", f"plugin {use!r} cannot be imported: {blame(exc, None if unit is None else unit.path)}")


def _is_absent(exc: ModuleNotFoundError, module: str) -> bool:
    """Whether the module that was asked for, or a package it should be in, is what was not found."""
    asked = exc.name is not None and (module == exc.name or module.startswith(f"{exc.name}."))
    return asked and not list(_frames(exc))


def nearby(package: str) -> list[str]:
    """The modules of an imported package."""
    path = getattr(sys.modules.get(package), "__path__", None)
    return [] if path is None else [info.name for info in pkgutil.iter_modules(path)]


def blame(exc: BaseException, path: str | None) -> str:
    """The error as itself, with the last place in the plugin's own source, or else the last place there is."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{type(exc).__name__}: {exc.msg} ({exc.filename}:{exc.lineno})"
    frames = list(_frames(exc))
    return describe(exc) + _last(_own(frames, path) or frames)


def described(exc: BaseException, path: str | None) -> str:
    """The error as itself, with the last place in the source at `path` if it came by there."""
    return describe(exc) + _last(_own(_frames(exc), path))


def _own(frames: Iterable[traceback.FrameSummary], path: str | None) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if path is not None and _within(frame.filename, path)]


def _last(frames: list[traceback.FrameSummary]) -> str:
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in frames[-1:])


def _within(file: str, path: str) -> bool:
    return file == path or file.startswith(path + os.sep)


def _frames(exc: BaseException) -> Iterator[traceback.FrameSummary]:
    """The frames of an error that are not the machinery of importing."""
    for frame in traceback.extract_tb(exc.__traceback__):
        machinery = frame.filename.startswith("<frozen ") or frame.filename == importlib.__file__
        if not machinery and frame.filename not in _HERE:
            yield frame


def pick(module: ModuleType, attribute: str | None, use: str) -> tuple[str, Plugin[Any]]:
    """The plugin that `attribute` names, or the only one that the module defines. Raises `ResolveError`."""
    there = {name: value for name, value in vars(module).items() if isinstance(value, Plugin)}
    if attribute is not None:
        try:
            chosen: object = reduce(getattr, attribute.split("."), module)
        except AttributeError:
            hint = nearest(attribute, there) or _choices(there)
            raise ResolveError("0315", f"{module.__name__!r} has no {attribute!r}", hint) from None
        if not isinstance(chosen, Plugin):
            kind = type(chosen).__name__
            raise ResolveError("0315", f"{attribute!r} of {module.__name__!r} is no plugin but {kind}", _choices(there))
        return attribute, chosen
    own: dict[int, tuple[str, Plugin[Any]]] = {}
    for name, value in there.items():
        home = value.body.__module__
        if home == module.__name__ or home.startswith(f"{module.__name__}."):
            own.setdefault(id(value), (name, value))
    if len(own) == 1:
        return next(iter(own.values()))
    names = [name for name, _ in own.values()]
    if names:
        hint = f"say which one: {' or '.join(f'{use}:{name}' for name in names)}"
        raise ResolveError("0314", f"{use!r} has more than one plugin: {', '.join(names)}", hint)
    hint = f"it imports some: write {use}:{next(iter(there))}" if there else "make one with @plugin(…)"
    raise ResolveError("0314", f"{use!r} defines no plugin", hint)


def _choices(names: dict[str, Plugin[Any]]) -> str | None:
    return f"its plugins are: {', '.join(names)}" if names else None
