from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from octavo.core.events import Admitted, Damaged, Finished, PoolState, Preempted, Spilled, TierState
from octavo.core.plan import FinishReason
from octavo.scheduling.audit import audit
from scheduler_helpers import Bench, events, ran


class TierBench(Bench):
    def __init__(self, blocks: int, tier: int, *, caching: bool = False, **config: object) -> None:
        super().__init__(blocks, caching=caching, tier=tier, preemption="swap", **config)

    @property
    def tier(self) -> TierState:
        return self.scheduler.allocator.offload.tier.state()


def crowded(tier: int, **config: object) -> TierBench:
    """b is preempted in the third step, with 8 tokens computed."""
    bench = TierBench(5, tier, **config)
    bench.add("a", 7, 8)
    bench.add("b", 7, 8)
    return bench


def test_a_victim_goes_to_the_tier_and_returns_without_computing_anything_again() -> None:
    bench = crowded(8)
    third = bench.steps(3)
    (event,) = events(third, Preempted)
    assert event == Preempted("b", "b", 0, 0, 2, PoolState(5, 0, 0), PoolState(3, 0, 2), 8)
    assert third.plan.transfers.tolist() == [[2, 5], [3, 6]] and not third.plan.transfer_names
    assert bench.tier == TierState(2, 0, 6)
    records = bench.drain()
    at, resumed = next((i, record) for i, record in enumerate(records) if events(record, Admitted))
    (admitted,) = events(resumed, Admitted)
    assert (admitted.cached_tokens, admitted.loaded_tokens, admitted.resumed) == (8, 8, True)
    assert len(resumed.plan.transfers) == 2 and "b" not in resumed.request_ids
    assert ran(records[at + 1]) == [("b", 8, 1)], "it goes on with the token that it had"
    assert bench.tier == TierState(0, 0, 8)
    ended = {event.request_id: event for record in records for event in events(record, Finished)}
    assert ended["b"].output_tokens == 8 and ended["b"].cached_tokens == 0


def test_a_tier_without_room_makes_it_recompute() -> None:
    bench = crowded(1)
    (event,) = events(bench.steps(3), Preempted)
    assert (event.tokens_to_recompute, event.tokens_swapped) == (8, 0)
    bench.drain()
    assert bench.tier == TierState(0, 0, 1)


def test_a_copy_that_takes_longer_than_its_tokens_is_not_made() -> None:
    for cost, swapped in ((4.0, 8), (4.1, 0)):  # two blocks for eight tokens
        (event,) = events(crowded(8, swap_tokens_per_block=cost).steps(3), Preempted)
        assert event.tokens_swapped == swapped


def test_whoever_ends_while_waiting_gives_the_tier_back() -> None:
    bench = crowded(8)
    bench.steps(3)
    assert bench.scheduler.finish("b", FinishReason.ABORT)
    assert bench.tier == TierState(0, 0, 8)
    audit(bench.scheduler)
    bench.drain()


def test_blocks_that_the_pool_still_has_are_not_copied_back() -> None:
    bench = crowded(8, caching=True)
    third = bench.steps(3)
    assert events(third, Preempted)[0].tokens_swapped == 8
    resumed = bench.step()
    (admitted,) = events(resumed, Admitted)
    assert (admitted.cached_tokens, admitted.loaded_tokens) == (8, 0)
    assert ran(resumed) == [("a", 9, 1), ("b", 8, 1)] and not len(resumed.plan.transfers)
    bench.drain()


def spilled(tier: int = 8) -> TierBench:
    """The two full blocks of a's prompt were evicted by b."""
    bench = TierBench(5, tier, caching=True)
    bench.add("a", range(100, 109), 1)
    bench.drain()
    bench.add("b", 17, 1)
    record = bench.step()
    assert len(events(record, Spilled)[0].blocks) == 2 == len(record.plan.transfer_names)
    bench.drain()
    return bench


