"""Results and findings as people read them. The daemon renders these texts too, because it has the sources at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dshd.loader.issues import Issue, render
from dshd.loader.plan import Plan
from dshd.loader.result import Outcome, Result

from .redact import redacted_line

_SIGNS = {"add": "+", "replace": "~", "remove": "-", "pending_restart": "…"}
_SAID = {
    Outcome.COMMITTED: "committed",
    Outcome.NOOP: "nothing to do",
    Outcome.REJECTED: "rejected, nothing has changed",
    Outcome.HELD: "held, nothing has changed",
    Outcome.CONFLICT: "conflict, nothing has changed",
    Outcome.SUPERSEDED: "superseded by a newer attempt",
    Outcome.PREPARE_FAILED: "failed to start, nothing has changed",
    Outcome.ROLLED_BACK: "rolled back",
    Outcome.TIMED_OUT: "timed out",
}


def issues_text(issues: Iterable[Issue], texts: Mapping[str, str]) -> list[str]:
    """Each finding with its source line and a caret."""
    return [render(issue, source_line(issue, texts)) for issue in issues]


def source_line(issue: Issue, texts: Mapping[str, str]) -> str | None:
    if issue.file is None or issue.line is None or issue.file not in texts:
        return None
    lines = texts[issue.file].splitlines()
    return redacted_line(lines[issue.line - 1]) if 0 < issue.line <= len(lines) else None


def plan_text(plan: Plan) -> list[str]:
    """What would be done, one row a line; rows that stay are counted."""
    lines = []
    for action in plan.actions:
        if action.kind != "keep":
            why = ", ".join(action.changed) or action.reason or ""
            lines.append(f"{_SIGNS[action.kind]} {action.kind} {action.row}{f' ({why})' if why else ''}")
    return lines


def result_text(result: Result, texts: Mapping[str, str], running: str, *, plan_only: bool = False) -> str:
    """The whole answer to a reload; `running` is said at the end, whatever came of it."""
    lines = issues_text(result.issues, texts)
    if result.result is not Outcome.REJECTED:  # the plan of what is not valid would mislead
        lines += plan_text(result.plan)
    kept = len(result.plan.of("keep"))
    lines += [f"waits for a restart: {what}" for what in result.pending_restart]
    if result.plan.applied:
        lines.append(f"applied: {', '.join(result.plan.applied)}")
    if result.held_reason:
        lines.append(f"{'conflict' if result.result is Outcome.CONFLICT else 'held'}: {result.held_reason}")
    if result.draining:
        lines.append(f"still in use, until what uses it has ended: {', '.join(result.draining)}")
    if result.leaks:
        lines.append(f"left behind: {', '.join(result.leaks)}")
    if plan_only and result.result in (Outcome.NOOP, Outcome.HELD):
        changes = "no change" if result.plan.empty else f"{len(result.plan.actions) - kept} to change"
        lines.append(f"plan: {changes}, {kept} kept")
    else:
        took = f" in {sum(result.phases_ms.values()):.0f} ms" if result.phases_ms else ""
        ended, comma, rest = _SAID[result.result].partition(",")
        lines.append(f"{ended}{took}{comma}{rest}")
    if result.confirm_by:
        lines.append(f"rolls back unless `dshd confirm` comes by {result.confirm_by}")
    return "\n".join([*lines, running]) + "\n"


def rows_text(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def verdict(errors: int, warnings: int) -> str:
    """`2 errors, 1 warning`."""
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return ", ".join(parts) or "no findings"
