"""The report's figures against a slow recount, request by request, over runs that preempt, abort, refuse and share."""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np
import pytest

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import Admitted, Finished, Preempted, StepRecord
from octavo.core.plan import FinishReason
from octavo.scheduling.audit import audit
from octavo.simulation.arrivals import gamma_arrivals
from octavo.simulation.driver import Simulation, build_scheduler
from octavo.simulation.lengths import independent, uniform
from octavo.simulation.random_numbers import stream
from octavo.simulation.report import Report, Slo
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import OpenLoop, SharedPrefix, synthetic

SLO = Slo(ttft=4.0, tpot=0.6, e2e=30.0)


class Cost:
    def price(self, plan) -> float:  # type: ignore[no-untyped-def]
        return 0.2 + 0.01 * plan.num_tokens if len(plan.rows) else 0.0


class Recount:
    """Keeps everything, looks at one token at a time."""

    def __init__(self) -> None:
        self.arrival: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self.e2e: list[float] = []
        self.count: Counter[str] = Counter()
        self.busy: list[tuple[float, StepRecord]] = []
        self._previous = 0.0

    def arrived(self, simulated: SimulatedRequest) -> None:
        self.arrival[simulated.request_id] = simulated.arrival_s

    def emit(self, record: StepRecord, now: float) -> None:
        for position in np.flatnonzero(record.plan.samples).tolist():
            self.first.setdefault(record.request_ids[position], now)
        for event in record.events:
            self.count[type(event).__name__] += 1
            if isinstance(event, Preempted):
                self.count["recomputed"] += event.tokens_to_recompute
                self.count["discarded"] += event.tokens_discarded
            if isinstance(event, Admitted):
                if event.resumed:
                    self.count["recomputed"] -= event.cached_tokens
                else:
                    self.count["cached"] += event.cached_tokens
                    self.count["admitted"] += event.prompt_tokens
            if isinstance(event, Finished):
                self._finish(event, now)
        if len(record.plan.rows):
            self.busy.append((now - self._previous, record))
        self._previous = now

    def _finish(self, event: Finished, now: float) -> None:
        if event.reason is FinishReason.ABORT:
            self.count["aborted"] += 1
            return
        arrival, first = self.arrival[event.request_id], self.first[event.request_id]
        tpot = (now - first) / max(event.output_tokens - 1, 1)
        self.ttft.append(first - arrival)
        self.e2e.append(now - arrival)
        if event.output_tokens > 1:
            self.tpot.append(tpot)
        self.count["output"] += event.output_tokens
        self.count["good"] += first - arrival <= 4.0 and tpot <= 0.6 and now - arrival <= 30.0


RUNS = [
    (CacheConfig(30, 4), SchedulerConfig(6, 32, 100)),
    (CacheConfig(30, 4), SchedulerConfig(6, 7, 100, order="admission_first", watermark_blocks=2)),
    (CacheConfig(28, 4, enable_prefix_caching=False), SchedulerConfig(8, None, 100, preemption="restart")),
    (CacheConfig(300, 1, allocator="reserved"), SchedulerConfig(6, 64, 100)),
    (CacheConfig(64, 4, allocator="pow2", placement="buddy"), SchedulerConfig(6, 16, 100)),
]


def run(cache: CacheConfig, limits: SchedulerConfig) -> tuple[Simulation, Report, Recount]:
    recount = Recount()
    lengths = independent(uniform(1, 45), uniform(1, 40), stream(1, "lengths"))
    arrivals = gamma_arrivals(0.25, 0.5, stream(1, "arrivals"))
    requests = synthetic(arrivals, lengths, limit=80, prefix=SharedPrefix(9), max_tokens=30)
    scheduler = build_scheduler(cache, limits)
    report = Report(
        max_num_seqs=limits.max_num_seqs, slots_total=cache.num_blocks * cache.block_size, slo=SLO
    )
    simulation = Simulation(
        OpenLoop(requests), scheduler, Cost(), report=report, sinks=[recount], on_arrival=recount.arrived
    )

    def look(simulation: Simulation) -> None:
        audit(scheduler)
        if simulation.steps % 17 == 0:  # a client goes away, running or waiting
            simulation.engine.finish(f"request-{simulation.arrivals - 1}")

    simulation.run(progress=look)
    return simulation, report, recount


@pytest.mark.parametrize(("cache", "limits"), RUNS)
def test_every_figure_is_recounted(cache: CacheConfig, limits: SchedulerConfig) -> None:
    simulation, report, recount = run(cache, limits)
    counts, count = report.counts, recount.count
    assert simulation.arrivals == 80
    assert counts.requests_finished == len(recount.ttft) == report.ttft.count
    assert counts.requests_aborted == count["aborted"] > 0
    assert counts.requests_refused == count["Refused"]
    assert counts.requests_finished + counts.requests_aborted + counts.requests_refused == 80
    assert counts.preemptions == count["Preempted"]
    assert (cache.allocator == "paged") == (counts.preemptions > 0)
    assert (counts.tokens_recomputed, counts.tokens_discarded) == (count["recomputed"], count["discarded"])
    assert (counts.admitted_tokens, counts.cached_tokens) == (count["admitted"], count["cached"])
    assert counts.output_tokens == count["output"]
    assert counts.requests_within_slo == count["good"]
    assert 0 < counts.requests_within_slo < counts.requests_finished
    for found, values in (
        (report.ttft, recount.ttft),
        (report.tpot, recount.tpot),
        (report.e2e, recount.e2e),
    ):
        assert found.mean == pytest.approx(statistics.fmean(values))
        for percent in (50, 95, 99):
            assert found.percentile(percent) == pytest.approx(np.percentile(values, percent))


@pytest.mark.parametrize(("cache", "limits"), RUNS)
def test_every_mean_over_time_is_recounted(cache: CacheConfig, limits: SchedulerConfig) -> None:
    _, report, recount = run(cache, limits)
    total = sum(seconds for seconds, _ in recount.busy)

    def mean(values: list[float]) -> float:
        weighted = zip(recount.busy, values, strict=True)
        return sum(seconds * value for (seconds, _), value in weighted) / total

    records = [record for _, record in recount.busy]
    assert report.counts.steps == len(records)
    assert report.mean_over_time("running") == pytest.approx(
        mean([len(record.request_ids) for record in records])
    )
    assert report.mean_over_time("waiting") == pytest.approx(mean([record.waiting for record in records]))
    slots = cache.num_blocks * cache.block_size
    for name in ("written", "reserved", "internal", "external"):
        values = [float(getattr(record.waste, name)) for record in records]
        assert report.mean_over_time(name) == pytest.approx(mean(values))
        assert report.mean_over_steps(name) == pytest.approx(statistics.fmean(values))
        assert report.shares()[name] == pytest.approx(mean(values) / slots)
    assert sum(report.shares().values()) == pytest.approx(1.0)


def test_equal_seeds_give_equal_reports() -> None:
    first, second = (run(*RUNS[0])[1].as_dict() for _ in range(2))
    assert first == second
