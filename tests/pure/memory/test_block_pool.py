from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.core.events import PoolState
from octavo.memory.block_pool import BlockPool


def blocks(*numbers: int) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)


def take(pool: BlockPool, count: int) -> list[int]:
    got = pool.acquire(count)
    assert got is not None
    return got.tolist()


def test_a_fresh_pool_hands_out_neighbours() -> None:
    pool = BlockPool(8)
    assert take(pool, 3) == [0, 1, 2]
    assert take(pool, 2) == [3, 4]
    assert pool.state() == PoolState(live=5, cached=0, free=3)


def test_what_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(4)
    take(pool, 3)
    assert pool.acquire(2) is None
    assert pool.state() == PoolState(3, 0, 1)
    assert take(pool, 1) == [3]


def test_taking_nothing_is_allowed() -> None:
    assert take(BlockPool(1), 0) == []


def test_released_blocks_come_back_in_the_order_of_their_sequence() -> None:
    pool = BlockPool(6)
    take(pool, 6)
    pool.release(blocks(4, 1, 3))
    assert take(pool, 3) == [4, 1, 3]


def test_a_shared_block_is_live_until_its_last_holder_leaves() -> None:
    pool = BlockPool(3)
    take(pool, 2)
    pool.share(blocks(0, 1))
    pool.release(blocks(0, 1))
    assert pool.state() == PoolState(2, 0, 1)
    pool.release(blocks(0, 1))
    assert pool.state() == PoolState(0, 0, 3)


def test_findable_blocks_become_cached_and_are_evicted_least_recently_released_first_tail_first() -> None:
    evicted: list[list[int]] = []
    pool = BlockPool(6, lambda gone, at: evicted.append(gone.tolist()))
    take(pool, 6)
    pool.publish(blocks(0, 1, 2, 3))
    pool.release(blocks(0, 1, 4))  # the older sequence; 4 was never full
    pool.release(blocks(2, 3, 5))
    assert pool.state() == PoolState(0, 4, 2)
    assert pool.eviction_order().tolist() == [1, 0, 3, 2]
    assert take(pool, 5) == [5, 4, 1, 0, 3]
    assert evicted == [[1, 0, 3]]
    assert not pool.findable[[0, 1, 3]].any()
    assert pool.state() == PoolState(5, 1, 0)


def test_a_shared_cached_block_is_not_evicted() -> None:
    pool = BlockPool(3)
    take(pool, 3)
    pool.publish(blocks(0, 1, 2))
    pool.release(blocks(0, 1, 2))
    pool.share(blocks(2))
    assert pool.state() == PoolState(1, 2, 0)
    assert take(pool, 2) == [1, 0]
    assert pool.acquire(1) is None


def test_a_block_that_was_used_again_is_evicted_later() -> None:
    pool = BlockPool(3)
    take(pool, 3)
    pool.publish(blocks(0, 1, 2))
    pool.release(blocks(0))
    pool.release(blocks(1))
    pool.release(blocks(2))
    pool.share(blocks(0))
    pool.release(blocks(0))
    assert take(pool, 3) == [1, 2, 0]


def test_the_queue_of_cached_blocks_is_compacted_and_keeps_its_order() -> None:
    pool = BlockPool(4)
    take(pool, 4)
    pool.publish(blocks(0, 1, 2, 3))
    pool.release(blocks(0, 1, 2, 3))
    for block in (3, 0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1):  # more entries than the queue has room for
        pool.share(blocks(block))
        pool.release(blocks(block))
    assert pool.eviction_order().tolist() == [3, 0, 2, 1]
    assert take(pool, 4) == [3, 0, 2, 1]


def test_a_withdrawn_block_is_free_after_its_release() -> None:
    pool = BlockPool(1)
    take(pool, 1)
    pool.publish(blocks(0))
    pool.withdraw(0)
    pool.release(blocks(0))
    assert pool.state() == PoolState(0, 0, 1)


def test_a_free_block_cannot_be_shared() -> None:
    with pytest.raises(AssertionError):
        BlockPool(2).share(blocks(1))


def test_random_use_keeps_the_law() -> None:
    rng = np.random.default_rng(0)
    pool = BlockPool(50)
    held: list[NDArray[np.int32]] = []
    for _ in range(3_000):
        if held and rng.random() < 0.5:
            pool.release(held.pop(int(rng.integers(len(held)))))
        elif (got := pool.acquire(int(rng.integers(1, 12)))) is not None:
            pool.publish(got[rng.random(len(got)) < 0.5])
            held.append(got)
        state = pool.state()
        assert state.total == 50 and state.live == sum(map(len, held))
        assert len(pool.eviction_order()) == state.cached and len(pool.free_blocks()) == state.free
        everything = np.concatenate([*held, pool.eviction_order(), pool.free_blocks()])
        assert sorted(everything.tolist()) == list(range(50))
