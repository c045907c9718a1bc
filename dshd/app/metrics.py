"""What Prometheus reads. Counts are kept here as plain numbers; everything else is read from the tree at each scrape.

No label holds an id: labels are triggers, outcomes, phases and states, which are few and known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dshd.kernel.states import FiberState
from dshd.loader.result import Outcome, Result

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Histogram:
    """Counts by upper bound in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        total, found = 0, []
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


@dataclass
class Reloads:
    """What is counted about attempts since the process began."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    phases: dict[str, Histogram] = field(default_factory=dict)
    leaks: int = 0
    successful: bool | None = None
    succeeded_at: float = 0.0
    _known_leaks: set[str] = field(default_factory=set)

    def count(self, result: Result, now: float) -> None:
        """An attempt has ended; `now` in seconds since the epoch."""
        self.outcomes[result.trigger, result.result.value] += 1
        for phase, ms in result.phases_ms.items():
            self.phases.setdefault(phase, Histogram()).add(ms / 1e3)
        self.leaks += len(set(result.leaks) - self._known_leaks)
        self._known_leaks |= set(result.leaks)
        if result.result in (Outcome.COMMITTED, Outcome.NOOP):
            self.successful, self.succeeded_at = result.degraded is None, now
        elif result.result is not Outcome.SUPERSEDED:
            self.successful = False


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The tree at the time of a scrape."""

    generation: int
    states: dict[FiberState, int]
    generations_live: int
    effects: int
    drain_oldest: float


class Collector:
    """Makes metrics of the counts and of one moment; see `render`."""

    def __init__(self, reloads: Reloads, moment: Moment) -> None:
        self._reloads = reloads
        self._moment = moment

    def collect(self) -> Iterator[Metric]:
        reloads, moment = self._reloads, self._moment
        yield _gauge(
            "dshd_config_last_reload_successful",
            "Whether the last attempt left what runs equal to what the files say.",
            float(bool(reloads.successful)),
        )
        yield _gauge(
            "dshd_config_last_reload_success_timestamp_seconds", "When that was so last.", reloads.succeeded_at
        )
        yield _gauge("dshd_config_generation", "The number of the tree that runs.", moment.generation)
        yield _gauge("dshd_generations_live", "Generations of which something is still open.", moment.generations_live)
        yield _gauge("dshd_effects", "Contributions of all plugins.", moment.effects)
        yield _gauge(
            "dshd_drain_oldest_seconds", "How long the oldest replaced instance has been in use.", moment.drain_oldest
        )
        yield _family("Gauge", "dshd_rows", "Rows by state.", ["state"], (
            ([state.value], moment.states.get(state, 0)) for state in FiberState
        ))  # fmt: skip
        yield _family("Counter", "dshd_reloads", "Attempts by trigger and result.", ["trigger", "result"], (
            (list(labels), count) for labels, count in sorted(reloads.outcomes.items())
        ))  # fmt: skip
        yield _family(
            "Counter", "dshd_effect_leaks", "Contributions that could not be undone.", [], [([], reloads.leaks)]
        )
        yield self._phases()

    def _phases(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        metric = HistogramMetricFamily(
            "dshd_reload_phase_seconds", "Time an attempt spent in a phase.", labels=["phase"]
        )
        for phase, found in sorted(self._reloads.phases.items()):
            metric.add_metric([phase], buckets=found.cumulative(), sum_value=found.sum)
        return metric


def _gauge(name: str, text: str, value: float) -> Metric:
    return _family("Gauge", name, text, [], [([], value)])


def _family(kind: str, name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> Metric:
    from prometheus_client import core

    family: Any = getattr(core, f"{kind}MetricFamily")(name, text, labels=labels)
    for found, value in values:
        family.add_metric(found, value)
    metric: Metric = family
    return metric


def render(reloads: Reloads, moment: Moment) -> bytes:
    """Everything as Prometheus' text. Imports its library at the first scrape only: call it in a thread."""
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(Collector(reloads, moment))
    text: bytes = generate_latest(registry)
    return text
