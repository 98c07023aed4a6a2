"""A trace's own block ids through the real block pool and prefix cache, at any capacity: the hit rates of the trace.

Only memory matters here: each request takes its blocks, computes what it did not find, and gives all back before the
next one comes, so blocks are reused in the order of the requests (least recently used first, chain tails first).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.memory.block_pool import BlockPool
from octavo.memory.prefix_cache import HashChain, PrefixCache
from octavo.simulation.traces import TraceRow


@dataclass(frozen=True, slots=True)
class HitRate:
    """What one capacity found."""

    capacity: int | None
    """Blocks; None is a cache that forgets nothing."""
    blocks: int
    block_hits: int
    tokens: int
    token_hits: int

    @property
    def rate(self) -> float:
        """Share of the block references that were found."""
        return self.block_hits / self.blocks if self.blocks else 0.0

    @property
    def token_rate(self) -> float:
        """Share of the prompt tokens that were found."""
        return self.token_hits / self.tokens if self.tokens else 0.0


class _Cache:
    """Block pool and prefix cache of one capacity. A block of the trace is a block of one token here: its id."""

    def __init__(self, capacity: int) -> None:
        self.index = PrefixCache(capacity, 1)
        self.pool = BlockPool(capacity, lambda blocks, at: self.index.forget(blocks.tolist()))
        self.block_hits = 0
        self.token_hits = 0

    def visit(self, chain: HashChain, ids: NDArray[np.int32]) -> int:
        """Use these blocks as one request does and return how many leading ones were there.

        Of a request with more blocks than there are, the head is kept: it is what others may share.
        """
        count = min(len(ids), self.pool.total)
        hits = self.index.match(chain, ids, count)
        found = len(hits)
        if found:
            self.pool.share(hits)
        fresh = self.pool.acquire(count - found)
        assert fresh is not None, "all other blocks were given back"
        if len(fresh):
            new = self.index.publish(fresh, [found], [count], [chain], ids[found:count, None])
            self.pool.publish(new)
        self.pool.release(np.concatenate((hits, fresh)))
        return found


def replay(rows: Iterable[TraceRow], block_size: int, capacities: Sequence[int | None]) -> list[HitRate]:
    """Hit rates at each capacity (in the trace's blocks of ``block_size`` tokens), in one pass over the trace.

    Raises ConfigError for a trace without block ids or a capacity below 1.
    """
    for capacity in capacities:
        if capacity is not None and capacity < 1:
            raise ConfigError(f"a cache of {capacity} blocks; it needs at least 1", param="--cache-blocks")
    caches = [None if capacity is None else _Cache(capacity) for capacity in capacities]
    ideal_blocks = ideal_tokens = blocks = tokens = 0
    numbers: dict[int, int] = {}
    seen: set[bytes] = set()
    for row in rows:
        if row.block_ids is None:
            raise ConfigError("this trace has no block ids to replay", param="--trace")
        # Ids of any size become dense ones, which are the token ids of the prefix cache.
        dense = [numbers.setdefault(block, len(numbers)) for block in row.block_ids.tolist()]
        ids = np.array(dense, np.int32)
        chain = HashChain()
        chain.extend(ids, 1)
        blocks += len(ids)
        tokens += row.prompt_tokens
        for cache in caches:
            if cache is not None:
                found = cache.visit(chain, ids)
                cache.block_hits += found
                cache.token_hits += min(found * block_size, row.prompt_tokens)
        known = next((i for i, digest in enumerate(chain.digests) if digest not in seen), len(ids))
        seen.update(chain.digests[known:])
        ideal_blocks += known
        ideal_tokens += min(known * block_size, row.prompt_tokens)
    return [
        HitRate(capacity, blocks, ideal_blocks, tokens, ideal_tokens)
        if cache is None
        else HitRate(capacity, blocks, cache.block_hits, tokens, cache.token_hits)
        for capacity, cache in zip(capacities, caches, strict=True)
    ]
