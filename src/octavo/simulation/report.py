"""``Report``: a sink that turns step records into what people ask of a run.

Memory grows with neither steps nor requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np

from octavo.core.errors import ConfigError
from octavo.core.events import (
    Admitted,
    Blocked,
    Damaged,
    Evicted,
    Finished,
    Preempted,
    Refused,
    StepRecord,
    Waste,
)
from octavo.core.plan import FinishReason
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.streaming import Quantiles, Series

TAKEN = ("written", "reserved", "internal", "external")


@dataclass(frozen=True, slots=True)
class Slo:
    """What an answer must keep to count as good. None asks for nothing. Seconds (or steps)."""

    ttft: float | None = None
    """Time to the first token."""
    tpot: float | None = None
    """Mean time per output token after the first."""
    e2e: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2e"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"the SLO's {name} is {value}; it must be above 0", param=f"--slo-{name}")

    def kept(self, ttft: float, tpot: float, e2e: float) -> bool:
        return (
            (self.ttft is None or ttft <= self.ttft)
            and (self.tpot is None or tpot <= self.tpot)
            and (self.e2e is None or e2e <= self.e2e)
        )


@dataclass(slots=True)
class _InFlight:
    arrival: float
    first_token: float = math.nan
    row: int | None = None


@dataclass(slots=True)
class Counts:
    """Plain sums over the measured steps."""

    steps: int = 0
    requests_finished: int = 0
    requests_refused: int = 0
    requests_aborted: int = 0
    requests_within_slo: int = 0
    prompt_tokens: int = 0
    """Of the finished requests."""
    output_tokens: int = 0
    """Of the finished requests."""
    sampled_tokens: int = 0
    """Tokens generated in these steps, the later discarded ones too."""
    scheduled_tokens: int = 0
    """Tokens computed: prompts, outputs and whatever was computed again."""
    preemptions: int = 0
    tokens_discarded: int = 0
    tokens_recomputed: int = 0
    """Tokens whose keys and values a preemption lost, less the ones that a resumed request found in the cache."""
    tokens_swapped: int = 0
    """Tokens whose keys and values preemptions took to the second tier."""
    blocked_steps: int = 0
    """Steps in which external fragmentation kept the queue's head out."""
    blocks_evicted: int = 0
    admitted_tokens: int = 0
    """Prompt tokens at first admission."""
    cached_tokens: int = 0
    """Those of them that were found in the pool."""


