from __future__ import annotations

import numpy as np
import pytest

from octavo.core.events import PoolState, Waste
from octavo.memory import Claim, HashChain, PagedAllocator
from octavo.memory.audit import audit

BLOCK = 4
ROWS = 6


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


class Rows:
    """A paged allocator with what its caller keeps: tokens, chains and how far each row is written."""

    def __init__(self, blocks: int, caching: bool = True) -> None:
        self.allocator = PagedAllocator(blocks, BLOCK, max_num_seqs=ROWS, max_model_len=64, caching=caching)
        self.tokens = np.zeros((ROWS, 16, BLOCK), np.int32)
        self.chains = [HashChain() for _ in range(ROWS)]
        self.written: dict[int, int] = {}

    def admit(self, row: int, prompt: np.ndarray, *, headroom: int = 0, budget: int = 0) -> int | None:
        self.chains[row] = HashChain()
        cached = self.allocator.admit(row, Claim("r", prompt, 64, self.chains[row]), headroom, budget)
        if cached is not None:
            self.tokens[row].reshape(-1)[: len(prompt)] = prompt
            self.written[row] = cached
        return cached

    def write(self, row: int, stop: int) -> bool:
        """Acquire, write up to ``stop`` and publish; False if it does not fit."""
        start = self.written[row]
        if not self.allocator.grow(ids(row), ids(start), ids(stop)):
            return False
        self.written[row] = stop
        if stop // BLOCK > start // BLOCK:
            self.allocator.publish(
                ids(row), ids(start // BLOCK), ids(stop // BLOCK), [self.chains[row]], self.tokens
            )
        self.audit()
        return True

    def release(self, row: int) -> int:
        del self.written[row]
        blocks = self.allocator.release(row)
        self.audit()
        return blocks

    def audit(self) -> None:
        audit(self.allocator, self.written)

    def blocks(self, row: int) -> list[int]:
        return self.allocator.table.row(row).tolist()

    def state(self) -> tuple[int, int, int]:
        state = self.allocator.state()
        return state.live, state.cached, state.free

    def waste(self) -> Waste:
        rows, written = ids(*self.written), ids(*self.written.values())
        return self.allocator.waste(rows, written, int(written.sum()), 0)


PROMPT = np.arange(1, 11, dtype=np.int32)
"""10 tokens: two full blocks and a half."""


def test_blocks_are_held_for_written_tokens_alone() -> None:
    rows = Rows(8)
    assert rows.admit(0, PROMPT) == 0
    assert rows.state() == (0, 0, 8)
    assert rows.write(0, 4) and rows.state() == (1, 0, 7)
    assert rows.write(0, 5) and rows.state() == (2, 0, 6)
    assert rows.write(0, 10) and rows.blocks(0) == [0, 1, 2]
    assert rows.waste() == Waste(written=10, reserved=0, internal=2, external=0)


def test_admission_takes_the_blocks_of_its_first_chunk() -> None:
    rows = Rows(8)
    assert rows.admit(0, PROMPT, budget=5) == 0
    assert rows.state() == (2, 0, 6)
    assert rows.allocator.promised_total == 1
    assert rows.admit(1, PROMPT, budget=1 << 62) == 0
    assert rows.state() == (5, 0, 3)


def test_admission_counts_what_others_were_promised() -> None:
    rows = Rows(5)
    assert rows.admit(0, PROMPT) == 0  # 3 blocks promised, none taken
    assert rows.admit(1, PROMPT) is None
    assert rows.admit(1, PROMPT[:8]) == 0
    assert rows.write(0, 10) and rows.write(1, 8)
    assert rows.state() == (5, 0, 0) and rows.allocator.promised_total == 0


def test_headroom_stays_available() -> None:
    rows = Rows(4)
    assert rows.admit(0, PROMPT, headroom=2) is None
    assert rows.admit(0, PROMPT, headroom=1) == 0


def test_growth_serves_the_leading_rows_that_fit() -> None:
    rows = Rows(3)
    for row in range(3):
        rows.admit(row, PROMPT[:1], budget=1)
    grow = rows.allocator.grow
    assert grow(ids(0, 1, 2), ids(1, 1, 1), ids(5, 5, 5)) == 0
    rows.release(2)
    assert grow(ids(0, 1), ids(1, 1), ids(5, 5)) == 1
    assert rows.blocks(0) == [0, 2] and rows.blocks(1) == [1]
    rows.release(0)
    assert rows.allocator.grow_by_block(ids(1)) == 1
    assert rows.state() == (2, 0, 1)


def test_a_released_prompt_is_found_but_never_the_whole_of_it() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT[:8])
    rows.write(0, 8)
    rows.release(0)
    assert rows.state() == (0, 2, 6)
    assert rows.admit(1, PROMPT[:8]) == 4, "one token at least is left to compute"
    assert rows.admit(2, PROMPT) == 8
    assert rows.blocks(2) == [0, 1]
    assert rows.state() == (2, 0, 6)


def test_blocks_that_are_not_computed_are_not_found() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT, budget=10)
    assert rows.admit(1, PROMPT) == 0
    rows.write(0, 7)
    assert rows.admit(2, PROMPT) == 4


