from __future__ import annotations

import numpy as np
import pytest

from octavo.core.config import CacheConfig
from octavo.core.events import PoolState, Waste
from octavo.memory import Allocator, Blockage, Claim, ContiguousAllocator, FirstFit, HashChain, make_allocator
from octavo.memory.audit import audit


def make(blocks: int, size: int, name: str = "reserved", placement: str = "first_fit") -> Allocator:
    return make_allocator(CacheConfig(blocks, size, name, placement), 8, 10_000)  # type: ignore[arg-type]


def claim(prompt: int, limit: int) -> Claim:
    return Claim(f"{prompt}", np.zeros(prompt, np.int32), limit, HashChain())


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_a_chunk_is_a_row_of_consecutive_blocks() -> None:
    allocator = make(20, 16)
    assert allocator.admit(0, claim(10, 100), 0, 5) == 0
    assert allocator.table.row(0).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert allocator.state() == PoolState(7, 0, 13)
    assert allocator.grow(ids(0), ids(0), ids(100)) == 1
    audit(allocator, {0: 100})


def test_growth_past_the_chunk_is_our_bug() -> None:
    allocator = make(20, 16)
    allocator.admit(0, claim(10, 100), 0, 5)
    with pytest.raises(AssertionError):
        allocator.grow(ids(0), ids(100), ids(113))


def test_the_three_wastes() -> None:
    allocator = make(4_096, 1, "pow2")
    allocator.admit(0, claim(1_000, 1_200), 0, 5)
    assert allocator.waste(ids(0), ids(300), 300, 7) == Waste(300, 900, 848, 7), "848: from 1,200 to 2,048"
    reserved = make(4_096, 16)
    reserved.admit(0, claim(10, 100), 0, 5)
    assert reserved.waste(ids(0), ids(3), 3, 0) == Waste(3, 97, 12, 0)


def test_external_fragmentation_is_told_with_its_numbers() -> None:
    allocator = make(30, 1)
    for row in range(3):
        assert allocator.admit(row, claim(5, 10), 0, 5) == 0
    assert allocator.admit(3, claim(5, 10), 0, 5) is None
    assert allocator.blocked is None, "nothing is free: no fragmentation"
    allocator.release(0)
    allocator.release(2)
    assert allocator.admit(3, claim(5, 11), 0, 5) is None
    assert allocator.blocked == Blockage(slots_needed=11, slots_free=20, runs_free=2, largest_run=10)
    assert allocator.admit(3, claim(5, 10), 0, 5) == 0
    assert allocator.blocked is None
    audit(allocator, {1: 0, 3: 0})


def test_headroom_stays_free() -> None:
    allocator = make(10, 1)
    assert allocator.admit(0, claim(2, 8), 3, 5) is None
    assert allocator.admit(0, claim(2, 8), 2, 5) == 0


@pytest.mark.parametrize(
    ("name", "placement", "longest"),
    [
        ("reserved", "first_fit", 3_200),
        ("pow2", "first_fit", 2_048),
        ("reserved", "buddy", 2_048),
        ("pow2", "buddy", 2_048),
    ],
)
def test_the_longest_sequence_is_what_an_empty_pool_can_hold(name: str, placement: str, longest: int) -> None:
    allocator = make(200, 16, name, placement)
    assert allocator.pool_len == allocator.max_len == longest
    assert allocator.admit(0, claim(1, longest), 0, 1) == 0
    audit(allocator, {0: longest})
    allocator.release(0)
    assert allocator.state() == PoolState(0, 0, 200)


def test_the_papers_orca_max_pool_holds_seven() -> None:
    allocator = make(15_728, 1, "reserved", "buddy")
    rows = [row for row in range(8) if allocator.admit(row, claim(100, 2_048), 0, 100) is not None]
    assert len(rows) == 7
    assert allocator.state().free / 15_728 == pytest.approx(0.0885, abs=5e-5)


def test_an_oracle_takes_the_true_length() -> None:
    lengths = {"10": 25}
    allocator = ContiguousAllocator(
        "oracle",
        100,
        1,
        FirstFit(100),
        max_num_seqs=2,
        max_model_len=80,
        chunk_size=lambda c: lengths[c.request_id],
    )
    assert allocator.admit(0, claim(10, 80), 0, 5) == 0
    assert allocator.state() == PoolState(25, 0, 75)
    assert allocator.waste(ids(0), ids(10), 10, 0) == Waste(10, 15, 0, 0)


def test_nothing_is_shared() -> None:
    allocator = make(10, 1)
    allocator.admit(0, claim(2, 3), 0, 5)
    assert not allocator.caching and allocator.take_evicted() == () and len(allocator.take_copies()) == 0
    with pytest.raises(AssertionError):
        allocator.fork(0, 1)
    allocator.truncate(0, 1)
    assert allocator.state() == PoolState(3, 0, 7)


def test_the_audit_notices_a_gap() -> None:
    allocator = make(10, 1)
    allocator.admit(0, claim(2, 3), 0, 5)
    audit(allocator, {0: 2})
    allocator.table.matrix[0, 1] = 5
    with pytest.raises(AssertionError):
        audit(allocator, {0: 2})
