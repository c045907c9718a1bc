"""The daemon's JSON as people read it in a terminal. Light: runs in client verbs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

_CODES = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_STATES = {
    "active": "green", "running": "green", "failed": "red", "pending": "yellow", "loading": "yellow",
    "starting": "yellow", "degraded": "red", "stopping": "yellow", "unloading": "yellow",
}  # fmt: skip


class Painter:
    """Colours for one stream, or none."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._on = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str | None) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._on and colour else text

    def state(self, name: str, width: int = 0) -> str:
        return self(f"{name:<{width}}", _STATES.get(name))

    def result(self, text: str) -> str:
        """Colour the words of findings in a text that the daemon has rendered."""
        if not self._on:
            return text
        text = re.sub(r"\berror (E\d{4})", lambda m: self(m[0], "red"), text)
        return re.sub(r"\bwarning (W\d{4})", lambda m: self(m[0], "yellow"), text)


def status_text(status: Mapping[str, Any], paint: Painter) -> str:
    """`dshd status`: what runs, what does not and why, what waits, who holds what."""
    rows = status["rows"]
    states = ", ".join(f"{count} {state}" for state, count in sorted(rows["by_state"].items())) or "none"
    lines = [
        f"dshd {status['version']}  {paint.state(status['state'])}  generation {status['generation']}  "
        f"pid {status['pid']}  up {span(status['uptime_seconds'])}",
        f"config   {', '.join(status['config'])}  (watch: {status['watch']})",
        f"state    {status['state_dir']}",
        f"socket   {', '.join([status['socket'], *status['listeners']])}",
        f"rows     {states}",
    ]
    if status["degraded"]:
        lines.append(paint(f"degraded: {status['degraded']}", "red"))
    if status["confirm_by"]:
        lines.append(paint(f"rolls back unless `dshd confirm` comes by {status['confirm_by']}", "yellow"))
    last = status["last_reload"]
    if last:
        counts = ((last["errors"], "error"), (last["warnings"], "warning"))
        found = "".join(f", {count} {word}{'s' * (count != 1)}" for count, word in counts if count)
        lines.append(f"reload   {last['result']} ({last['trigger']}, {last['time']}{found})")
        lines += [f"         {_issue(issue)}" for issue in last["issues"] if issue["severity"] == "error"]
    lines += [paint(f"waits for a restart: {what}", "yellow") for what in status["pending_restart"]]
    for row in rows["not_active"]:
        lines.append(f"  {paint.state(row['state'], 9)} {row['row']}{_why(row)}")
    lines += [f"  in use    {row['row']}{_why(row)}" for row in status["draining"]]
    lines += [f"  lease     {lease['who']}, {span(lease['age_seconds'])}" for lease in status["leases"]]
    lines += [paint(f"  abandoned {name}; a restart ends it", "red") for name in status["abandoned"]]
    return "\n".join(lines) + "\n"


def tree_text(tree: Mapping[str, Any], paint: Painter, *, effects: bool) -> str:
    """`dshd tree`: rows, what is mounted in them, and with `effects` what each contributes."""
    lines = [f"generation {tree['generation']}"]
    for row in tree["rows"]:
        lines += _branch(row, paint, "", effects)
    return "\n".join(lines) + "\n"


def row_text(row: Mapping[str, Any], paint: Painter) -> str:
    """`dshd tree PATH`: one row with everything about it."""
    lines = list(_branch(row, paint, "", effects=True))
    for name in ("use", "declared_at", "code", "digest"):
        if row.get(name):
            lines.append(f"  {name.replace('_', ' ')}: {row[name]}")
    if row.get("needs"):
        lines.append(f"  needs: {', '.join(row['needs'])}")
    for use in row.get("used_by", ()):
        users = ", ".join(use["consumers"]) or "nobody"
        lines.append(f"  provides {use['service']} to {users}")
    return "\n".join(lines) + "\n"


def _branch(row: Mapping[str, Any], paint: Painter, indent: str, effects: bool) -> Iterator[str]:
    notes = [word for word in ("staged", "draining", "abandoned") if row.get(word)]
    optional = ["optional"] if row.get("optional") else []
    plugin = row["plugin"] if row["plugin"] != row["row"].rpartition("/")[2] else ""
    words = "  ".join(filter(None, [plugin, *optional, *notes]))
    yield f"{indent}{paint.state(row['state'], 9)} {row['row']}{'  ' + paint(words, 'dim') if words else ''}{_why(row)}"
    if effects:
        for effect in row["effects"]:
            site = f"  ({effect['site']})" if effect["site"] else ""
            yield f"{indent}          · {effect['label']}{site}"
    for child in row["children"]:
        yield from _branch(child, paint, indent + "  ", effects)


def _why(row: Mapping[str, Any]) -> str:
    return f"  {row['reason']}" if row.get("reason") else ""


def _issue(issue: Mapping[str, Any]) -> str:
    place = f"{issue['file']}:{issue['line']}:{issue['col']}: " if issue["file"] else ""
    return f"{place}{issue['code']} {issue['message']}"


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`, `5 d 2 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