def test_generated_tokens_are_found_too() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    rows.tokens[0].reshape(-1)[10:12] = 77, 78
    rows.write(0, 12)
    rows.release(0)
    assert rows.admit(1, np.concatenate((PROMPT, ids(77, 78, 5)))) == 12
    assert rows.admit(2, np.concatenate((PROMPT, ids(77, 79, 5)))) == 8


def test_cached_hits_cost_room_and_live_ones_do_not() -> None:
    rows = Rows(4)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    assert rows.admit(1, PROMPT) == 8, "both full blocks are shared, one more is free"
    rows.release(1)
    rows.release(0)
    assert rows.state() == (0, 2, 2)
    rows.admit(2, ids(50, 51, 52, 53, 54), budget=5)  # the two free ones
    assert rows.admit(3, PROMPT) is None, "two hits fit, the third block does not"
    rows.audit()


def test_eviction_forgets_the_tail_first_and_is_reported() -> None:
    rows = Rows(3)
    rows.admit(0, np.concatenate((PROMPT, ids(11, 12))))
    rows.write(0, 12)
    rows.release(0)
    assert rows.state() == (0, 3, 0)
    rows.admit(1, ids(60, 61, 62), budget=3)
    assert rows.allocator.take_evicted() == (2,)
    assert rows.allocator.take_evicted() == ()
    assert rows.admit(2, PROMPT) is None
    rows.release(1)
    assert rows.admit(2, PROMPT) == 8


def test_a_fork_copies_the_partial_block_on_the_first_write() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    rows.allocator.fork(0, 1)
    rows.written[1] = 10
    rows.audit()
    assert rows.state() == (3, 0, 5)
    assert rows.waste() == Waste(written=10, reserved=0, internal=2, external=0)
    assert rows.write(1, 11)
    assert rows.allocator.take_copies().tolist() == [[2, 3]]
    assert rows.blocks(0) == [0, 1, 2] and rows.blocks(1) == [0, 1, 3]
    assert rows.write(0, 11), "the other one is alone now"
    assert rows.allocator.take_copies().tolist() == []
    assert not rows.allocator.unclean
    rows.release(0)
    rows.release(1)
    assert rows.state()[0] == 0


def test_a_fork_at_a_block_border_needs_no_copy() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT[:8])
    rows.write(0, 8)
    rows.allocator.fork(0, 1)
    rows.written[1] = 8
    assert rows.write(0, 9) and rows.write(1, 9)
    assert rows.allocator.take_copies().tolist() == []
    assert rows.blocks(0) == [0, 1, 2] and rows.blocks(1) == [0, 1, 3]


def test_a_copy_that_does_not_fit_is_not_made() -> None:
    rows = Rows(3)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    rows.allocator.fork(0, 1)
    rows.written[1] = 10
    assert not rows.write(1, 11)
    rows.audit()
    rows.release(0)
    assert rows.write(1, 11)


def test_a_copy_into_a_row_that_leaves_is_dropped() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    rows.allocator.fork(0, 1)
    rows.written[1] = 10
    rows.write(1, 11)
    rows.release(1)
    assert rows.allocator.take_copies().tolist() == []


def test_writing_after_a_truncation_never_changes_what_can_be_found() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    rows.allocator.truncate(0, 6)
    rows.chains[0].truncate(1)
    rows.written[0] = 6
    rows.audit()
    assert rows.blocks(0) == [0, 1]
    rows.tokens[0].reshape(-1)[6:8] = 90, 91
    assert rows.write(0, 8)
    assert rows.admit(1, PROMPT) == 4, "the second block holds other tokens now"
    assert rows.admit(2, np.concatenate((PROMPT[:6], ids(90, 91, 92)))) == 8


def test_truncating_a_shared_block_copies_before_the_write() -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    assert rows.admit(1, PROMPT) == 8
    rows.allocator.truncate(1, 6)
    rows.chains[1].truncate(1)
    rows.written[1] = 6
    assert rows.write(1, 7)
    assert rows.allocator.take_copies().tolist() == [[1, 3]]
    assert rows.blocks(0) == [0, 1, 2] and rows.blocks(1) == [0, 3]


def test_truncating_to_nothing_releases_everything() -> None:
    rows = Rows(4)
    rows.admit(0, PROMPT)
    rows.write(0, 10)
    rows.allocator.truncate(0, 0)
    rows.written[0] = 0
    rows.audit()
    assert rows.state() == (0, 2, 2)


def test_without_caching_nothing_is_kept() -> None:
    rows = Rows(4, caching=False)
    rows.admit(0, PROMPT)
    assert rows.allocator.grow(ids(0), ids(0), ids(10)) == 1
    rows.allocator.release(0)
    assert rows.allocator.state() == PoolState(0, 0, 4)


@pytest.mark.parametrize("break_it", ["refs", "free", "entries", "index", "promise", "length"])
def test_the_audit_notices(break_it: str) -> None:
    rows = Rows(8)
    rows.admit(0, PROMPT)
    rows.write(0, 8)
    allocator = rows.allocator
    rows.audit()
    if break_it == "refs":
        allocator.pool.refs[1] += 1
    elif break_it == "free":
        allocator.pool.free_blocks()[0] = 0
    elif break_it == "entries":
        allocator.table.entries += 1
    elif break_it == "index":
        allocator.cache.index.clear()
    elif break_it == "promise":
        allocator.promised_total += 1
    else:
        rows.written[0] = 9
    with pytest.raises(AssertionError):
        rows.audit()
