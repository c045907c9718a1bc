"""Hundreds of reloads leave nothing behind: what is there after the last was there after the fifth."""

import asyncio
import gc
import threading
import tracemalloc
from dataclasses import dataclass

import anyio
import pytest

from dshd import CONFIG_UPDATE
from dshd.loader.result import Outcome
from dshd.testing.loader import Site, open_files, row
from dshd.testing.parts import journal

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Held:
    tasks: int
    files: int
    fibers: int
    listeners: int
    entries: int
    effects: int
    slots: int


def held(site: Site) -> Held:
    kernel = site.root.kernel
    table = kernel.events.get(CONFIG_UPDATE.name)
    return Held(
        tasks=len(asyncio.all_tasks()),
        files=open_files(),
        fibers=len(kernel.fibers),
        listeners=0 if table is None else table.size,
        entries=len(site.things),
        effects=sum(len(fiber.effects) for fiber in kernel.fibers),
        slots=sum(len(fibers) for fibers in kernel.rows.values()),
    )


async def rests(site: Site, fibers: int) -> Held:
    """What is held when everything has come to rest, the disk included."""
    await site.until(lambda: len(site.root.kernel.fibers) == fibers and not site.reconciler.drains.fibers)
    seen = [held(site)]
    while len(seen) < 5 or len(set(seen[-5:])) > 1:
        await anyio.sleep(0.05)
        seen.append(held(site))
    return seen[-1]


async def repeat(site: Site, times: int, text: str) -> None:
    """Reload so often with `VALUE` in the text replaced; every fifth edit is one that fails."""
    site.write(text.replace("VALUE", "0"))
    with anyio.fail_after(240):
        async with site.running(watch="auto", rescan=3600.0):
            fibers = len(site.root.kernel.fibers)
            tracemalloc.start()
            try:
                for n in range(1, times + 1):
                    failing = n % 5 == 0
                    value = "0, start: fail" if failing else str(n)
                    result = await site.edit(text.replace("VALUE", value))
                    ended = (Outcome.PREPARE_FAILED,) if failing else (Outcome.COMMITTED, Outcome.NOOP)
                    assert result.result in ended  # the watch may have been quicker
                    assert n - failing in site.things.values()
                    if n == 25:  # the twenty results and generations that are kept are there
                        threads, before = threading.active_count(), await rests(site, fibers)
                        site.told.clear()
                        journal.clear()
                        gc.collect()
                        memory = tracemalloc.get_traced_memory()[0]
                site.told.clear()
                journal.clear()
                after = await rests(site, fibers)
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - memory
            finally:
                tracemalloc.stop()
            assert after == before
            assert threading.active_count() <= threads + 2, "workers that wait for work, as many as work at once"
            assert grown < 2_000_000, f"{grown} bytes more"


async def test_five_hundred_reloads_leave_everything_where_it_was(site: Site) -> None:
    rows = row("a", value="VALUE") + row("b", value=1) + row("d", "db") + row("l", "user") + row("k", "keeper")
    await repeat(site, 500, f"plugins:\n{rows}")


async def test_three_hundred_reloads_of_timers_listeners_and_children_leave_everything_where_it_was(site: Site) -> None:
    """DSP-14, RLD-22"""
    rows = row("t", "busy", value="VALUE") + row("u", "busy", value="VALUE") + row("p", value="VALUE")
    await repeat(site, 300, f"plugins:\n{rows}")
