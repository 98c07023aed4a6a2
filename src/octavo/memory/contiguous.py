"""``ContiguousAllocator``: one run of neighbouring blocks for a sequence's whole life, as engines did before paging.

A chunk is a table row of consecutive blocks, so the real engine runs on it, too. Nothing is shared and nothing is
cached: a chunk's slots belong to its sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import PoolState, Waste
from octavo.memory.allocator import NO_COPIES, Blockage, Claim
from octavo.memory.block_table import BlockTable
from octavo.memory.lookups import Lookups
from octavo.memory.offload import Offload, Swapped
from octavo.memory.placement import Placer
from octavo.memory.prefix_cache import HashChain, PrefixCache
from octavo.memory.sizing import blocks_for

ChunkSize = Callable[[Claim], int]
"""Slots to take for a request. An oracle (simulation only) closes over the true lengths."""


def declared(claim: Claim) -> int:
    """All that the request may reach: prompt + max_tokens."""
    return claim.limit


def power_of_two(slots: int) -> int:
    """The smallest power of two that is not below ``slots``."""
    return 1 << (slots - 1).bit_length()


class ContiguousAllocator:
    def __init__(
        self,
        name: str,
        num_blocks: int,
        block_size: int,
        placer: Placer,
        *,
        max_num_seqs: int,
        max_model_len: int,
        chunk_size: ChunkSize = declared,
        round_up: bool = False,
    ) -> None:
        """``round_up``: chunks are powers of two of slots, whatever the placer makes of them."""
        self.name = name
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.placer = placer
        self._chunk_size = chunk_size
        self._round_up = round_up
        self.pool_len = placer.largest_ever * block_size
        if round_up:
            self.pool_len = 1 << (self.pool_len.bit_length() - 1)
        self.max_len = min(max_model_len, self.pool_len)
        widest = power_of_two(self.max_len) if round_up else self.max_len
        self.table = BlockTable(max_num_seqs, placer.granted(blocks_for(widest, block_size)))
        self.caching = False
        self.grows = self.can_fork = False
        self.blocked: Blockage | None = None
        self.lookups = Lookups(PrefixCache(0, block_size), 0, block_size, max_num_seqs, "contiguous")
        self.offload = Offload(num_blocks, 0)
        self._wished: dict[int, int] = {}
        """Row -> blocks asked of the placer (it may have granted more)."""
        self._reach: dict[int, int] = {}
        """Row -> slots that its sequence may write at most."""
        self._reach_total = 0

    @property
    def unclean(self) -> Collection[int]:
        return ()

    def state(self) -> PoolState:
        return PoolState(self.num_blocks - self.placer.free, 0, self.placer.free)

    def admit(self, row: int, claim: Claim, headroom: int, budget: int) -> int | None:
        assert row not in self._wished, "a row is admitted once"
        placer = self.placer
        slots = self._chunk_size(claim)
        wish = blocks_for(power_of_two(slots) if self._round_up else slots, self.block_size)
        blocks = placer.granted(wish)
        self.blocked = None
        if blocks + headroom > placer.free:
            return None
        start = placer.take(wish)
        if start is None:
            lengths = [length for _, length in placer.runs()]
            size = self.block_size
            self.blocked = Blockage(blocks * size, placer.free * size, len(lengths), max(lengths) * size)
            return None
        self._wished[row] = wish
        self._reach[row] = min(slots, claim.limit)
        self._reach_total += self._reach[row]
        self.table.append(row, np.arange(start, start + blocks))
        self.lookups.take(row, claim, 0)
        return 0

    def grow(self, rows: NDArray[np.intp], starts: NDArray[np.intp], stops: NDArray[np.intp]) -> int:
        assert (stops <= self.table.num_blocks[rows] * self.block_size).all(), (
            "a chunk holds its whole sequence"
        )
        return len(rows)

    def grow_by_block(self, rows: NDArray[np.intp]) -> int:
        raise AssertionError("a chunk holds its whole sequence")

    def park(self) -> None:
        """Nothing is cached."""

    def reset_cache(self) -> int:
        return 0  # nothing is ever shared

    def take_copies(self) -> NDArray[np.int32]:
        return NO_COPIES

    def take_evicted(self) -> tuple[int, ...]:
        self.lookups.step += 1
        return ()

    def publish(
        self,
        rows: NDArray[np.intp],
        firsts: NDArray[np.intp],
        lasts: NDArray[np.intp],
        chains: Sequence[HashChain],
        tokens: NDArray[np.int32],
    ) -> None:
        """Nothing: a chunk is never shared."""

    def fork(self, parent: int, child: int) -> None:
        raise AssertionError("a contiguous chunk has one owner; admit the copy as a request of its own")

    def swap_out(self, row: int, tokens: int, claim: Claim, tokens_per_block: float) -> Swapped | None:
        return None  # a chunk is never short of a block, so nobody is preempted for one

    def truncate(self, row: int, tokens: int) -> None:
        """Nothing to give back: the chunk stays whole until its sequence ends."""

    def release(self, row: int) -> int:
        blocks = self.table.cut(row, 0)
        self.placer.give(int(blocks[0]), self._wished.pop(row))
        self._reach_total -= self._reach.pop(row)
        return len(blocks)

    def waste(self, rows: NDArray[np.intp], written: NDArray[np.intp], total: int, external: int) -> Waste:
        held = (self.num_blocks - self.placer.free) * self.block_size
        return Waste(total, self._reach_total - total, internal=held - self._reach_total, external=external)
