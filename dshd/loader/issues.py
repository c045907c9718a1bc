"""Findings: what is wrong with a configuration, where, and what to do about it.

A finding has a stable code. `E01xx` syntax, `E02xx` structure, `E03xx` references and plugins, `E04xx` row schemas,
`E05xx` the service graph, `E06xx` the attempt itself; warnings have the same numbers with a `W`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a source: file as the user names it, line and column counted from 1. Column 0: the whole line."""

    file: str
    line: int
    col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"


@dataclass(frozen=True, kw_only=True)
class Issue:
    """One finding. `row` is a row path or a dotted place in the file; `via` the files that included this one."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    hint: str | None = None
    row: str | None = None
    file: str | None = None
    line: int | None = None
    col: int | None = None
    via: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.code, "severity": self.severity, "row": self.row, "file": self.file, "line": self.line,
            "col": self.col, "message": self.message, "hint": self.hint,
        }  # fmt: skip


class Issues:
    """A collector: every step adds to it and goes on as far as it can."""

    def __init__(self, found: Iterable[Issue] = ()) -> None:
        self._found: dict[Issue, None] = dict.fromkeys(found)

    def error(
        self, code: str, message: str, mark: Mark | None = None, *, row: str | None = None, hint: str | None = None
    ) -> None:
        """Add an error; `code` is four digits, such as `0312`."""
        self._add("error", f"E{code}", message, mark, row, hint)

    def warn(
        self, code: str, message: str, mark: Mark | None = None, *, row: str | None = None, hint: str | None = None
    ) -> None:
        self._add("warning", f"W{code}", message, mark, row, hint)

    def _add(
        self,
        severity: Literal["error", "warning"],
        code: str,
        message: str,
        mark: Mark | None,
        row: str | None,
        hint: str | None,
    ) -> None:
        place = {} if mark is None else {"file": mark.file, "line": mark.line, "col": mark.col}
        issue = Issue(code=code, severity=severity, message=message, hint=hint, row=row, **place)  # type: ignore[arg-type]
        self._found[issue] = None

    def add(self, issues: Iterable[Issue]) -> None:
        self._found.update(dict.fromkeys(issues))

    def via(self, chain: dict[str, tuple[str, ...]]) -> None:
        """Give every finding the chain of files through which its file was included."""
        self._found = {
            (replace(i, via=chain[i.file]) if i.file in chain and not i.via else i): None for i in self._found
        }

    @property
    def errors(self) -> list[Issue]:
        return [issue for issue in self._found if issue.severity == "error"]

    @property
    def warnings(self) -> list[Issue]:
        return [issue for issue in self._found if issue.severity == "warning"]

    def __iter__(self) -> Iterator[Issue]:
        """By file, line and column; errors before warnings in one place."""
        return iter(sorted(self._found, key=lambda i: (i.file or "", i.line or 0, i.col or 0, i.severity, i.code)))

    def __len__(self) -> int:
        return len(self._found)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """`did you mean 'x'?` for the nearest known word, or `None`."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else None


def render(issue: Issue, line: str | None = None) -> str:
    """The text form: place, code and message, the source line with a caret, and the hint."""
    place = "" if issue.file is None else f"{issue.file}:{issue.line}:{issue.col}: "
    where = f" ({issue.row})" if issue.row else ""
    parts = [f"{place}{issue.severity} {issue.code}: {issue.message}{where}"]
    if line is not None and issue.col:
        shown = line.rstrip("\n").replace("\t", " ")
        parts += [f"    {shown}", f"    {' ' * (issue.col - 1)}^"]
    if issue.via:
        parts.append(f"    included from {' ← '.join(issue.via)}")
    if issue.hint:
        parts.append(f"    {issue.hint}")
    return "\n".join(parts)
