"""A real kernel for the length of one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dshd.kernel.context import Context
from dshd.kernel.plugin import Plugin
from dshd.kernel.runtime import open_kernel
from dshd.kernel.watchdog import Backoff, Timing

QUICK = Timing(load=5, unload=5, grace=0.05, slow=2)
"""Deadlines that a test which hangs will meet soon, and a slow machine will not meet by accident."""


@asynccontextmanager
async def running(
    *plugins: Plugin[Any] | tuple[Plugin[Any], dict[str, Any]],
    timing: Timing = QUICK,
    backoff: Backoff | None = None,
    random: Callable[[], float] = lambda: 0.0,
    development: bool = False,
) -> AsyncIterator[Context]:
    """Run a kernel with `plugins` mounted and settled; a plugin may come as `(plugin, config)`.

    Gives the root context. A plugin that fails raises here; one that waits for a service does not. Back-off has no
    jitter, so that a test knows when something is re-opened.
    """
    async with open_kernel(
        timing=timing, backoff=backoff or Backoff(initial=0.01), development=development, random=random, stop_within=5
    ) as root:
        mounted = [root.plugin(*item) if isinstance(item, tuple) else root.plugin(item) for item in plugins]
        for fiber in mounted:
            await fiber.settled()
        yield root
