from __future__ import annotations

import random

import pytest

from octavo.memory.placement import Buddy, FirstFit, Placer


def test_first_fit_takes_the_lowest_run_that_is_long_enough() -> None:
    placer = FirstFit(100)
    starts = [placer.take(units) for units in (10, 30, 10, 20)]
    assert starts == [0, 10, 40, 50]
    placer.give(0, 10)
    placer.give(40, 10)
    assert placer.runs() == [(0, 10), (40, 10), (70, 30)]
    assert placer.take(11) == 70
    assert placer.take(10) == 0
    assert placer.free == 29


def test_free_runs_merge_with_both_neighbours() -> None:
    placer = FirstFit(30)
    for _ in range(3):
        placer.take(10)
    placer.give(0, 10)
    placer.give(20, 10)
    assert placer.runs() == [(0, 10), (20, 10)]
    placer.give(10, 10)
    assert placer.runs() == [(0, 30)]


def test_enough_in_sum_is_not_enough_in_one_run() -> None:
    placer = FirstFit(30)
    for _ in range(3):
        placer.take(10)
    placer.give(0, 10)
    placer.give(20, 10)
    assert placer.free == 20 and placer.take(11) is None


def test_buddy_holds_seven_requests_of_2048_slots_in_the_papers_pool() -> None:
    placer = Buddy(15_728)
    taken = 0
    while placer.take(2_048) is not None:
        taken += 1
    assert taken == 7
    assert placer.free / 15_728 == pytest.approx(0.0885, abs=5e-5)
    assert placer.largest_ever == 8_192


def test_buddy_splits_and_merges_halves() -> None:
    placer = Buddy(16)
    assert placer.granted(3) == 4
    assert [placer.take(3), placer.take(2), placer.take(1)] == [0, 4, 6]
    assert placer.runs() == [(7, 1), (8, 8)]
    placer.give(4, 2)
    placer.give(6, 1)
    assert placer.runs() == [(4, 4), (8, 8)]
    placer.give(0, 3)
    assert placer.runs() == [(0, 16)]


@pytest.mark.parametrize("placer", [FirstFit(77), Buddy(77), Buddy(64), FirstFit(1), Buddy(1)])
def test_runs_never_overlap_and_all_come_back(placer: Placer) -> None:
    total = placer.free
    rng = random.Random(5)
    empty = placer.runs()
    held: dict[int, int] = {}
    for _ in range(2_000):
        if held and rng.random() < 0.5:
            start = rng.choice(list(held))
            placer.give(start, held.pop(start))
        else:
            units = rng.randint(1, min(20, total))
            start = placer.take(units)
            if start is not None:
                held[start] = units
            else:
                assert all(length < units for _, length in placer.runs())
        used = [(start, placer.granted(units)) for start, units in held.items()]
        spans = sorted(used + placer.runs())
        assert [start for start, _ in spans] == [0, *(start + length for start, length in spans)][:-1]
        assert sum(length for _, length in spans) == total
        assert placer.free == sum(length for _, length in placer.runs())
    for start, units in held.items():
        placer.give(start, units)
    assert placer.runs() == empty