def test_evicted_blocks_are_found_in_the_tier() -> None:
    bench = spilled()
    bench.add("c", range(100, 109), 1)
    record = bench.step()
    (admitted,) = events(record, Admitted)
    assert (admitted.cached_tokens, admitted.loaded_tokens) == (8, 8)
    assert record.request_ids == ()
    lookup = bench.scheduler.allocator.lookups.recent["c"]
    assert (lookup.hits, lookup.loaded, len(lookup.misses)) == (2, 2, 0)
    assert ran(bench.step()) == [("c", 8, 1)]
    # From the tier they went into the pool, where the next one finds them.
    bench.drain()
    bench.add("d", range(100, 109), 1)
    (admitted,) = events(bench.step(), Admitted)
    assert (admitted.cached_tokens, admitted.loaded_tokens) == (8, 0)


def test_a_damaged_block_is_computed_again_and_forgotten() -> None:
    bench = spilled()
    bench.add("c", range(100, 109), 1)
    plan = bench.scheduler.plan()
    assert plan is not None
    loads = np.flatnonzero(plan.transfers[:, 0] >= 5).tolist()
    assert len(loads) == 2
    result = replace(bench.executor.run(plan), damaged=(loads[1],))
    record = bench.scheduler.apply(plan, result)
    assert events(record, Damaged) == [Damaged("c", 4)]
    audit(bench.scheduler)
    assert ran(bench.step()) == [("c", 4, 5)]
    assert bench.scheduler.allocator.offload.totals.damaged == 1


def test_a_failed_step_leaves_no_trust_in_its_transfers() -> None:
    bench = crowded(8)
    bench.steps(2)
    plan = bench.scheduler.plan()
    assert plan is not None and len(plan.transfers)
    bench.scheduler.abandon(plan)
    assert bench.tier == TierState(0, 0, 8)
    audit(bench.scheduler)
    records = bench.drain()
    (admitted,) = [event for record in records for event in events(record, Admitted)]
    assert (admitted.request_id, admitted.cached_tokens) == ("b", 0)


def test_a_failed_step_ends_whoever_waited_for_blocks_in_it() -> None:
    """Swapped out or found: nobody knows what its blocks hold."""
    bench = crowded(8)
    bench.steps(3)
    while not (plan := bench.scheduler.plan()).started:  # type: ignore[union-attr]
        bench.scheduler.apply(plan, bench.executor.run(plan))  # type: ignore[arg-type]
    assert plan is not None and [start.request.request_id for start in plan.started] == ["b"]
    assert "b" not in bench.scheduler.running.ids[: len(plan.rows)]
    bench.executor.run(plan)  # it failed behind this
    bench.scheduler.abandon(plan)
    audit(bench.scheduler)
    assert bench.tier == TierState(0, 0, 8)
    other = spilled()
    other.add("c", range(100, 109), 1)
    plan = other.scheduler.plan()
    assert plan is not None
    other.executor.run(plan)
    other.scheduler.abandon(plan)
    audit(other.scheduler)
    for one, name in ((bench, "b"), (other, "c")):
        ended = [event for record in one.drain() for event in events(record, Finished)]
        assert (name, FinishReason.ERROR) in [(event.request_id, event.reason) for event in ended]
        assert not one.scheduler.allocator.offload.tier.pinned


def test_an_abort_while_blocks_are_on_their_way() -> None:
    bench = spilled()
    bench.add("c", range(100, 109), 1)
    plan = bench.scheduler.plan()
    assert plan is not None and len(plan.transfers)
    assert bench.scheduler.finish("c", FinishReason.ABORT)
    record = bench.scheduler.apply(plan, bench.executor.run(plan))
    audit(bench.scheduler)
    (event,) = events(record, Finished)
    assert event.reason == FinishReason.ABORT and record.pool.live == 0


def test_forgetting_the_cache_forgets_the_tier() -> None:
    bench = spilled()
    bench.scheduler.allocator.reset_cache()
    bench.add("c", range(100, 109), 1)
    record = bench.step()
    assert events(record, Admitted)[0].cached_tokens == 0
    forgotten = [(a, b) for a, b in record.plan.transfers.tolist() if a == b]
    assert len(forgotten) == 2 and bench.tier.spilled == 0
