"""Random requests, steps and aborts with a second tier, checked after every step: swaps, spills, damage."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.core.config import CacheConfig, SchedulerConfig
from scheduler_model import Totals, drive

CACHES = [
    CacheConfig(blocks, size, "paged", "first_fit", caching, tier)
    for blocks, size in ((2, 8), (5, 4), (9, 2), (30, 1), (12, 4), (40, 2))
    for caching in (False, True)
    for tier in (1, 7, 100)
]
CONFIGS = [
    SchedulerConfig(6, budget, 60, watermark, order, queue, preemption, swap_tokens_per_block=cost)
    for order in ("decode_first", "admission_first")
    for queue in ("fcfs", "priority")
    for preemption in ("swap", "recompute")
    for budget in (None, 5)
    for watermark in (0, 2)
    for cost in (0.0, 1.0)
]
PAIRS = list(itertools.product(CACHES, CONFIGS))
random.Random(0).shuffle(PAIRS)
del PAIRS[1200:]  # about half of them, drawn
SHARES = 6


def run(numbers: range, damaging: bool) -> Totals:
    seen = Totals()
    for number in numbers:
        cache, config = PAIRS[number]
        rng = random.Random(number)
        damage = rng.sample(range(cache.offload_blocks), cache.offload_blocks // 3) if damaging else ()
        totals = drive(rng, cache, config, 30, damage)
        for name in vars(seen):
            setattr(seen, name, getattr(seen, name) + getattr(totals, name))
    return seen


@pytest.mark.parametrize("share", range(SHARES))
def test_every_combination_of_settings(share: int) -> None:
    """A row reads through its table what was written for its prefix, wherever that has been in between."""
    seen = run(range(share, len(PAIRS), SHARES), damaging=False)
    assert seen.finished > 400 and seen.damaged == 0
    assert min(seen.swapped, seen.spilled, seen.aborts) > 40 and seen.found > 10
    # Not all of them come back: some are aborted while they wait.
    assert 0 < seen.swapped - seen.resumed_swaps < seen.swapped // 2
    assert seen.recomputed > 10, "a tier without room, or a cost, makes a victim recompute"


@pytest.mark.parametrize("share", range(2))
def test_damage_costs_a_recompute_and_never_a_wrong_token(share: int) -> None:
    seen = run(range(share, len(PAIRS), 6), damaging=True)
    assert seen.finished > 400 and seen.damaged > 10


@given(
    pair=st.sampled_from(PAIRS), seed=st.integers(0, 1 << 30), damage=st.sets(st.integers(0, 99), max_size=20)
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_of_them(pair: tuple[CacheConfig, SchedulerConfig], seed: int, damage: set[int]) -> None:
    drive(random.Random(seed), *pair, 60, damage)
