"""Ghosts against a plain dictionary: what they say is true, and what they do not know they say they do not know."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.memory.ghosts import Ghosts

NAMES = np.random.default_rng(0).integers(0, 2**63, 400, dtype=np.uint64)
batches = st.lists(st.lists(st.integers(0, len(NAMES) - 1), min_size=1, max_size=40), max_size=30)


def filled(ghosts: Ghosts, told: list[list[int]]) -> dict[int, tuple[int, int, int]]:
    """Tell the ghosts; returns all that was ever said, the newest of each name."""
    said = {}
    for step, numbers in enumerate(told):
        unique = np.array(sorted(set(numbers)))
        idle, taker = unique % 7, unique % 5 + step
        ghosts.add(NAMES[unique], np.array([step], np.uint32), idle, taker)
        said |= {
            n: (step, i, t) for n, i, t in zip(unique.tolist(), idle.tolist(), taker.tolist(), strict=True)
        }
    return said


@settings(max_examples=100, deadline=None)
@given(batches, st.integers(1, 200))
def test_what_they_say_is_true(told: list[list[int]], blocks: int) -> None:
    ghosts = Ghosts(blocks)
    said = filled(ghosts, told)
    found, places = ghosts.find(NAMES)
    stories = list(zip(*(part.tolist() for part in ghosts.story(places)), strict=True))
    forgotten = ghosts.may_be_forgotten(NAMES)
    for number, (is_ghost, story) in enumerate(zip(found.tolist(), stories, strict=True)):
        if is_ghost:
            assert story == said[number], "an eviction of which it was never told, or an older one"
        elif number in said:
            assert forgotten[number], "an evicted block passes for one that was never seen"
    assert ghosts.forgotten >= len(said) - int(found.sum())


def test_a_roomy_one_forgets_nothing() -> None:
    ghosts = Ghosts(10_000)
    said = filled(ghosts, [list(range(0, 400, 4)), list(range(1, 400, 4))])
    assert ghosts.forgotten == 0 and ghosts.find(NAMES)[0].sum() == len(said)
    assert not ghosts.may_be_forgotten(NAMES).any()


def test_a_small_one_keeps_the_newest_and_admits_what_it_lost() -> None:
    ghosts = Ghosts(8)
    filled(ghosts, [[number] for number in range(400)])
    found, places = ghosts.find(NAMES)
    assert ghosts.capacity == 16 and 8 <= found.sum() <= 16
    assert ghosts.story(places[found])[0].min() > 300, "old ghosts stayed where newer ones had to go"
    assert ghosts.may_be_forgotten(NAMES[:300]).all()
    strangers = np.random.default_rng(1).integers(0, 2**63, 1_000, dtype=np.uint64)
    assert ghosts.may_be_forgotten(strangers).mean() < 0.5, (
        "400 names fill less than half of the filter's least size"
    )


def test_one_name_twice_at_once_is_the_newer_one() -> None:
    ghosts = Ghosts(100)
    ghosts.add(NAMES[[3, 4, 3]], np.array([1, 2, 3], np.uint32), np.array([5, 6, 7]), np.array([8, 9, 10]))
    found, places = ghosts.find(NAMES[[3, 4]])
    assert found.all() and ghosts.forgotten == 0
    assert [part.tolist() for part in ghosts.story(places)] == [[3, 2], [7, 6], [10, 9]]
