"""`dshd explain`: what counts for a row or for the process, and which line of which file said so."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dshd.loader.issues import nearest
from dshd.loader.node import Node
from dshd.loader.row import Row
from dshd.loader.spec import Desired, Spec

from .offline import complain, desired
from .places import NoConfigError
from .redact import MASK, is_secret, redacted
from .settings import LIVE, PREFIX, RESTART, DaemonSettings, OverrideError, effective, overrides

NO_SUCH = 2

Leaf = tuple[str, Any, str]
"""A dotted place, the value as it may be shown, and where it comes from."""


def explain(args: Namespace) -> int:
    """Print one row, one field of it, or `daemon`, leaf by leaf."""
    try:
        found = desired(args, os.environ, credentials=False)
    except NoConfigError as exc:
        return complain(str(exc))
    path, _, field = args.path.strip("/").partition(".")
    if path == "daemon":
        try:
            leaves = list(_daemon(found))
        except OverrideError as exc:
            return complain(str(exc))
        head: dict[str, Any] = {"row": "daemon"}
    else:
        row = found.tree.rows.get(path)
        if row is None:
            hint = nearest(path, [*found.tree.rows, "daemon"])
            return complain(f"there is no row {path!r}; {hint or '`dshd tree` lists what runs'}", NO_SUCH)
        spec = found.specs.get(path)
        leaves, head = list(_row(row, spec)), _head(row, spec)
    if field:
        leaves = [leaf for leaf in leaves if leaf[0] == field or leaf[0].startswith((f"{field}.", f"{field}["))]
        if not leaves:
            return complain(f"{path!r} has no field {field!r}; without it, all are listed", NO_SUCH)
    _show(args, head, leaves)
    return 0


def _show(args: Namespace, head: dict[str, Any], leaves: list[Leaf]) -> None:
    if args.json:
        fields = [{"field": name, "value": value, "origin": origin} for name, value, origin in leaves]
        print(json.dumps({**head, "fields": fields}, ensure_ascii=False, default=str))
        return
    print("  ".join([head["row"], *(f"{key}: {value}" for key, value in head.items() if key != "row" and value)]))
    shown = [(name, _text(value), origin) for name, value, origin in leaves]
    widths = [min(40, max((len(leaf[i]) for leaf in shown), default=0)) for i in (0, 1)]
    for name, value, origin in shown:
        print(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _head(row: Row, spec: Spec | None) -> dict[str, Any]:
    return {
        "row": row.path,
        "use": row.use,
        "declared at": str(row.mark),
        "code": None if spec is None else spec.code,
        "runs": "yes" if spec is not None else "no: it is disabled, or invalid (see `dshd check`)",
    }


def _row(row: Row, spec: Spec | None) -> Iterator[Leaf]:
    yield "use", row.use, str(row.use_mark)
    if row.optional:
        yield "optional", True, str(row.mark)
    if row.disabled is not None:
        yield "disabled", row.disabled.plain(), str(row.disabled.mark)
    for name, mark in row.inject:
        yield "inject", name, str(mark)
    for name, realm, asked in row.isolate:
        yield f"isolate.{name}", realm or "its own", f"asked for by {asked}"
    for name, layer in row.intercept:
        yield from _leaves(layer, f"intercept.{name}")
    yield from _leaves(row.config, "config")
    if spec is not None:
        yield from _defaults(spec.config, row.config, "config")


def _leaves(node: Node, base: str) -> Iterator[Leaf]:
    for path, leaf in node.leaves():
        place = base + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        name = next((part for part in reversed(path) if isinstance(part, str)), base)
        if path or leaf.value not in ({}, None):
            yield place, redacted(name, leaf.plain()), str(leaf.mark)


def _defaults(config: BaseModel, node: Node, base: str) -> Iterator[Leaf]:
    """Fields that no file sets, with what the plugin takes for them."""
    for name in type(config).model_fields:
        given = node.get(name)
        value = getattr(config, name, None)
        if given is None:
            shown = config.model_dump(mode="json", include={name}).get(name)
            yield f"{base}.{name}", MASK if shown and is_secret(name) else redacted(name, shown), "default"
        elif isinstance(value, BaseModel):
            yield from _defaults(value, given, f"{base}.{name}")


def _daemon(found: Desired) -> Iterator[Leaf]:
    section = found.tree.daemon
    over = overrides(os.environ)
    written = {} if section is None else {k: v for k, v in found.daemon.items() if k in DaemonSettings.model_fields}
    settings = effective(written, over)
    for name in DaemonSettings.model_fields:
        set_here = section.get(name) if section is not None else None
        origin = "default" if section is None or set_here is None else str(section.at((name,)))
        if name in over:
            variable = f"{PREFIX}{name.upper()}"
            origin = f"{variable}, which shadows {origin}" if set_here is not None else variable
        when = f"live {LIVE[name]}" if name in LIVE else f"at restart: {RESTART[name]}"
        yield name, getattr(settings, name), f"{origin}  ({when})"
