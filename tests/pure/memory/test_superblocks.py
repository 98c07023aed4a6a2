from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.core.config import CacheConfig
from octavo.core.errors import ConfigError
from octavo.core.events import PoolState
from octavo.memory import Claim, HashChain, PagedAllocator, make_allocator
from octavo.memory.audit import audit, audit_superblocks
from octavo.memory.runs import mean_run_tokens, run_lengths
from octavo.memory.superblocks import SuperblockPool, superblock_blocks


def blocks(*numbers: int) -> NDArray[np.intp]:
    return np.array(numbers, np.intp)


def take(pool: SuperblockPool, count: int, after: int | None = None) -> list[int]:
    got = pool.acquire(count, after)
    assert got is not None
    audit_superblocks(pool)
    return got.tolist()


def grow(pool: SuperblockPool, *after: int) -> list[int]:
    got = pool.acquire_each(blocks(*after))
    assert got is not None
    audit_superblocks(pool)
    return got.tolist()


@pytest.mark.parametrize(
    ("tokens", "block_size", "num_blocks", "expected"),
    [
        (128, 16, 1000, 8),
        (128, 1, 4096, 128),
        (128, 128, 1000, 1),
        (64, 256, 1000, 1),
        (0, 16, 1000, 1),
        (128, 16, 40, 4),
        (128, 16, 16, 2),
        (128, 16, 12, 1),
        (128, 16, 7, 1),
    ],
)
def test_a_superblock_is_at_most_an_eighth_of_the_pool(
    tokens: int, block_size: int, num_blocks: int, expected: int
) -> None:
    assert superblock_blocks(tokens, block_size, num_blocks) == expected
    cache = CacheConfig(num_blocks, block_size, superblock_tokens=tokens)
    allocator = make_allocator(cache, 2, 100)
    assert isinstance(allocator, PagedAllocator) and allocator.superblock == expected
    assert isinstance(allocator.pool, SuperblockPool) == (expected > 1)


@pytest.mark.parametrize("tokens", [-1, 3, 96])
def test_other_sizes_are_refused(tokens: int) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        CacheConfig(100, superblock_tokens=tokens)


def test_each_sequence_begins_a_superblock_and_grows_along_it() -> None:
    pool = SuperblockPool(64, 4)
    assert [take(pool, 1) for _ in range(3)] == [[0], [4], [8]]
    assert grow(pool, 4, 0, 8) == [5, 1, 9]
    assert take(pool, 2, after=1) == [2, 3]
    assert take(pool, 1, after=5) == [6]
    assert pool.state() == PoolState(9, 0, 55)


def test_a_prompt_takes_neighbouring_superblocks_and_the_last_one_is_there_to_grow_into() -> None:
    pool = SuperblockPool(64, 4)
    assert take(pool, 6) == [0, 1, 2, 3, 4, 5]
    assert take(pool, 1) == [8]
    assert grow(pool, 5, 8) == [6, 9]


def test_a_full_superblock_goes_on_in_the_next_one_if_that_is_free() -> None:
    pool = SuperblockPool(64, 4)
    assert take(pool, 12) == list(range(12))
    pool.release(blocks(*range(4, 12)))
    assert grow(pool, 3) == [4]
    assert take(pool, 3, after=4) == [5, 6, 7]
    assert grow(pool, 7) == [8]
    assert take(pool, 3, after=8) == [9, 10, 11]
    assert grow(pool, 11) == [12]


def test_used_memory_comes_before_untouched_memory_and_the_last_released_first() -> None:
    pool = SuperblockPool(64, 4)
    first, second = take(pool, 8), take(pool, 4)
    assert second == [8, 9, 10, 11]
    pool.release(blocks(*second))
    pool.release(blocks(*first))
    assert take(pool, 16) == [*first, *second, 12, 13, 14, 15]


