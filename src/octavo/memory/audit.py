"""Recounts everything from the tables and raises AssertionError on any difference. Slow on purpose: for tests."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from octavo.memory.allocator import Allocator
from octavo.memory.block_table import BlockTable
from octavo.memory.contiguous import ContiguousAllocator
from octavo.memory.lookup import Miss
from octavo.memory.offload import Offload
from octavo.memory.paged import PagedAllocator
from octavo.memory.sizing import blocks_for
from octavo.memory.superblocks import SuperblockPool


def audit(allocator: Allocator, tokens: Mapping[int, int], covered: Mapping[int, int] | None = None) -> None:
    """``tokens``: for every occupied row, the tokens whose keys and values it holds. Other rows must hold nothing.

    ``covered``: the same with those that the running plan writes. A paged row holds no block for any token beyond.
    """
    table = allocator.table
    held = table.num_blocks.tolist()
    assert table.entries == sum(held), "the table's count of entries is off"
    for row, blocks in enumerate(held):
        assert not blocks or table.last[row] == table.row(row)[-1], f"the last block of row {row} is another"
        slots, count = blocks * allocator.block_size, tokens.get(row, 0)
        assert row in tokens or not blocks, f"nobody occupies row {row}, but it holds blocks"
        assert count <= slots, f"row {row} has written {count} tokens into {slots} slots"
    state = allocator.state()
    assert state.total == allocator.num_blocks, f"{state} does not add up to {allocator.num_blocks} blocks"
    assert min(state.live, state.cached, state.free) >= 0, f"negative count in {state}"
    _audit_tier(allocator.offload)
    if isinstance(allocator, PagedAllocator):
        for row, count in (covered or {}).items():
            need = blocks_for(count, allocator.block_size)
            assert held[row] <= need, f"row {row} holds {held[row]} blocks for {count} tokens"
        _audit_pool(allocator, table)
        _audit_lookups(allocator)
        _audit_cache(allocator)
        _audit_promises(allocator, tokens)
    elif isinstance(allocator, ContiguousAllocator):
        _audit_chunks(allocator, table)


def _audit_pool(allocator: PagedAllocator, table: BlockTable) -> None:
    pool = allocator.pool
    entries: list[int] = []
    for row in np.flatnonzero(table.num_blocks).tolist():
        blocks = table.row(row).tolist()
        assert len(set(blocks)) == len(blocks), f"row {row} holds a block twice"
        entries += blocks
    refs = np.bincount(np.array(entries, np.intp), minlength=pool.total)
    wrong = np.flatnonzero(refs != pool.refs)
    assert not wrong.size, (
        f"block {wrong[:1]}: {refs[wrong[:1]]} table entries, {pool.refs[wrong[:1]]} references"
    )
    free, cached = pool.free_blocks(), pool.eviction_order()
    assert len(free) == pool.free, "the free blocks are miscounted"
    assert len(cached) == pool.cached, "the cached blocks are miscounted"
    kinds = (refs > 0).astype(np.intp) + np.bincount(np.concatenate((free, cached)), minlength=pool.total)
    assert (kinds == 1).all(), "a block is not exactly one of live, cached and free"
    assert not pool.findable[free].any(), "a free block can be found"
    assert pool.findable[cached].all(), "a cached block cannot be found"
    assert pool.live + pool.cached + pool.free == pool.total
    if isinstance(pool, SuperblockPool):
        audit_superblocks(pool)


def audit_superblocks(pool: SuperblockPool) -> None:
    """What the pool believes of its superblocks."""
    grid, counts = pool.opened_by_superblock()
    assert (grid.sum(axis=1) == counts).all(), "the open blocks of a superblock are miscounted"
    blocks = np.flatnonzero(grid)
    assert (pool.refs[blocks] == 0).all(), "a live block is open"
    assert not (blocks >= pool.top).any(), "a block behind the last open one is open"
    assert grid.ravel()[pool.free_blocks()].all(), "a free block is not open"
    assert len(blocks) - pool.free == pool.old, "the old blocks are miscounted"
    assert pool.references == int(pool.refs.sum()), "the references are miscounted"
    whole = pool.whole_superblocks()
    assert len(set(whole.tolist())) == len(whole), "a superblock is noted twice"
    noted = np.zeros(len(counts), np.bool_)
    noted[whole] = True
    assert noted[counts == pool.size].all(), "a wholly open superblock is lost"


def _audit_cache(allocator: PagedAllocator) -> None:
    cache, pool = allocator.cache, allocator.pool
    findable = np.flatnonzero(pool.findable).tolist()
    assert len(cache.index) == len(cache.names) == len(findable), "as many names as findable blocks"
    for block in findable:
        name = cache.names.get(block)
        assert name is not None and cache.index[name] == block, f"block {block} is not where its name leads"
    assert allocator.caching or not findable, "a block can be found although caching is off"


def _audit_lookups(allocator: PagedAllocator) -> None:
    lookups = allocator.lookups
    totals = lookups.totals
    assert totals.hits + sum(totals.misses.values()) == totals.blocks, "a block is neither a hit nor a miss"
    assert totals.tokens_hit <= totals.tokens_hit_ever <= totals.tokens_hit_ever_by_token <= totals.tokens
    full = allocator.table.num_blocks
    assert (lookups.done[full > 0] <= full[full > 0]).all(), "a row has computed blocks that it does not hold"
    for lookup in islice(reversed(lookups.recent.values()), 8):  # older ones were audited when they were new
        if lookup.unasked is None:
            assert lookup.hits + len(lookup.misses) == lookup.blocks, "a block of a prompt has no fate"
        assert len(lookup.evictions) == np.count_nonzero(lookup.misses == Miss.EVICTED)
        assert (lookup.computing is not None) == bool((lookup.misses == Miss.BEING_COMPUTED).any())


def _audit_promises(allocator: PagedAllocator, tokens: Mapping[int, int]) -> None:
    promised = allocator.promised.tolist()
    assert allocator.promised_total == sum(promised), "the promises are miscounted"
    width = allocator.table.matrix.shape[1]
    for row, blocks in enumerate(promised):
        assert blocks >= 0 and (row in tokens or not blocks), "a promise without a sequence"
        assert blocks + allocator.table.num_blocks[row] <= width, "more is promised than a row can hold"


def _audit_chunks(allocator: ContiguousAllocator, table: BlockTable) -> None:
    owner = np.zeros(allocator.num_blocks, np.int32)
    for row in np.flatnonzero(table.num_blocks).tolist():
        blocks = table.row(row)
        assert (np.diff(blocks) == 1).all(), f"the chunk of row {row} has a gap"
        owner[blocks] += 1
    free = 0
    for start, length in allocator.placer.runs():
        owner[start : start + length] += 1
        free += length
    assert (owner == 1).all(), "chunks and free runs overlap or leave a gap"
    assert free == allocator.placer.free, "the free blocks are miscounted"


def _audit_tier(offload: Offload) -> None:
    tier = offload.tier
    state = tier.state()
    assert state.total == tier.total, f"{state} does not add up to {tier.total} blocks"
    assert len(set(tier.free)) == len(tier.free), "a block of the tier is free twice"
    kinds = [*tier.held, *tier.names, *tier.free]
    assert sorted(kinds) == list(range(tier.total)), (
        "a block of the tier is not exactly one of its three kinds"
    )
    assert {block: name for name, block in tier.spilled.items()} == tier.names, (
        "a spilled block has another name"
    )
    for row, loading in offload.loading.items():
        assert set(loading.sources) <= tier.pinned, f"what row {row} waits for may be written over"
        known = tier.names.keys() if loading.swapped is None else tier.held
        assert set(loading.sources) <= known, f"what row {row} waits for is gone"
