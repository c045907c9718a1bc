"""What the log says of an attempt."""

from __future__ import annotations

from typing import Any

import structlog

from dshd.loader.result import Outcome, Result

from .logging import LEVELS


def log_result(result: Result) -> None:
    """Say in the log how an attempt ended; failures at ERROR, each finding on a line of its own."""
    log = structlog.get_logger("dshd.reload").bind(attempt=result.attempt, trigger=result.trigger)
    for issue in result.issues:
        log.log(
            LEVELS[issue.severity], issue.message, code=issue.code, row=issue.row, file=issue.file, line=issue.line,
            col=issue.col, hint=issue.hint,
        )  # fmt: skip
    level = {
        Outcome.COMMITTED: "info", Outcome.NOOP: "info", Outcome.SUPERSEDED: "debug", Outcome.HELD: "warning",
        Outcome.CONFLICT: "warning",
    }.get(result.result, "error")  # fmt: skip
    valid = result.result is not Outcome.REJECTED  # the plan of what is not valid would mislead
    counts = {kind: rows for kind in ("add", "replace", "remove") if valid and (rows := result.plan.of(kind))}
    more: dict[str, Any] = {name: value for name, value in {
        "pending_restart": list(result.pending_restart), "held_reason": result.held_reason,
        "degraded": result.degraded, "confirm_by": result.confirm_by, "commit_ms": result.commit_ms,
    }.items() if value}  # fmt: skip
    log.log(LEVELS[level], f"reload {result.result.value}", result=result.result.value, **counts, **more)