def test_of_rows_with_one_wish_one_gets_it() -> None:
    pool = SuperblockPool(64, 4)
    take(pool, 2)
    pool.share(blocks(0, 1))
    pool.share(blocks(0, 1))
    assert sorted(grow(pool, 1, 1, 1)) == [2, 4, 8]
    pool = SuperblockPool(64, 4)
    take(pool, 8)
    pool.share(blocks(0, 1, 2, 3))
    pool.release(blocks(4, 5, 6, 7))
    assert sorted(grow(pool, 3, 3)) == [4, 8]


def test_rows_without_a_block_grow_like_any_others() -> None:
    allocator = PagedAllocator(64, 4, max_num_seqs=4, max_model_len=256, caching=False, superblock=4)
    for row in range(3):
        assert allocator.admit(row, claim(row, 4), 0, 4) == 0
    for row in range(2):
        allocator.truncate(row, 0)
    rows = np.arange(3)
    assert allocator.grow(rows, np.array([0, 0, 4]), np.array([4, 4, 8])) == 3
    audit(allocator, {0: 4, 1: 4, 2: 8}, {0: 4, 1: 4, 2: 8})


def test_nothing_is_refused_while_a_block_is_free() -> None:
    """What stands in front of a sequence is not held for it."""
    pool = SuperblockPool(32, 4)
    starts = [take(pool, 1)[0] for _ in range(8)]
    assert starts == list(range(0, 32, 4))
    assert pool.state() == PoolState(8, 0, 24)
    rest = take(pool, 24)
    assert sorted(starts + rest) == list(range(32))
    assert pool.acquire(1) is None and pool.acquire_each(blocks(0)) is None
    pool.release(blocks(17))
    assert grow(pool, 0) == [17]


def test_where_blocks_are_scarce_runs_that_grow_crowd_at_the_end() -> None:
    pool = SuperblockPool(64, 4)
    take(pool, 64)
    pool.release(blocks(8, 9, 10, 11, 40, 62, 63))
    assert pool.scarce
    assert grow(pool, 3, 15, 19) == [40, 62, 63]
    # A prompt finds the superblock that they left whole, and takes the rest where it fits.
    pool.release(blocks(20, 33, 34))
    assert take(pool, 6) == [8, 9, 10, 11, 33, 34]


def test_without_a_wholly_open_superblock_a_prompt_takes_the_one_in_which_it_fits_best() -> None:
    pool = SuperblockPool(64, 8)
    take(pool, 64)
    pool.release(blocks(0, 1, 2, 3, 4, 16, 17, 18, 30, 31))
    assert take(pool, 3) == [16, 17, 18]
    assert take(pool, 7) == [0, 1, 2, 3, 4, 30, 31]


def cached_pool(evicted: list[tuple[list[int], list[int]]]) -> SuperblockPool:
    """64 blocks in superblocks of 4, all cached; sequences of 8 blocks, the first one the least recently used."""
    pool = SuperblockPool(64, 4, lambda gone, at: evicted.append((gone.tolist(), at.tolist())))
    held = [take(pool, 8) for _ in range(8)]
    for one in held:
        pool.publish(blocks(*one))
        pool.release(blocks(*one))
    assert pool.state() == PoolState(0, 64, 0)
    return pool


def test_where_everything_is_cached_a_run_is_made_of_the_oldest_blocks() -> None:
    evicted: list[tuple[list[int], list[int]]] = []
    pool = cached_pool(evicted)
    assert take(pool, 1) == [4]  # the last superblock of the oldest sequence, whose tail goes first
    assert [grow(pool, last) for last in (4, 5, 6)] == [[5], [6], [7]]
    assert take(pool, 1) == [0]
    assert evicted == [([block], [0]) for block in (4, 5, 6, 7, 0)]
    assert pool.state() == PoolState(5, 59, 0)


def test_an_old_block_that_is_used_again_is_safe() -> None:
    pool = cached_pool([])
    take(pool, 1)
    assert pool.old == 7
    pool.share(blocks(5, 0, 60))
    assert pool.old == 5
    assert grow(pool, 4) != [5]
    pool.release(blocks(5, 0, 60))
    assert pool.eviction_order()[-3:].tolist() == [60, 0, 5]