class Report:
    """Counts from ``warmup_steps`` steps on; requests that arrived before count only in what those steps do."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        slots_total: int,
        slo: Slo | None = None,
        warmup_steps: int = 0,
        series_width: float = 1.0,
    ) -> None:
        self.slots_total = slots_total
        self.slo = slo
        self.counts = Counts()
        self.ttft = Quantiles()
        self.tpot = Quantiles()
        self.e2e = Quantiles()
        self.normalized_latency = Quantiles()
        """End-to-end time over output tokens."""
        self.series = Series((*TAKEN, "free", "running", "waiting"), width=series_width)
        self.first_blocked: Blocked | None = None
        """The first time that external fragmentation kept a request out (in the warm-up, too)."""
        self.blocked_steps_all = 0
        """``counts.blocked_steps`` with the warm-up."""
        self.started_at: float | None = None
        self.ended_at = 0.0
        self._warmup = warmup_steps
        self._seen = 0
        self._previous = 0.0
        self._step_sums = [0] * len(self.series.names)
        """Sums over the measured steps of what ``series`` shows."""
        self._in_flight: dict[str, _InFlight] = {}
        self._owner: list[_InFlight | None] = [None] * max_num_seqs
        self._first = np.full(max_num_seqs, np.nan)
        """float64 [rows]: when each row's request gave its first token."""
        self._swapped: set[str] = set()
        """Requests that were swapped out when they were last preempted."""
        self._silent: set[int] = set()
        """Rows without a first token."""
        self.empty_slots_max = 0
        """Most slots held and not written in any measured step."""

    # ------------------------------------------------------------------ what the driver tells

    def arrived(self, simulated: SimulatedRequest) -> None:
        for request_id, _, _ in simulated.scripts():
            self._in_flight[request_id] = _InFlight(simulated.arrival_s)

    def refused(self, simulated: SimulatedRequest) -> None:
        for request_id, _, _ in simulated.scripts():
            del self._in_flight[request_id]

    # ------------------------------------------------------------------ sink

    def emit(self, record: StepRecord, now: float) -> None:
        measuring = self._seen >= self._warmup
        if measuring and self.started_at is None:
            self.started_at = self._previous
        ends = self._before_the_step(record, measuring)
        for start in record.plan.started:
            self._take_row(start.request.request_id, start.row)
        if self._silent:
            rows = record.plan.rows[record.plan.samples]
            first = self._first[rows]
            self._first[rows] = np.where(np.isnan(first), now, first)
            self._silent.difference_update(rows.tolist())
        for event in ends:
            self._finish(event, now, measuring)
        if measuring:
            self._count_step(record, now)
        self._previous = now
        if len(record.plan.rows):
            self._seen += 1

    def _before_the_step(self, record: StepRecord, measuring: bool) -> list[Finished]:
        """Count the rare events; returns the ends, which come last."""
        counts, ends = self.counts, []
        blocked = False
        for event in record.events:
            if isinstance(event, Finished):
                ends.append(event)
                continue
            if isinstance(event, Preempted):
                self._leave_row(event.request_id)
                self._swapped.discard(event.request_id)
                if event.tokens_swapped:
                    self._swapped.add(event.request_id)
            elif isinstance(event, Blocked):
                blocked = True
                self.first_blocked = self.first_blocked or event
            if not measuring:
                continue
            if isinstance(event, Admitted):
                if event.resumed:
                    if event.request_id not in self._swapped:
                        counts.tokens_recomputed -= event.cached_tokens
                else:
                    counts.admitted_tokens += event.prompt_tokens
                    counts.cached_tokens += event.cached_tokens
            elif isinstance(event, Preempted):
                counts.preemptions += 1
                counts.tokens_discarded += event.tokens_discarded
                counts.tokens_recomputed += event.tokens_to_recompute
                counts.tokens_swapped += event.tokens_swapped
            elif isinstance(event, Damaged):
                counts.tokens_recomputed += event.tokens
            elif isinstance(event, Refused):
                counts.requests_refused += 1
            elif isinstance(event, Evicted):
                counts.blocks_evicted += len(event.blocks)
        self.blocked_steps_all += blocked
        counts.blocked_steps += blocked and measuring
        return ends

    def _leave_row(self, request_id: str) -> None:
        state = self._in_flight[request_id]
        if state.row is not None:
            state.first_token = float(self._first[state.row])
            self._owner[state.row] = None
            self._silent.discard(state.row)
            state.row = None

    def _take_row(self, request_id: str, row: int) -> None:
        owner = self._owner[row]
        if owner is not None:  # ended before this step, and its end is told further down
            owner.first_token = float(self._first[row])
            owner.row = None
        state = self._in_flight[request_id]
        state.row = row
        self._owner[row] = state
        self._first[row] = state.first_token
        if math.isnan(state.first_token):
            self._silent.add(row)

    def _finish(self, event: Finished, now: float, measuring: bool) -> None:
        state = self._in_flight.pop(event.request_id)
        first = state.first_token
        if state.row is not None:
            first = float(self._first[state.row])
            self._owner[state.row] = None
            self._silent.discard(state.row)
        if not measuring:
            return
        counts = self.counts
        if event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            counts.requests_aborted += 1
            return
        counts.requests_finished += 1
        counts.prompt_tokens += event.prompt_tokens
        counts.output_tokens += event.output_tokens
        ttft, e2e = first - state.arrival, now - state.arrival
        tpot = (now - first) / (event.output_tokens - 1) if event.output_tokens > 1 else 0.0
        self.ttft.add(ttft)
        self.e2e.add(e2e)
        self.normalized_latency.add(e2e / max(event.output_tokens, 1))
        if event.output_tokens > 1:
            self.tpot.add(tpot)
        if self.slo is not None:
            counts.requests_within_slo += self.slo.kept(ttft, tpot, e2e)

    def _count_step(self, record: StepRecord, now: float) -> None:
        if not len(record.plan.rows):
            return
        self.ended_at = now
        counts, waste = self.counts, record.waste
        counts.steps += 1
        counts.sampled_tokens += len(record.result.token_ids)
        counts.scheduled_tokens += record.plan.num_tokens
        free = self.slots_total - waste.written - waste.reserved - waste.internal - waste.external
        running = len(record.request_ids)
        values = (*_taken(waste), free, running, record.waiting)
        seconds = now - self._previous
        self.series.add(now, values, seconds)
        self._step_sums = list(map(add, self._step_sums, values))
        self.empty_slots_max = max(self.empty_slots_max, waste.reserved + waste.internal)

    # ------------------------------------------------------------------ figures

    @property
    def duration(self) -> float:
        """From the first measured step's start to the last one's end, idle time included."""
        return self.ended_at - (self.started_at or 0.0)

    def mean_over_steps(self, name: str) -> float:
        """Mean over the measured steps of written, reserved, internal, external, free (slots), running or waiting."""
        return self._step_sums[self.series.names.index(name)] / max(self.counts.steps, 1)

    def mean_over_time(self, name: str) -> float:
        """The same over the time in which steps ran."""
        return self.series.mean(name)

    @property
    def effective(self) -> float:
        """Slots that hold a token, as a share of the held ones, over the measured steps."""
        written, reserved, internal = (self.mean_over_steps(name) for name in TAKEN[:3])
        held = written + reserved + internal
        return written / held if held else 0.0

    def shares(self) -> dict[str, float]:
        """Where the pool goes over time: written, reserved, internal, external and free, summing to 1."""
        return {name: self.mean_over_time(name) / self.slots_total for name in (*TAKEN, "free")}

    @property
    def delivered_tokens(self) -> int:
        """Generated and not discarded later in the measured steps."""
        return self.counts.sampled_tokens - self.counts.tokens_discarded

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found in the pool at first admission, as a share."""
        return self.counts.cached_tokens / self.counts.admitted_tokens if self.counts.admitted_tokens else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for ``--json``. Times are in the clock's unit."""
        counts, duration = self.counts, self.duration
        per_second = 1.0 / duration if duration > 0 else 0.0
        found: dict[str, Any] = {
            "duration": duration,
            **{name: getattr(counts, name) for name in Counts.__slots__},
            "delivered_tokens": self.delivered_tokens,
            "requests_per_second": counts.requests_finished * per_second,
            "output_tokens_per_second": self.delivered_tokens * per_second,
            "prompt_tokens_per_second": counts.prompt_tokens * per_second,
            "ttft": self.ttft.summary(),
            "tpot": self.tpot.summary(),
            "e2e": self.e2e.summary(),
            "normalized_latency": self.normalized_latency.summary(),
            "hit_rate": self.hit_rate,
            "effective": self.effective,
            "running_mean": self.mean_over_time("running"),
            "waiting_mean": self.mean_over_time("waiting"),
            "pool_shares": self.shares(),
            "series": self.series.rows(),
        }
        if self.slo is not None:
            ended = counts.requests_finished + counts.requests_refused + counts.requests_aborted
            found["goodput_per_second"] = counts.requests_within_slo * per_second
            found["slo_attainment"] = counts.requests_within_slo / ended if ended else 0.0
        return found


def _taken(waste: Waste) -> tuple[int, int, int, int]:
    return waste.written, waste.reserved, waste.internal, waste.external
