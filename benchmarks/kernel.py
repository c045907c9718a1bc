"""What the kernel costs, printed as a table: medians of seven runs with their minimum and maximum.

Run with `make bench`, or `python benchmarks/kernel.py [--markdown]`. Rates are per second, sizes and times as labelled;
the goals are those the project set itself, the last column is the framework that users would otherwise pick, measured
elsewhere on a machine of the same kind (see the README beside this file).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from dshd import Config, Context, Emit, Fiber, Plugin, ServiceKey, Waterfall, plugin
from dshd.testing.kernel import running

RUNS = 7
TOLD = Emit[int]("bench/told")
ASKED = Waterfall[int, int]("bench/asked")
KEY = ServiceKey[int]("bench")


@dataclass(frozen=True)
class Row:
    what: str
    unit: str
    figures: list[float]
    goal: str
    met: bool | None
    upstream: str

    @property
    def cells(self) -> list[str]:
        median = statistics.median(self.figures)
        met = "–" if self.met is None else "yes" if self.met else "NO"
        span = f"{show(min(self.figures))}–{show(max(self.figures))}"
        return [self.what, f"{show(median)} {self.unit}", span, self.goal, met, self.upstream]


def show(figure: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if figure >= size:
            return f"{figure / size:.2f}{suffix}" if figure < 100 * size else f"{figure / size:.0f}{suffix}"
    return f"{figure:.2f}"


def at_least(what: str, figures: list[float], goal: float, upstream: str) -> Row:
    if not goal:
        return Row(what, "/s", figures, "–", None, upstream)
    return Row(what, "/s", figures, f"≥ {show(goal)}/s", statistics.median(figures) >= goal, upstream)


def at_most(what: str, unit: str, figures: list[float], goal: float, upstream: str) -> Row:
    if goal == float("inf"):
        return Row(what, unit, figures, "–", None, upstream)
    return Row(what, unit, figures, f"≤ {goal:g} {unit}", statistics.median(figures) <= goal, upstream)


async def rate(work: Callable[[int], Awaitable[None]], count: int) -> list[float]:
    """Operations a second, once for each run; `work(n)` does `n` of them."""
    await work(max(1, count // 10))
    found = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        await work(count)
        found.append(count / (time.perf_counter() - begun))
    return found


def listening(count: int) -> Plugin[Config]:
    @plugin("listening")
    async def body(ctx: Context, config: Config) -> None:
        for _ in range(count):

            def hear(payload: int) -> None:
                pass

            async def answer(payload: int, inward: Callable[[], Awaitable[int]]) -> int:
                return await inward()

            ctx.on(TOLD, hear)
            ctx.on(ASKED, answer)

    return body


def trivial(
    number: int, key: ServiceKey[int] | None = None, needs: list[ServiceKey[int]] | None = None
) -> Plugin[Config]:
    """A plugin with a service, a listener and a cleanup."""
    mine = key or ServiceKey[int](f"service-{number}")

    @plugin(f"row-{number}", provides=[mine], inject=needs or [])
    async def body(ctx: Context, config: Config) -> None:
        ctx.provide(mine, number)
        ctx.on(TOLD, lambda payload: None)
        ctx.defer(lambda: None)

    return body


async def events() -> list[Row]:
    rows = []
    emits = {1: (2e6, "126k/s"), 10: (8e5, "57k/s"), 100: (1.2e5, "9.1k/s")}
    falls = {1: (4e5, "126k/s"), 10: (1e5, "55k/s"), 100: (1.2e4, "4.8k/s")}

    async def echo(payload: int) -> int:
        return payload

    falling = []
    for count in (1, 10, 100):
        async with running(listening(count)) as root:

            async def emit(times: int, root: Context = root) -> None:
                tell = root.emit
                for _ in range(times):
                    tell(TOLD, 1)

            async def ask(times: int, root: Context = root) -> None:
                fall = root.waterfall
                for _ in range(times):
                    await fall(ASKED, 1, echo)

            many = "1 listener" if count == 1 else f"{count} listeners"
            rows.append(at_least(f"emit to {many}", await rate(emit, 400_000 // count), *emits[count]))
            falling.append(at_least(f"waterfall through {many}", await rate(ask, 60_000 // count), *falls[count]))
    return rows + falling


async def services() -> list[Row]:
    @plugin("provider", provides=[KEY])
    async def provider(ctx: Context, config: Config) -> None:
        ctx.provide_each(KEY, lambda consumer: 1)

    seen: list[Context] = []

    @plugin("consumer", inject=[KEY])
    async def consumer(ctx: Context, config: Config) -> None:
        seen.append(ctx)

    async with running(provider, consumer):

        async def read(times: int) -> None:
            ctx = seen[0]
            for _ in range(times):
                ctx[KEY]

        async def lease(times: int) -> None:
            ctx = seen[0]
            for _ in range(times):
                with ctx.leased("bench") as view:
                    view[KEY]

        return [
            at_least("ctx[KEY]", await rate(read, 400_000), 4e6, "175k/s"),
            at_least("lease, one read, release", await rate(lease, 20_000), 1e5, "–"),
        ]


async def mount(root: Context, bodies: list[Plugin[Config]]) -> list[Fiber]:
    fibers = [root.plugin(body) for body in bodies]
    for fiber in fibers:
        await fiber.settled()
    return fibers


async def mounting() -> list[Row]:
    rows = []
    sizes: list[float] = []
    for count, upstream in ((10, ("2.1 ms", "1.2 ms")), (100, ("29 ms", "17 ms")), (1000, ("717 ms", "657 ms"))):
        opened, closed = [], []
        for run in range(RUNS + 1):
            bodies = [trivial(number) for number in range(count)]
            async with running() as root:
                gc.collect()
                begun = time.perf_counter()
                fibers = await mount(root, bodies)
                half = time.perf_counter()
                async with anyio.create_task_group() as tasks:
                    for fiber in fibers:
                        tasks.start_soon(fiber.dispose)
                if run:
                    opened.append((half - begun) * 1e3)
                    closed.append((time.perf_counter() - half) * 1e3)
        goal = 100 if count == 1000 else float("inf")
        rows.append(at_most(f"mount {count} plugins", "ms", opened, goal, upstream[0]))
        rows.append(at_most(f"dispose {count} plugins", "ms", closed, goal, upstream[1]))
    for _ in range(3):
        bodies = [trivial(number) for number in range(1000)]
        async with running() as root:
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            await mount(root, bodies)
            gc.collect()
            sizes.append((tracemalloc.get_traced_memory()[0] - before) / 1000 / 1024)
            tracemalloc.stop()
    rows.append(at_most("memory of a plugin, task included", "KB", sizes, 12, "8.8 KB"))
    return rows


async def replacing() -> list[Row]:
    rows = []
    commits: list[float] = []
    async with running() as root:
        fibers = await mount(root, [trivial(number) for number in range(200)])
        for _ in range(RUNS):
            stage = root.kernel.stage()
            incoming = [stage.replace(fiber) for fiber in fibers]
            await stage.settled()
            gc.collect()
            begun = time.perf_counter()
            stage.commit()
            commits.append((time.perf_counter() - begun) * 1e3)
            for fiber in fibers:
                await fiber.closing()
            fibers = incoming
    rows.append(at_most("commit of 200 replaced rows", "ms", commits, 1, "–"))

    for count, upstream in ((10, "1.4 ms"), (100, "12 ms"), (1000, "88 ms")):
        times: list[float] = []

        @plugin("late", inject=[KEY])
        async def late(ctx: Context, config: Config) -> None:
            ctx[KEY]

        async with running() as root:
            old = root.plugin(trivial(0, KEY))
            await old.settled()
            await mount(root, [late] * count)
            for _ in range(RUNS):
                gc.collect()
                begun = time.perf_counter()
                stage = root.kernel.stage()
                new = stage.replace(old)
                await stage.settled()
                stage.commit()
                times.append((time.perf_counter() - begun) * 1e3)
                await old.closing()
                old = new
        rows.append(at_most(f"provider replaced under {count} consumers", "ms", times, 1, upstream))

    chain: list[float] = []
    keys = [ServiceKey[int](f"link-{number}") for number in range(300)]
    async with running() as root:
        links = [trivial(n, keys[n], [keys[n - 1]] if n else []) for n in range(300)]
        fibers = await mount(root, links)
        for _ in range(RUNS):
            gc.collect()
            begun = time.perf_counter()
            stage = root.kernel.stage()
            incoming = [stage.replace(fiber) for fiber in fibers]
            await stage.settled()
            stage.commit()
            chain.append((time.perf_counter() - begun) * 1e3)
            for fiber in fibers:
                await fiber.closing()
            fibers = incoming
    rows.append(at_most("chain of 300 services replaced whole", "ms", chain, 30, "194 ms (head)"))
    return rows


async def main(*args: Any) -> list[Row]:
    return [*await events(), *await services(), *await mounting(), *await replacing()]


def table(rows: list[Row], markdown: bool) -> str:
    head = ["What", "Median", "Range", "Goal", "Met", "Upstream"]
    cells = [head, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    if markdown:
        lines = ["| " + " | ".join(line) + " |" for line in cells]
        lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    results = anyio.run(main)
    print(table(results, options.markdown))
    print(f"\nCPython {sys.version.split()[0]}, asyncio, medians of {RUNS} runs.")
