"""``Metrics``: a sink that counts, and the Prometheus series that the counts become when somebody asks.

A step costs a few array operations and nothing per token: the series are built at the scrape. Names are vLLM's under a
prefix of one's choice, so that an existing dashboard works unchanged; what is Octavo's own is marked below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from octavo.core.events import (
    Admitted,
    Evicted,
    Finished,
    Forked,
    PoolState,
    Preempted,
    RareEvent,
    Refused,
    StepRecord,
    Waste,
)
from octavo.core.plan import FinishReason
from octavo.memory import Offload
from octavo.memory.lookup import LookupTotals
from octavo.telemetry.histogram import (
    COUNTS,
    REQUEST_TIME,
    STEP_TOKENS,
    TOKEN_TIME,
    TOKENS,
    TTFT,
    ArrayHistogram,
)

REASONS = [reason.name.lower() for reason in FinishReason if reason != FinishReason.RUNNING]
MISSES = ("partial_block", "not_found", "not_looked_up")
"""Why prompt tokens were not found in the pool: behind the last full block that may be shared (at least one token is
computed); in a block that nobody has computed or that was evicted; or caching is off, or the request wants its prompt's
log-probabilities."""
REJECTIONS = ("too_long", "queue_full", "invalid", "shutting_down")
"""Why a request was not taken."""


@dataclass(slots=True)
class Totals:
    """Counts since the start; the periodic line takes differences."""

    prompt_tokens: int = 0
    """Of first admissions: each prompt counts once, however often it is preempted."""
    cached_tokens: int = 0
    """Prompt tokens that came from the pool."""
    computed_prompt_tokens: int = 0
    """Prompt tokens that went through the model, again after a preemption too: what the throughput line tells."""
    generation_tokens: int = 0
    preemptions: int = 0
    preempted_tokens: int = 0
    evicted_blocks: int = 0
    queries: int = 0
    """Prompt tokens that were looked up, each once."""
    hits: int = 0
    offload_hits: int = 0
    """Those of them that came from the second tier."""
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MISSES, 0))
    """Prompt tokens that were not found, each once; with ``hits`` they are all prompt tokens. Blocks, and why each of
    them was not found, are counted where they are looked up: ``memory.lookup.LookupTotals``."""
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTIONS, 0))


@dataclass(slots=True)
class _Times:
    """Seconds of one unfinished request, by the engine's clock; nan until it happened."""

    arrived: float
    admitted: float = np.nan
    first_token: float = np.nan
    last_token: float = np.nan
    """At its latest preemption."""
    row: int = 0


HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", TTFT),
    "inter_token_latency_seconds": ("Between two tokens of a request.", TOKEN_TIME),
    "request_time_per_output_token_seconds": ("Mean time between a request's tokens.", TOKEN_TIME),
    "e2e_request_latency_seconds": ("From arrival to the last token.", REQUEST_TIME),
    "request_queue_time_seconds": ("From arrival to the first admission.", REQUEST_TIME),
    "request_prefill_time_seconds": ("From the first admission to the first token.", REQUEST_TIME),
    "request_decode_time_seconds": ("From the first token to the last.", REQUEST_TIME),
    "request_prompt_tokens": ("Prompt tokens of a finished request.", TOKENS),
    "request_generation_tokens": ("Generated tokens of a finished request.", TOKENS),
    "request_num_preemptions": ("Preemptions of a finished request.", COUNTS),
    "iteration_tokens_total": ("Tokens of a step.", STEP_TOKENS),
}


