"""What the process around the loader decides about reloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dshd.kernel.watchdog import Backoff

from .result import Result


def _nothing_waits(daemon: Mapping[str, Any], dry: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (), ()


@dataclass(frozen=True, kw_only=True)
class ReloadOptions:
    """What the process around the loader decides. Times in seconds."""

    watch: str = "auto"
    """`auto`, `poll` or `off`."""
    rescan: float = 10.0
    poll: float = 2.0
    read_timeout: float = 30.0
    """For reading and judging the sources, imports of plugins included."""
    drain_warn_after: float = 60.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=1, maximum=60))
    """For optional rows that fail to start."""
    apply_daemon: Callable[[Mapping[str, Any], bool], tuple[tuple[str, ...], tuple[str, ...]]] = _nothing_waits
    """Applies what of `daemon:` is live (unless dry); names what waits for a restart, and what does not."""
    on_result: Callable[[Result], None] = lambda result: None
    """Told of every result: for logs, metrics and the service manager."""
    on_begin: Callable[[str], None] = lambda trigger: None
    """Told when an attempt begins."""
