from __future__ import annotations

import random

from octavo.core.events import TierState
from octavo.memory.host_blocks import HostBlocks


def test_spilled_blocks_make_room_least_recently_used_first() -> None:
    tier = HostBlocks(3)
    places = {name: tier.spill(name) for name in (b"a", b"b", b"c")}
    assert tier.state() == TierState(0, 3, 0)
    assert tier.touch(b"a") == places[b"a"]
    assert tier.spill(b"d") == places[b"b"] and tier.touch(b"b") is None
    assert tier.hold(2) == [places[b"c"], places[b"a"]]
    assert tier.state() == TierState(2, 1, 0)
    assert tier.hold(2) is None and tier.state() == TierState(2, 1, 0), "held blocks make no room"
    assert tier.hold(1) == [places[b"b"]] and tier.spill(b"e") is None
    tier.give_back([places[b"a"]])
    assert tier.spill(b"e") == places[b"a"] and tier.state() == TierState(2, 1, 0)


def test_what_a_plan_reads_is_not_written_over() -> None:
    tier = HostBlocks(2)
    first, second = tier.spill(b"a"), tier.spill(b"b")
    assert first is not None
    tier.pinned.add(first)
    assert tier.hold(2) is None
    assert tier.spill(b"c") == second
    tier.pinned.add(second or 0)
    assert tier.spill(b"d") is None and tier.hold(1) is None
    tier.pinned.clear()
    assert tier.hold(2) == [first, second]


def test_a_tier_can_hold_something_from_the_start() -> None:
    tier = HostBlocks(4)
    tier.adopt({b"a": 2})
    assert tier.touch(b"a") == 2 and tier.state() == TierState(0, 1, 3)
    assert tier.hold(3) == [0, 1, 3], "the free ones first"
    tier.forget(2)
    assert tier.touch(b"a") is None and tier.state() == TierState(3, 0, 1)


def test_the_sum_at_random() -> None:
    rng = random.Random(0)
    tier, held = HostBlocks(12), []
    for number in range(5_000):
        kind = rng.random()
        if kind < 0.4:
            name = bytes([rng.randrange(30)])
            if tier.touch(name) is None:
                tier.spill(name)
        elif kind < 0.6 and (blocks := tier.hold(rng.randint(1, 5))) is not None:
            held.append(blocks)
        elif kind < 0.9 and held:
            tier.give_back(held.pop(rng.randrange(len(held))))
        elif tier.names:
            tier.forget(rng.choice(sorted(tier.names)))
        assert tier.state().total == 12, number
        assert sorted([*tier.held, *tier.names, *tier.free]) == list(range(12))
        assert tier.held == {block for blocks in held for block in blocks}
