"""The states of a fiber."""

from __future__ import annotations

from enum import Enum


class FiberState(Enum):
    """Where a fiber is in its life. FAILED waits for a change of config, code or dependency; DISPOSED is the end."""

    PENDING = "pending"
    LOADING = "loading"
    ACTIVE = "active"
    UNLOADING = "unloading"
    FAILED = "failed"
    DISPOSED = "disposed"
