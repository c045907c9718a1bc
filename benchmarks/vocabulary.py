"""What the vocabulary costs, as a table: medians of seven runs with their minimum and maximum.

Run with `python benchmarks/vocabulary.py [--markdown]`. The goals are those the project set itself. A measurement is a
function that does its work once and returns the figure, and a line of `MEASUREMENTS`.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import vocabulary_session, vocabulary_tools
from benchmarks.kernel import RUNS, Row, at_least, at_most, table
from dshd import Aborter, Config, Context, Signal, plugin
from dshd.capabilities.llm import (
    LLM,
    BlockAssembler,
    Finish,
    GenerateOptions,
    LlmAdapter,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    UsageReport,
)
from dshd.capabilities.llm.stream import check_chunk
from dshd.capabilities.values import CallId, user_message
from dshd.testing.kernel import running
from dshd_plugins.llm import llm


@dataclass(frozen=True)
class Measurement:
    what: str
    unit: str
    """`/s` for rates, of which more is better; otherwise a time, of which less is."""
    goal: float
    """Infinite for a time that has none."""
    work: Callable[[], float | Awaitable[float]]
    """Does it once and returns the figure in the unit; called once more to warm up."""

    async def row(self) -> Row:
        figures = []
        for run in range(RUNS + 1):
            gc.collect()
            figure = self.work()
            figure = figure if isinstance(figure, (int, float)) else await figure
            if run:
                figures.append(figure)
        if self.unit == "/s":
            return at_least(self.what, figures, self.goal, "–")
        return at_most(self.what, self.unit, figures, self.goal, "–")


# -- assembling chunks

DELTAS: list[StreamChunk] = [TextDelta(0, "word ") for _ in range(200)]
MIXED: list[StreamChunk] = [
    *[TextDelta(0, "word ") for _ in range(100)],
    *[ToolCallDelta(1 + n % 2, '"k": 1, ', CallId(f"id-{n % 2}"), "read") for n in range(100)],
    UsageReport(TokenUsage(input_tokens=1, output_tokens=1)),
]


def feeding(chunks: Sequence[StreamChunk], times: int = 1) -> Callable[[], float]:
    """Microseconds to assemble the chunks, the result included."""

    def work() -> float:
        begun = time.perf_counter()
        assembler = BlockAssembler()
        for _ in range(times):
            for chunk in chunks:
                assembler.feed(chunk)
        assembler.result()
        return (time.perf_counter() - begun) * 1e6

    return work


def checking() -> float:
    begun = time.perf_counter()
    for chunk in DELTAS:
        check_chunk(chunk, "a chunk")
    return (time.perf_counter() - begun) * 1e6


def interrupting() -> float:
    assembler = BlockAssembler()
    for chunk in DELTAS:
        assembler.feed(chunk)
    begun = time.perf_counter()
    assembler.interrupted()
    return (time.perf_counter() - begun) * 1e6


ASSEMBLER = [
    Measurement("assemble 200 text deltas", "µs", 200, feeding(DELTAS)),
    Measurement("assemble 200 deltas of text and two calls", "µs", 200, feeding(MIXED)),
    Measurement("assemble 100,000 text deltas", "µs", 100_000, feeding(DELTAS, 500)),
    Measurement("what reached the user of 200 deltas", "µs", 50, interrupting),
    Measurement("check 200 text deltas", "µs", 200, checking),
]


# -- through the service


class Fast(LlmAdapter):
    """An adapter that costs nothing itself."""

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for chunk in DELTAS * 50:
            yield chunk
        yield Finish(Stop())


@plugin("fast", inject=[LLM])
async def fast(ctx: Context, config: Config) -> None:
    ctx[LLM].register_adapter(["fast"], Fast())


async def streaming(signal: Signal | None) -> float:
    """Microseconds a chunk."""
    async with running(llm, fast) as root:
        service = root.get(LLM)
        assert service is not None
        request = GenerateOptions(provider="fast", model="any", messages=[user_message("hi")], signal=signal)
        begun = time.perf_counter()
        count = 0
        async with service.stream(request) as chunks:
            async for _ in chunks:
                count += 1
        return (time.perf_counter() - begun) / count * 1e6


SERVICE = [
    Measurement("a chunk through the llm service", "µs", 10, lambda: streaming(None)),
    Measurement("the same under a signal", "µs", 10, lambda: streaming(Aborter().signal)),
]

MEASUREMENTS = [*ASSEMBLER, *SERVICE]


async def main() -> list[Row]:
    rows = [await measurement.row() for measurement in MEASUREMENTS]
    return [*await vocabulary_session.measurements(), *rows, *await vocabulary_tools.measurements()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    print(table(anyio.run(main), options.markdown))
    print(f"\nCPython {sys.version.split()[0]}, asyncio, medians of {RUNS} runs.")
