"""The scheduler with a prefix cache, and with allocators that share nothing."""

from __future__ import annotations

from octavo.core.events import Admitted, Blocked, Evicted, PoolState
from scheduler_helpers import Bench, events, ran


def test_a_second_turn_prefills_only_what_is_new() -> None:
    bench = Bench(20, caching=True)
    bench.lengths["one"] = 6
    bench.add("one", 7)
    records = bench.drain()
    answer = [int(token) for record in records for token in record.result.token_ids]
    bench.add("two", [*range(1, 8), *answer, 90, 91])
    record = bench.step()
    assert ran(record) == [("two", 12, 3)], "13 tokens, of which the last was never computed"
    assert events(record, Admitted)[0].cached_tokens == 12


def test_the_same_prompt_again_computes_one_token_at_least() -> None:
    bench = Bench(20, caching=True)
    bench.add("one", 8, 1)
    bench.drain()
    bench.add("two", 8, 1)
    assert ran(bench.step()) == [("two", 4, 4)]


def test_requests_in_the_same_step_do_not_hit_what_is_not_computed() -> None:
    bench = Bench(20, caching=True)
    bench.add("one", 9)
    bench.add("two", 9)
    assert ran(bench.step()) == [("one", 0, 9), ("two", 0, 9)]
    assert bench.scheduler.pool_state == PoolState(6, 0, 14)
    bench.add("three", 9)
    assert ran(bench.step())[-1] == ("three", 8, 1)


def test_salts_and_prompt_logprobs_do_not_hit() -> None:
    bench = Bench(40, caching=True)
    bench.add("one", 9, 1, salt="x")
    bench.drain()
    bench.add("same", 9, 1, salt="x")
    bench.add("other", 9, 1, salt="y")
    bench.add("none", 9, 1)
    bench.add("scored", 9, 1, salt="x", prompt_logprobs=1)
    assert [computed for _, computed, _ in ran(bench.step())] == [8, 0, 0, 0]


def test_evictions_are_told_once() -> None:
    bench = Bench(4, caching=True)
    bench.add("one", 8, 1)
    bench.drain()
    assert bench.scheduler.pool_state == PoolState(0, 2, 2)
    bench.add("two", range(50, 62), 1)
    record = bench.step()
    assert events(record, Evicted) == [Evicted((1,))]
    assert events(bench.step(), Evicted) == []


# ------------------------------------------------------------------ contiguous allocators


def test_external_fragmentation_blocks_the_head_and_is_told_in_every_step() -> None:
    bench = Bench(30, size=1, allocator="reserved")
    for name in "abc":
        bench.add(name, 5, 5)
    bench.lengths |= {"a": 1, "c": 1}
    bench.step()
    bench.add("d", 6, 5)
    record = bench.step()
    assert events(record, Blocked) == [Blocked("d", 11, 20, 2, 10)]
    assert record.waste.external == 20
    assert events(bench.step(), Blocked) == [Blocked("d", 11, 20, 2, 10)]
    assert bench.drain()[-1].pool == PoolState(0, 0, 30)


def test_the_wastes_of_a_step_are_those_while_it_ran() -> None:
    bench = Bench(64, size=1, allocator="pow2")
    bench.add("a", 5, 7)
    waste = bench.step().waste
    assert (waste.written, waste.reserved, waste.internal, waste.external) == (5, 7, 4, 0)
    paged = Bench(10)
    paged.add("a", 5, 1)
    record = paged.step()
    assert record.pool.live == 0, "it has left"
    assert (record.waste.written, record.waste.reserved, record.waste.internal) == (5, 0, 3)
