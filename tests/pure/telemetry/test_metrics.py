"""Counting steps: every series from the real scheduler's records, against values worked out by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.core.plan import FinishReason
from octavo.telemetry.histogram import ArrayHistogram
from octavo.telemetry.log_stats import StatsLine
from octavo.telemetry.metrics import Metrics
from scheduler_helpers import Bench, make_request


class Counted:
    """A scheduler whose step n takes place at second n, and the metrics that hear of it."""

    def __init__(self, blocks: int = 100, **config: object) -> None:
        self.bench = Bench(blocks, **config)  # type: ignore[arg-type]
        self.metrics = Metrics(
            prefix="test",
            model_name="m",
            max_num_seqs=4,
            num_blocks=blocks,
            block_size=4,
            caching=bool(config.get("caching")),
            cache_config={"block_size": "4"},
            shared_blocks=lambda: 0,
            lookups=self.bench.scheduler.allocator.lookups.totals,
            offload=self.bench.scheduler.allocator.offload,
        )
        self.now = 0.0

    def add(self, name: str, *args: object) -> None:
        self.bench.add(name, *args)
        self.metrics.added(name, self.now, self.now + 0.25)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            self.metrics.emit(self.bench.step(), self.now)

    def drain(self) -> None:
        while self.bench.scheduler.has_unfinished:
            self.steps(1)

    def values(self) -> dict[str, float]:
        """Sample name (with the label that tells series apart) -> value."""
        found = {}
        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            for sample in family.samples:
                extra = [value for key, value in sample.labels.items() if key not in ("model_name", "engine")]
                found[":".join([sample.name.removeprefix("test:"), *extra])] = sample.value
        return found


def test_one_request_from_arrival_to_end() -> None:
    counted = Counted()
    counted.add("a", 5, 4)
    counted.steps(4)
    values = counted.values()
    assert values["prompt_tokens_total"] == 5
    assert values["generation_tokens_total"] == 4
    assert values["request_success_total:length"] == 1
    assert values["time_to_first_token_seconds_sum"] == 1
    assert values["inter_token_latency_seconds_sum"] == values["inter_token_latency_seconds_count"] == 3
    assert values["e2e_request_latency_seconds_sum"] == 4
    assert values["request_decode_time_seconds_sum"] == 3
    assert values["request_time_per_output_token_seconds_sum"] == 1
    assert values["request_queue_time_seconds_sum"] == 0.25
    assert values["request_prefill_time_seconds_sum"] == 0.75
    assert values["request_prompt_tokens_sum"] == 5
    assert values["request_generation_tokens_sum"] == 4
    assert values["iteration_tokens_total_count"] == 4
    assert values["iteration_tokens_total_sum"] == 8
    assert values["kv_blocks:live"] == 0
    assert values["num_requests_running"] == 0


def test_blocks_and_running_requests_of_the_moment() -> None:
    counted = Counted(blocks=10)
    counted.add("a", 5, 9)
    counted.add("b", 3, 9)
    counted.steps(1)
    values = counted.values()
    assert [values[f"kv_blocks:{state}"] for state in ("live", "cached", "free")] == [3, 0, 7]
    assert values["kv_cache_usage_perc"] == pytest.approx(0.3)
    assert values["num_requests_running"] == 2
    assert values["kv_waste_tokens:internal"] == 4


def test_the_second_tier_beside_the_pool() -> None:
    counted = Counted(blocks=5, tier=8, caching=True, preemption="swap")
    counted.add("a", range(100, 109), 1)
    counted.drain()
    counted.add("b", 17, 1)
    counted.drain()
    values = counted.values()
    tier = [values[f"kv_offload_blocks:{state}"] for state in ("held", "spilled", "free")]
    assert tier == [0, 2, 6] and values["kv_offload_moves_total:spilled"] == 2
    counted.add("c", range(100, 109), 1)
    counted.drain()
    values = counted.values()
    assert values["prefix_cache_hits_total"] == values["kv_offload_hits_total"] == 8
    assert values["kv_offload_moves_total:found"] == 2
    counted.add("d", range(200, 207), 8)
    counted.add("e", range(300, 307), 8)
    counted.steps(3)
    values = counted.values()
    assert values["num_preemptions_total"] == 1 and values["preempted_tokens_total"] == 0
    assert values["kv_offload_blocks:held"] == values["kv_offload_moves_total:swapped_out"] == 2


def test_an_aborted_request_and_the_row_it_left() -> None:
    counted = Counted(rows=1)
    counted.add("a", 5, 50)
    counted.steps(3)
    counted.add("b", 2, 2)
    counted.bench.scheduler.finish("a", FinishReason.ABORT)
    counted.steps(2)
    values = counted.values()
    assert values["request_success_total:abort"] == 1
    assert values["request_success_total:length"] == 1
    assert values["time_to_first_token_seconds_count"] == 2
    assert values["inter_token_latency_seconds_count"] == 3, "two of a, one of b, none between them"


def test_a_preempted_request_counts_its_prompt_once_and_its_pause_as_a_token_time() -> None:
    counted = Counted(blocks=5, rows=2)
    counted.add("a", 8, 12)
    counted.add("b", 4, 8)
    counted.drain()
    values = counted.values()
    assert values["num_preemptions_total"] >= 1
    assert values["request_num_preemptions_sum"] == values["num_preemptions_total"]
    assert values["prompt_tokens_total"] == 12
    assert values["generation_tokens_total"] == 20
    assert values["preempted_tokens_total"] >= 4
    assert values["time_to_first_token_seconds_count"] == 2
    assert values["inter_token_latency_seconds_count"] == 18
    assert values["inter_token_latency_seconds_sum"] > 18


def test_prefix_hits_are_tokens() -> None:
    counted = Counted(caching=True)
    counted.add("a", 9, 2)
    counted.steps(2)
    counted.add("b", 9, 2)
    counted.steps(2)
    values = counted.values()
    assert values["prefix_cache_queries_total"] == values["prompt_tokens_total"] == 18
    assert values["prefix_cache_hits_total"] == values["prompt_tokens_cached_total"] == 8
    assert values["prefix_cache_missed_tokens_total:partial_block"] == 2, "the ninth token of each"
    assert values["prefix_cache_missed_tokens_total:not_found"] == 8, "two blocks that nobody had computed"


def test_misses_are_blocks_and_sum_to_all_that_were_not_found() -> None:
    counted = Counted(blocks=8, caching=True)
    for name, prompt in (("a", range(1, 14)), ("b", range(50, 71)), ("c", range(1, 14)), ("d", range(1, 12))):
        counted.add(name, prompt, 2)
        counted.drain()
    counted.bench.scheduler.add(make_request("e", 9, 2, prompt_logprobs=0))
    counted.drain()
    values = counted.values()
    misses = {name: value for name, value in values.items() if name.startswith("prefix_cache_misses_total")}
    assert values["prefix_cache_blocks_total"] == 3 + 5 + 3 + 2 + 2
    assert (
        sum(misses.values()) == values["prefix_cache_blocks_total"] - values["prefix_cache_block_hits_total"]
    )
    assert misses["prefix_cache_misses_total:not_looked_up"] == 2
    assert (
        misses["prefix_cache_misses_total:evicted"] >= 1
        and misses["prefix_cache_misses_total:never_seen"] == 8
    )
    assert values["prefix_cache_hits_total"] == 4 * values["prefix_cache_block_hits_total"]
    assert values["prefix_cache_hits_without_evictions_total"] == 12 + 8
    assert values["prefix_cache_hits_by_token_total"] == 12 + 10


def test_the_line_says_what_evictions_cost() -> None:
    counted = Counted(blocks=6, caching=True)
    line = StatsLine(counted.metrics, 0.0)
    for name, prompt in (("a", range(1, 14)), ("b", range(50, 71)), ("c", range(1, 14))):
        counted.add(name, prompt, 2)
        counted.drain()
    found = line.line(counted.now)
    assert found is not None
    assert found.endswith("(without evictions: 25.5%)"), "12 of 47 tokens"


def test_a_prompt_shorter_than_a_block_says_why_it_is_not_found() -> None:
    counted = Counted(caching=True)
    for name in ("a", "b"):
        counted.add(name, 4, 2)
        counted.steps(2)
    values = counted.values()
    assert values["prefix_cache_hits_total"] == 0
    assert (
        values["prefix_cache_missed_tokens_total:partial_block"] == values["prefix_cache_queries_total"] == 8
    )


def test_without_a_cache_nothing_is_looked_up() -> None:
    counted = Counted()
    counted.add("a", 9, 2)
    counted.steps(2)
    assert counted.values()["prefix_cache_missed_tokens_total:not_looked_up"] == 9
    assert counted.values()["prefix_cache_queries_total"] == 0


def test_rejections_by_reason() -> None:
    counted = Counted()
    counted.metrics.rejected("queue_full")
    assert counted.values()["admission_rejections_total:queue_full"] == 1
    assert counted.values()["admission_rejections_total:too_long"] == 0


def test_a_histogram_is_what_prometheus_defines() -> None:
    histogram = ArrayHistogram("h", "", (1.0, 2.0, 5.0))
    histogram.observe_many(np.array([0.5, 1.0, 1.5, 5.0, 6.0]))
    histogram.observe(2.0)
    assert histogram.count == 6
    assert histogram.sum == pytest.approx(16)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 4), ("5.0", 5), ("+Inf", 6)]


def test_the_periodic_line() -> None:
    counted = Counted(blocks=10)
    stats = StatsLine(counted.metrics, 0.0)
    assert stats.line(1.0) is None, "nothing has happened yet"
    counted.add("a", 6, 30)
    counted.steps(4)
    assert stats.line(11.0) == (
        "Engine 000: Avg prompt throughput: 0.6 tokens/s, Avg generation throughput: 0.4 tokens/s, "
        "Running: 1 reqs, Waiting: 0 reqs, CPU KV cache usage: 30.0%, Prefix cache hit rate: 0.0%"
    )
    counted.bench.scheduler.finish("a", FinishReason.ABORT)
    counted.steps(1)
    assert stats.line(21.0) is not None, "once more, to show that it ended"
    assert stats.line(31.0) is None


def test_preemptions_are_in_the_line_once_there_were_any() -> None:
    counted = Counted(blocks=5, rows=2)
    stats = StatsLine(counted.metrics, 0.0)
    counted.add("a", 8, 12)
    counted.add("b", 4, 8)
    counted.drain()
    line = stats.line(20.0)
    assert line is not None
    assert re.search(r"Waiting: 0 reqs, Preemptions: [1-9]\d*, CPU KV cache usage", line)
