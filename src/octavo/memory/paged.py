"""``PagedAllocator``: a block at a time, never one for a token that is not written."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import PoolState, Waste
from octavo.memory.allocator import NO_COPIES, Blockage, Claim
from octavo.memory.block_pool import NO_BLOCKS, BlockPool, Blocks
from octavo.memory.block_table import BlockTable
from octavo.memory.lookups import Lookups
from octavo.memory.offload import Offload, Swapped
from octavo.memory.prefix_cache import HashChain, PrefixCache
from octavo.memory.sizing import blocks_for
from octavo.memory.superblocks import SuperblockPool

FEW = 12
"""Rows up to which plain numbers are quicker than as many arrays."""


class PagedAllocator:
    """Blocks on demand, shared by content (prefix cache) and by descent (fork), copied on the first write.

    An admitted sequence is *promised* the blocks of all its known tokens but holds only those of tokens that are
    written. Promises bind admission alone: growth of running rows may take such blocks (the row that misses them
    is then preempted), because holding them back would be reservation under another name.
    """

    name = "paged"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_num_seqs: int,
        max_model_len: int,
        caching: bool,
        offload_blocks: int = 0,
        superblock: int = 1,
    ) -> None:
        """``superblock``: blocks of an aligned run that a sequence had best have for itself; 1 is any block."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.pool_len = num_blocks * block_size
        self.max_len = min(max_model_len, self.pool_len)
        self.table = BlockTable(max_num_seqs, blocks_for(self.max_len, block_size))
        self.caching = caching
        self.grows = self.can_fork = True
        self.cache = PrefixCache(num_blocks if caching else 0, block_size)
        self.superblock = superblock
        self._placing = superblock > 1
        """Whether the pool looks at where a row's last block is. Only then is it read from the table."""
        if self._placing:
            self.pool: BlockPool = SuperblockPool(num_blocks, superblock, self._on_evict)
        else:
            self.pool = BlockPool(num_blocks, self._on_evict)
        self.blocked: Blockage | None = None  # never: any block is as good as another
        self.lookups = Lookups(
            self.cache, num_blocks, block_size, max_num_seqs, None if caching else "caching_disabled"
        )
        self.offload = Offload(num_blocks, offload_blocks)
        self._idle_since = np.zeros(num_blocks, np.uint32)
        """Step in which each block last lost an owner; of use while it has none."""
        self._takers: tuple[NDArray[np.intp], NDArray[np.intp] | int] = NO_BLOCKS, 1
        """Rows for which blocks are being acquired, and how many for each, in the order of the blocks; one row alone
        takes all, and where a number is given, it is 1."""
        self.promised = np.zeros(max_num_seqs, np.intp)
        """intp [rows]: blocks of known tokens that each row does not hold yet."""
        self.promised_total = 0
        self._unclean: set[int] = set()
        self._copies: list[tuple[int, int]] = []
        self._evicted: list[int] = []

    def state(self) -> PoolState:
        return self.pool.state()

    @property
    def unclean(self) -> Collection[int]:
        return self._unclean

    def admit(self, row: int, claim: Claim, headroom: int, budget: int) -> int | None:
        assert self.table.num_blocks[row] == 0, "a row is admitted once"
        known = len(claim.token_ids)
        need = blocks_for(known, self.block_size)
        room = self.pool.available - self.promised_total - headroom
        hits, swapped = NO_BLOCKS, claim.swapped
        loads: tuple[int, ...] = ()
        if swapped is not None:
            hits = self._match(claim, swapped.tokens // self.block_size)
            loads = swapped.blocks[len(hits) :]
        elif self.caching and claim.lookup:
            # At least one token is left to compute: the step needs a row to sample from.
            most = (known - 1) // self.block_size
            # A queue's head that does not fit is asked for in every step; matching all its blocks again would be
            # most of such a step.
            if need > room and not self.cache.may_find(claim.chain, claim.token_ids, need - room, most):
                return None
            hits = self._match(claim, most)
            if self.offload.tier.spilled:
                loads = self.offload.find(claim.chain.digests[len(hits) : most])
        missing = need - len(hits)
        if len(hits):
            # Hits that nobody holds now leave the cached blocks, so they cost room as fresh ones do.
            room -= int(np.count_nonzero(self.pool.refs[hits] == 0))
        if missing > room:
            return None
        cached = (len(hits) + len(loads)) * self.block_size if swapped is None else swapped.tokens
        self.lookups.take(row, claim, cached // self.block_size, len(loads))
        if len(hits):
            self.pool.share(hits)
            self.table.append(row, hits)
        if loads:
            self.offload.pin(loads)
        # Whoever waits for its blocks computes nothing meanwhile.
        chunk = 0 if loads else budget
        first = blocks_for(min(known, cached + chunk), self.block_size) - len(hits)
        blocks = self._acquire(row, first)
        self.table.append(row, blocks)
        self.promised[row] = missing - first
        self.promised_total += missing - first
        if loads:
            self.offload.load(row, len(hits), loads, blocks[: len(loads)], swapped)
        elif swapped is not None:  # the pool still has all of it
            self.offload.drop(swapped)
        return cached

    def _match(self, claim: Claim, most: int) -> Blocks:
        if not (self.caching and claim.lookup):
            return NO_BLOCKS
        return self.cache.match(claim.chain, claim.token_ids, most)

    def grow(self, rows: NDArray[np.intp], starts: NDArray[np.intp], stops: NDArray[np.intp]) -> int:
        if self._unclean and not self._unclean.isdisjoint(rows.tolist()):
            return self._grow_copying(rows, starts, stops)
        size = self.block_size
        counts = np.maximum((stops + (size - 1)) // size - self.table.num_blocks[rows], 0)
        total = int(counts.sum())
        if total > self.pool.available:
            served = int(np.searchsorted(np.cumsum(counts), self.pool.available, side="right"))
            if served == 0:
                return 0
            rows, counts = rows[:served], counts[:served]
            total = int(counts.sum())
        if total:
            self._extend(rows, counts, total)
        return len(rows)

    def grow_by_block(self, rows: NDArray[np.intp]) -> int:
        if len(rows) > self.pool.available:
            rows = rows[: self.pool.available]
        self._extend_each(rows)
        if self.promised_total:
            self._redeem(rows, np.ones(len(rows), np.intp))
        return len(rows)

    def _extend(self, rows: NDArray[np.intp], counts: NDArray[np.intp], total: int) -> None:
        if len(rows) == 1:
            row = int(rows[0])
            self.table.append(row, self._acquire(row, total))
        elif self._placing:
            self._extend_in_place(rows, counts)
        else:
            self._takers = rows, counts
            blocks = self.pool.acquire(total)
            assert blocks is not None
            self.table.append_each(rows, counts, blocks)
        if self.promised_total:
            self._redeem(rows, counts)

    def _extend_in_place(self, rows: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """``counts[i]`` blocks to each of these rows, where its last one is; there are as many."""
        one = (counts == 1) & (self.table.num_blocks[rows] > 0)
        if np.count_nonzero(one):
            self._extend_each(rows[one])
        more = ((counts > 0) & ~one).nonzero()[0]
        for row, count in zip(rows[more].tolist(), counts[more].tolist(), strict=True):
            self.table.append(row, self._acquire(row, count))

    def _extend_each(self, rows: NDArray[np.intp]) -> None:
        """A block to each of these rows, all of which hold some; there are as many."""
        self._takers = rows, 1
        table, pool = self.table, self.pool
        if isinstance(pool, SuperblockPool) and len(rows) <= FEW:
            numbers = rows.tolist()
            few = pool.acquire_few(table.ends(rows).tolist())
            assert few is not None
            table.append_to_few(numbers, few)
            return
        blocks = pool.acquire_each(table.ends(rows)) if self._placing else pool.acquire(len(rows))
        assert blocks is not None
        table.append_one(rows, blocks)

    def _acquire(self, row: int, count: int) -> Blocks:
        """Blocks for one row; there are as many."""
        self._takers = np.array([row]), 1
        table = self.table
        blocks = self.pool.acquire(count, int(table.last[row]) if table.num_blocks[row] else None)
        assert blocks is not None
        return blocks

    def _redeem(self, rows: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        """Blocks were handed out: to a row in the middle of its prompt they had been promised."""
        kept = np.minimum(self.promised[rows], counts)
        self.promised[rows] -= kept
        self.promised_total -= int(kept.sum())

    def _grow_copying(self, rows: NDArray[np.intp], starts: NDArray[np.intp], stops: NDArray[np.intp]) -> int:
        """``grow`` where some row may write into a block that another one sees. Rare, so one row at a time."""
        size = self.block_size
        for i, (row, start, stop) in enumerate(
            zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True)
        ):
            count = max(blocks_for(stop, size) - int(self.table.num_blocks[row]), 0)
            partial = (
                int(self.table.matrix[row, start // size]) if row in self._unclean and start % size else None
            )
            copying = partial is not None and self.pool.refs[partial] > 1
            if count + copying > self.pool.available:
                return i
            if partial is not None:
                self._make_writable(row, start // size, partial)
            self._unclean.discard(row)
            if count:
                self._extend(rows[i : i + 1], np.array([count]), count)
        return len(rows)

    def _make_writable(self, row: int, number: int, block: int) -> None:
        """Give a row its own copy of a block that others hold; take one that only the cache sees out of it."""
        if self.pool.refs[block] > 1:
            # Not behind the block that it copies: whoever keeps that one may grow there.
            self._takers = np.array([row]), 1
            fresh = self.pool.acquire(1)
            assert fresh is not None
            self._copies.append((block, int(fresh[0])))
            self.table.replace(row, number, int(fresh[0]))
            self.pool.release(np.array([block]))
        elif self.pool.findable[block]:
            self.cache.torn = True
            self.lookups.reset(self.cache.forget([block]))
            self.pool.withdraw(block)

    def park(self) -> None:
        if self.offload.tier.total:
            # What would be evicted last is spilled last: it is the last to make room.
            blocks = self.pool.eviction_order().tolist()
            self.offload.spill(blocks, [self.cache.names[block] for block in blocks])

    def reset_cache(self) -> int:
        self.lookups.reset(self.cache.forget(np.flatnonzero(self.pool.findable).tolist()))
        self.offload.forget_all()
        return self.pool.forget_all()

    def take_copies(self) -> NDArray[np.int32]:
        if not self._copies:
            return NO_COPIES
        copies = np.array(self._copies, np.int32)
        self._copies.clear()
        return copies

    def take_evicted(self) -> tuple[int, ...]:
        self.lookups.step += 1
        if not self._evicted:
            return ()
        evicted = tuple(self._evicted)
        self._evicted.clear()
        return evicted

    def _on_evict(self, blocks: Blocks, at: NDArray[np.intp]) -> None:
        numbers = blocks.tolist()
        rows, counts = self._takers
        if len(rows) > 1:
            rows = np.repeat(rows, counts)[at]
        # Placement does not ask which block of a chain it takes.
        self.cache.torn |= self._placing
        names = self.cache.forget(numbers)
        if self.offload.tier.total:
            self.offload.spill(numbers, names)
        self.lookups.evicted(names, self._idle_since[blocks], rows)
        self._evicted += numbers

    def publish(
        self,
        rows: NDArray[np.intp],
        firsts: NDArray[np.intp],
        lasts: NDArray[np.intp],
        chains: Sequence[HashChain],
        tokens: NDArray[np.int32],
    ) -> None:
        self.lookups.done[rows] = lasts
        counts = lasts - firsts
        total = int(counts.sum())
        numbers = firsts
        if total > len(rows):  # chunks; one block each is the decode's case
            within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            rows, numbers = np.repeat(rows, counts), np.repeat(firsts, counts) + within
        blocks, content = self.table.blocks_at(rows, numbers), tokens[rows, numbers]
        new = self.cache.publish(blocks, firsts.tolist(), lasts.tolist(), chains, content)
        self.pool.publish(new)

    def fork(self, parent: int, child: int) -> None:
        assert self.table.num_blocks[child] == 0, "a fork needs an empty row"
        assert self.promised[parent] == 0, "a sequence is forked when its prompt is computed"
        blocks = self.table.row(parent).astype(np.intp)
        self.pool.share(blocks)
        self.table.append(child, blocks)
        self.lookups.fork(parent, child)
        self._unclean |= {parent, child}

    def swap_out(self, row: int, tokens: int, claim: Claim, tokens_per_block: float) -> Swapped | None:
        blocks = self.table.row(row)[: blocks_for(tokens, self.block_size)]
        if row in self.offload.loading:
            return self.offload.cancel(row, set(self.table.row(row).tolist()))
        if not len(blocks) or not self.offload.tier.total:
            return None
        # Full blocks that others hold will be found again, as far as anybody can tell.
        kept = (self.pool.refs[blocks] > 1) & self.pool.findable[blocks] & claim.lookup
        found = len(kept) if kept.all() else int(kept.argmin())
        if len(blocks) * tokens_per_block > tokens - found * self.block_size:
            return None
        # A copy that this plan has not made yet is read where it comes from.
        source = {copy: block for block, copy in self._copies}
        return self.offload.save([source.get(block, block) for block in blocks.tolist()], tokens)

    def truncate(self, row: int, tokens: int) -> None:
        keep = blocks_for(tokens, self.block_size)
        assert keep <= self.table.num_blocks[row], "only written tokens can be cut"
        self.promised_total -= int(self.promised[row])
        self.promised[row] = 0
        dropped = self.table.cut(row, keep)
        self._let_go(dropped)
        self.lookups.cut(row, tokens // self.block_size)
        if tokens % self.block_size:
            self._unclean.add(row)

    def release(self, row: int) -> int:
        self._unclean.discard(row)
        if row in self.offload.loading:  # what it had been swapped out to, if anything, nobody waits for
            swapped = self.offload.cancel(row, set(self.table.row(row).tolist()))
            if swapped is not None:
                self.offload.drop(swapped)
        self.promised_total -= int(self.promised[row])
        self.promised[row] = 0
        blocks = self.table.cut(row, 0)
        self._let_go(blocks)
        self.lookups.released(row)
        return len(blocks)

    def _let_go(self, blocks: Blocks) -> None:
        self._drop_copies(blocks)
        self._idle_since[blocks] = self.lookups.step
        self.pool.release(blocks)

    def _drop_copies(self, blocks: Blocks) -> None:
        """Copies into blocks that are given up before they were made."""
        if self._copies:
            gone = set(blocks.tolist())
            self._copies = [copy for copy in self._copies if copy[1] not in gone]

    def waste(self, rows: NDArray[np.intp], written: NDArray[np.intp], total: int, external: int) -> Waste:
        held = self.pool.live * self.block_size
        # Partial blocks are private unless a row is unclean: what is empty then belongs to one row each.
        private = held - (self.table.entries * self.block_size - total)
        filled = self._filled(rows, written) if self._unclean else private
        return Waste(written=filled, reserved=0, internal=held - filled, external=external)

    def _filled(self, rows: NDArray[np.intp], written: NDArray[np.intp]) -> int:
        """Written slots when rows may share partial blocks: of each block, the most that any row has filled."""
        size = self.block_size
        most = np.zeros(self.num_blocks, np.int64)
        for row, tokens in zip(rows.tolist(), written.tolist(), strict=True):
            blocks = self.table.row(row)
            filled = np.clip(tokens - np.arange(len(blocks)) * size, 0, size)
            most[blocks] = np.maximum(most[blocks], filled)
        return int(most.sum())