def test_free_blocks_suffice_as_long_as_superblocks_do() -> None:
    evicted: list[tuple[list[int], list[int]]] = []
    pool = cached_pool(evicted)
    pool.share(blocks(*range(56, 64)))
    for block in range(56, 64):
        pool.withdraw(block)
    pool.release(blocks(*range(56, 64)))
    assert take(pool, 8) == list(range(56, 64))
    assert not evicted


def test_how_far_eviction_strays_from_the_order_of_use_is_bounded() -> None:
    """Of 1,024 cached blocks an eighth is open at most, beyond what is asked for: nothing younger is ever lost."""
    lost: list[int] = []
    pool = SuperblockPool(1024, 8, lambda gone, at: lost.extend(gone.tolist()))
    age = np.zeros(1024, np.intp)
    for number in range(1024 // 16):
        got = blocks(*take(pool, 16))
        pool.publish(got)
        age[got] = number
    for number in range(1024 // 16):
        pool.release(np.flatnonzero(age == number))
    rows = [take(pool, 1)[0] for _ in range(40)]
    for _ in range(12):
        rows = grow(pool, *rows)
    taken = 40 * 13
    assert len(lost) == taken
    assert age[lost].max() <= (taken + 1024 // 8) // 16 + 1


def test_evicted_blocks_are_told_with_their_places() -> None:
    evicted: list[tuple[list[int], list[int]]] = []
    pool = cached_pool(evicted)
    pool.share(blocks(63))
    pool.withdraw(63)
    pool.release(blocks(63))
    assert pool.state() == PoolState(0, 63, 1)
    got = take(pool, 64)
    assert len(evicted) == 1 and got.index(63) not in evicted[0][1]
    assert [got[at] for at in evicted[0][1]] == evicted[0][0] and len(evicted[0][0]) == 63


def test_forgetting_all_leaves_superblocks() -> None:
    pool = cached_pool([])
    take(pool, 1)
    assert pool.forget_all() == 63
    audit_superblocks(pool)
    assert pool.state() == PoolState(1, 0, 63)
    assert sorted(take(pool, 60)) == [block for block in range(64) if block not in (4, 5, 6, 7)]
    assert sorted(take(pool, 3, after=4)) == [5, 6, 7]


class Churn:
    """A pool under sequences of any length, each block of which is cached as often as not."""

    def __init__(self, seed: int, *, one_by_one: bool = False) -> None:
        """``one_by_one``: rows that grow together ask as few rows do."""
        self.one_by_one = one_by_one
        self.rng = rng = np.random.default_rng(seed)
        self.total = int(rng.integers(1, 90))
        self.pool = SuperblockPool(self.total, int(rng.choice([2, 4, 8, 16])))
        self.held: list[NDArray[np.intp]] = []

    def step(self) -> None:
        rng, pool, held = self.rng, self.pool, self.held
        kind = rng.random()
        if held and kind < 0.4:
            pool.release(held.pop(int(rng.integers(len(held)))))
        elif held and kind < 0.6:
            which = rng.permutation(len(held))[: int(rng.integers(1, len(held) + 1))]
            after = np.array([held[i][-1] for i in which])
            if self.one_by_one:
                few = pool.acquire_few(after.tolist())
                self._add(which, None if few is None else np.array(few))
            else:
                self._add(which, pool.acquire_each(after))
        elif pool.cached and kind < 0.65:
            found = rng.permutation(pool.eviction_order())[: int(rng.integers(1, pool.cached + 1))]
            pool.share(found)
            held.append(found)
        elif kind < 0.67:
            pool.forget_all()
        else:
            self._acquire(int(rng.integers(1, 12)))

    def _add(self, which: NDArray[np.intp], got: NDArray[np.intp] | None) -> None:
        if got is None:
            assert len(which) > self.pool.available
            return
        self.pool.publish(got[self.rng.random(len(got)) < 0.5])
        for i, block in zip(which.tolist(), got.tolist(), strict=True):
            self.held[i] = np.append(self.held[i], block)

    def _acquire(self, count: int) -> None:
        rng, held = self.rng, self.held
        longer = int(rng.integers(len(held))) if held and rng.random() < 0.5 else None
        got = self.pool.acquire(count, None if longer is None else int(held[longer][-1]))
        if got is None:
            assert count > self.pool.available
            return
        self.pool.publish(got[rng.random(count) < 0.5])
        if longer is None:
            held.append(got)
        else:
            held[longer] = np.append(held[longer], got)

    def verify(self) -> None:
        pool, state = self.pool, self.pool.state()
        cached, free = pool.eviction_order(), pool.free_blocks()
        assert (len(cached), len(free)) == (state.cached, state.free)
        everything = np.concatenate([*self.held, cached, free]).astype(np.intp)
        assert sorted(everything.tolist()) == list(range(self.total))
        audit_superblocks(pool)


@pytest.mark.parametrize("seed", range(25))
def test_random_use_keeps_the_law(seed: int) -> None:
    churn = Churn(seed)
    for _ in range(300):
        churn.step()
        churn.verify()


@pytest.mark.parametrize("seed", range(100, 112))
def test_few_rows_get_what_they_would_get_among_many(seed: int) -> None:
    few, many = Churn(seed, one_by_one=True), Churn(seed)
    for _ in range(300):
        few.step()
        many.step()
        assert [one.tolist() for one in few.held] == [one.tolist() for one in many.held]
        few.verify()


def claim(number: int, tokens: int) -> Claim:
    return Claim(f"r{number}", np.arange(tokens, dtype=np.int32) + 1_000 * number, 8_000, HashChain())


def churned(superblock: int) -> PagedAllocator:
    """Up to 48 rows with prompts and answers of many lengths come and go in a pool that they fill to three quarters."""
    rng = np.random.default_rng(5)
    allocator = PagedAllocator(
        2_048, 16, max_num_seqs=64, max_model_len=8_000, caching=False, superblock=superblock
    )
    ends: dict[int, int] = {}
    written: dict[int, int] = {}
    for number in range(1_200):
        while len(ends) < 48 and allocator.state().free > 512:
            row = min(set(range(64)) - set(ends))
            tokens = int(rng.integers(40, 900))
            assert allocator.admit(row, claim(number, tokens), 0, tokens) == 0
            ends[row], written[row] = tokens + int(rng.integers(10, 500)), tokens
        rows = np.array(sorted(ends), np.intp)
        starts = np.array([written[row] for row in rows.tolist()], np.intp)
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            written[row] = min(start + 16, ends[row])
        stops = np.array([written[row] for row in rows.tolist()], np.intp)
        assert allocator.grow(rows, starts, stops) == len(rows)
        audit(allocator, written, written)
        for row in [row for row in ends if written[row] == ends[row]]:
            allocator.release(row)
            del ends[row], written[row]
    return allocator


def test_runs_stay_long_under_churn() -> None:
    """Where any block is as good as another, they fall apart into single blocks."""
    apart, together = churned(1), churned(8)
    assert mean_run_tokens(apart.table, 16) < 40
    assert mean_run_tokens(together.table, 16) > 100
    assert apart.state().live == together.state().live == run_lengths(together.table).sum()


def test_runs_are_counted_along_each_row() -> None:
    allocator = PagedAllocator(64, 4, max_num_seqs=4, max_model_len=256, caching=False, superblock=4)
    table = allocator.table
    assert len(run_lengths(table)) == 0 and mean_run_tokens(table, 4) == 0.0
    table.append(0, blocks(3, 4, 5, 9, 8, 10, 11))
    table.append(2, blocks(12))
    assert run_lengths(table).tolist() == [3, 1, 1, 2, 1]
    assert mean_run_tokens(table, 4) == 4 * 8 / 5