class Metrics:
    """A Sink, an observer of additions, and a Prometheus collector with a registry of its own."""

    def __init__(
        self,
        *,
        prefix: str,
        model_name: str,
        max_num_seqs: int,
        num_blocks: int,
        block_size: int,
        caching: bool,
        cache_config: Mapping[str, str],
        shared_blocks: Callable[[], int],
        run_tokens: Callable[[], float] = lambda: 0.0,
        lookups: LookupTotals | None = None,
        offload: Offload | None = None,
    ) -> None:
        """``cache_config``: labels of ``cache_config_info``. ``shared_blocks``: table entries beyond one a block.
        ``run_tokens``: mean slots of a physical run; asked at a scrape.
        ``lookups``: the allocator's counts, which grow by themselves; ``offload``: its second tier."""
        self.totals = Totals()
        self.lookups = lookups or LookupTotals()
        self.offload = offload or Offload(num_blocks, 0)
        self.newest: StepRecord | None = None
        """The latest step; None before the first."""
        self.histograms = {name: ArrayHistogram(name, *rest) for name, rest in HISTOGRAMS.items()}
        self._prefix = f"{prefix}:"
        self._labels = {"model_name": model_name, "engine": "0"}
        self._empty_pool = PoolState(0, 0, num_blocks)
        self._block_size = block_size
        self._caching = caching
        self._cache_config = dict(cache_config)
        self._shared_blocks = shared_blocks
        self._run_tokens = run_tokens
        self._lock = threading.Lock()
        """The engine's thread counts, the loop's scrapes."""
        self._times: dict[str, _Times] = {}
        self._planned = 0.0
        """When the coming step is planned, as near as records tell: after the step before it and the newest request."""
        self._last_token = np.full(max_num_seqs, np.nan)
        """float64 [rows]: when the request in each row got its newest token; nan where it has none."""
        self._registry = CollectorRegistry()
        self._registry.register(self)

    # ------------------------------------------------------------------ counting

    def added(self, request_id: str, arrived: float, now: float) -> None:
        """``arrived``: when it was read; ``now``: when the engine took it. Seconds of the engine's clock."""
        with self._lock:
            self._times[request_id] = _Times(arrived)
            self._planned = max(self._planned, now)

    def rejected(self, reason: str) -> None:
        with self._lock:
            self.totals.rejected[reason] += 1

    def emit(self, record: StepRecord, now: float) -> None:
        with self._lock:
            self.newest = record
            # A request that this step ended got its last token in it; one that was ended before got none.
            stepped = set(record.request_ids) if record.finished.any() else ()
            ended = []
            for event in record.events:
                if isinstance(event, Finished) and event.request_id in stepped:
                    ended.append(event)
                else:
                    self._take(event, record, now)
            if record.plan.num_tokens:
                self._take_tokens(record, now)
            for event in ended:
                self._finish(event, now)
            self._planned = now

    def _take(self, event: RareEvent, record: StepRecord, now: float) -> None:
        if isinstance(event, Admitted):
            self._admit(event, record)
        elif isinstance(event, Forked):
            self._fork(event)
        elif isinstance(event, Preempted):
            self.totals.preemptions += 1
            self.totals.preempted_tokens += event.tokens_to_recompute
            times = self._times.get(event.request_id)
            if times is not None:
                times.last_token = float(self._last_token[times.row])
        elif isinstance(event, Evicted):
            self.totals.evicted_blocks += len(event.blocks)
        elif isinstance(event, Refused):
            self.totals.rejected["too_long"] += 1
        elif isinstance(event, Finished):
            self._finish(event, now)

    def _admit(self, event: Admitted, record: StepRecord) -> None:
        times = self._times.get(event.request_id)
        self._last_token[event.row] = np.nan if times is None else times.last_token
        if times is not None:
            times.row = event.row
        if event.resumed:
            return
        totals = self.totals
        totals.prompt_tokens += event.prompt_tokens
        totals.cached_tokens += event.cached_tokens
        if self._caching and self._looked_up(event, record):
            findable = (event.prompt_tokens - 1) // self._block_size * self._block_size
            totals.queries += event.prompt_tokens
            totals.hits += event.cached_tokens
            totals.offload_hits += event.loaded_tokens
            totals.misses["partial_block"] += event.prompt_tokens - findable
            totals.misses["not_found"] += findable - event.cached_tokens
        else:
            totals.misses["not_looked_up"] += event.prompt_tokens
        if times is not None:
            times.admitted = self._planned
            self.histograms["request_queue_time_seconds"].observe(self._planned - times.arrived)

    def _fork(self, event: Forked) -> None:
        """Its prompt was counted with its leader's."""
        self._last_token[event.row] = np.nan
        if event.request_id == event.parent_id:  # a beam of a search that is under way
            return
        times, leader = self._times.get(event.request_id), self._times.get(event.parent_id)
        if times is not None and leader is not None:
            times.row, times.admitted = event.row, leader.admitted
            self.histograms["request_queue_time_seconds"].observe(times.admitted - times.arrived)

    def _looked_up(self, event: Admitted, record: StepRecord) -> bool:
        """Whether its prompt was searched for: one that wants its prompt's log-probabilities computes all of it."""
        return all(
            start.request.sampling.prompt_logprobs is None
            for start in record.plan.started
            if start.request.request_id == event.request_id
        )

    def _take_tokens(self, record: StepRecord, now: float) -> None:
        plan, totals = record.plan, self.totals
        sampled = len(record.result.token_ids)
        decoding = int(np.count_nonzero(plan.samples & (plan.scheduled == 1)))
        totals.generation_tokens += sampled
        totals.computed_prompt_tokens += plan.num_tokens - decoding
        self.histograms["iteration_tokens_total"].observe(plan.num_tokens)
        if not sampled:
            return
        rows = plan.rows[plan.samples]
        since = now - self._last_token[rows]
        self._last_token[rows] = now
        new = np.isnan(since)
        if new.any():
            for position in np.flatnonzero(plan.samples)[new].tolist():
                self._first_token(record.request_ids[position], now)
            since = since[~new]
        self.histograms["inter_token_latency_seconds"].observe_many(since)

    def _first_token(self, request_id: str, now: float) -> None:
        times = self._times.get(request_id)
        if times is None or not np.isnan(times.first_token):
            return
        times.first_token = now
        self.histograms["time_to_first_token_seconds"].observe(now - times.arrived)
        self.histograms["request_prefill_time_seconds"].observe(now - times.admitted)

    def _finish(self, event: Finished, now: float) -> None:
        self.totals.finished[event.reason.name.lower()] += 1
        histograms = self.histograms
        histograms["request_prompt_tokens"].observe(event.prompt_tokens)
        histograms["request_generation_tokens"].observe(event.output_tokens)
        histograms["request_num_preemptions"].observe(event.preemptions)
        times = self._times.pop(event.request_id, None)
        if times is None:
            return
        histograms["e2e_request_latency_seconds"].observe(now - times.arrived)
        if np.isnan(times.first_token):
            return
        decode = now - times.first_token
        histograms["request_decode_time_seconds"].observe(decode)
        if event.output_tokens > 1:
            histograms["request_time_per_output_token_seconds"].observe(decode / (event.output_tokens - 1))

    # ------------------------------------------------------------------ telling

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The series of this moment."""
        with self._lock:
            yield from self._gauges()
            yield from self._counters()
            for histogram in self.histograms.values():
                family = HistogramMetricFamily(
                    self._prefix + histogram.name, histogram.documentation, labels=list(self._labels)
                )
                family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.sum)
                yield family

    def describe(self) -> list[Metric]:
        """None: registering must not collect."""
        return []

    def _gauges(self) -> Iterator[Metric]:
        record = self.newest
        pool = self._empty_pool if record is None else record.pool
        waste = Waste(0, 0, 0, 0) if record is None else record.waste
        yield self._gauge("kv_cache_usage_perc", "Live blocks over all, 0 to 1.", pool.live / pool.total)
        yield self._gauge(
            "num_requests_running", "Requests that hold a row.", record.running if record else 0
        )
        yield self._gauge("num_requests_waiting", "Requests in the queue.", record.waiting if record else 0)
        states = {"live": pool.live, "cached": pool.cached, "free": pool.free}
        yield self._by("kv_blocks", "Blocks of the pool; they sum to it.", "state", states, GaugeMetricFamily)
        held = pool.live > 0
        kinds = {"reserved": waste.reserved, "internal": waste.internal, "external": waste.external}
        kinds = {kind: tokens if held else 0 for kind, tokens in kinds.items()}
        help_line = "Held slots that hold no token, and free ones that the queue's head cannot use."
        yield self._by("kv_waste_tokens", help_line, "kind", kinds, GaugeMetricFamily)
        yield self._gauge(
            "kv_shared_blocks_saved", "Table entries beyond one a live block.", self._shared_blocks()
        )
        help_line = "Mean slots of running requests that lie in a row in memory."
        yield self._gauge("kv_run_tokens", help_line, self._run_tokens())
        tier = self.offload.tier.state()
        kinds = {"held": tier.held, "spilled": tier.spilled, "free": tier.free}
        help_line = "Blocks of the second tier; they sum to it."
        yield self._by("kv_offload_blocks", help_line, "state", kinds, GaugeMetricFamily)
        names = [*self._labels, *self._cache_config]
        family = GaugeMetricFamily(f"{self._prefix}cache_config_info", "Settings of the pool.", labels=names)
        family.add_metric([*self._labels.values(), *self._cache_config.values()], 1)
        yield family

    def _counters(self) -> Iterator[Metric]:
        totals, lookups = self.totals, self.lookups
        plain = {
            "num_preemptions": ("Rows taken from running requests.", totals.preemptions),
            "preempted_tokens": ("Tokens whose keys and values preemptions lost.", totals.preempted_tokens),
            "evicted_blocks": ("Cached blocks that lost their content.", totals.evicted_blocks),
            "prefix_cache_queries": ("Prompt tokens looked up in the pool, each once.", totals.queries),
            "prefix_cache_hits": ("Prompt tokens found in the pool.", totals.hits),
            "kv_offload_hits": ("Those found in the second tier.", totals.offload_hits),
            "prefix_cache_blocks": ("Full blocks of prompts.", lookups.blocks),
            "prefix_cache_waits": (
                "Requests that were held back until a running one had computed their prefix.",
                lookups.waits,
            ),
            "prefix_cache_block_hits": ("Full blocks of prompts found in the pool.", lookups.hits),
            "prefix_cache_hits_without_evictions": (
                "Prompt tokens that a pool without limit would have found, as far as is remembered.",
                lookups.tokens_hit_ever,
            ),
            "prefix_cache_hits_by_token": (
                "Prompt tokens that such a pool with blocks of one token would have found.",
                lookups.tokens_hit_ever_by_token,
            ),
            "prompt_tokens": ("Prompt tokens of admitted requests, each once.", totals.prompt_tokens),
            "prompt_tokens_cached": ("Those that came from the pool.", totals.cached_tokens),
            "generation_tokens": ("Generated tokens.", totals.generation_tokens),
        }
        for name, (help_line, value) in plain.items():
            family = CounterMetricFamily(self._prefix + name, help_line, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
        misses = "Full blocks of prompts that were not found in the pool, by reason."
        yield self._by("prefix_cache_misses", misses, "reason", lookups.misses, CounterMetricFamily)
        missed = "Prompt tokens not found in the pool, each once, by reason."
        yield self._by("prefix_cache_missed_tokens", missed, "reason", totals.misses, CounterMetricFamily)
        moved = "Blocks that went to the second tier or came from it, were lost or found damaged, by kind."
        yield self._by("kv_offload_moves", moved, "kind", asdict(self.offload.totals), CounterMetricFamily)
        ends = "Requests that ended, by reason."
        yield self._by("request_success", ends, "finished_reason", totals.finished, CounterMetricFamily)
        refusals = "Requests that were not taken, by reason."
        yield self._by("admission_rejections", refusals, "reason", totals.rejected, CounterMetricFamily)

    def _gauge(self, name: str, help_line: str, value: float) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, help_line, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by(
        self,
        name: str,
        help_line: str,
        label: str,
        values: Mapping[str, int],
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    ) -> Metric:
        """One series for each value of one more label."""
        family = kind(self._prefix + name, help_line, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family
