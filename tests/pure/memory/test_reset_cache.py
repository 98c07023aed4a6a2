"""Forgetting what was cached: the blocks are free, nothing is found, and what is live goes on."""

from __future__ import annotations

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import Admitted
from octavo.memory import make_allocator
from scheduler_helpers import Bench, events


def test_cached_blocks_become_free_and_nothing_is_found() -> None:
    bench = Bench(20, caching=True)
    bench.add("a", 9, 3)
    bench.drain()
    allocator = bench.scheduler.allocator
    assert allocator.state().cached == 2
    assert allocator.reset_cache() == 2
    assert allocator.state().cached == 0
    assert allocator.state().free == 20
    bench.add("b", 9, 3)
    assert events(bench.step(), Admitted)[0].cached_tokens == 0
    bench.drain()
    bench.add("c", 9, 3)
    assert events(bench.step(), Admitted)[0].cached_tokens == 8, "caching goes on"


def test_running_requests_go_on_and_their_old_blocks_are_found_no_more() -> None:
    bench = Bench(20, caching=True)
    bench.add("a", 9, 30)
    bench.steps(4)
    assert bench.scheduler.allocator.reset_cache() == 0
    bench.steps(6)  # audits after every step; blocks filled from now on are published again
    bench.add("b", 9, 3)
    assert events(bench.step(), Admitted)[0].cached_tokens == 0
    bench.drain()


def test_contiguous_allocators_cache_nothing() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=40)
    allocator = make_allocator(CacheConfig(20, 4, "reserved"), config.max_num_seqs, config.max_model_len)
    assert allocator.reset_cache() == 0
