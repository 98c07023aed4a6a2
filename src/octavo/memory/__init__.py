"""Who owns which slot: allocators, block pool, block table, prefix cache, sizes, audit.

Invariant: nothing here reads a clock or a random number, or holds a tensor. State is NumPy arrays over rows.
"""

from __future__ import annotations

from octavo.core.config import CacheConfig
from octavo.memory.allocator import Allocator, Blockage, Claim
from octavo.memory.block_table import BlockTable
from octavo.memory.contiguous import ContiguousAllocator
from octavo.memory.offload import Offload, OffloadTotals, Swapped
from octavo.memory.paged import PagedAllocator
from octavo.memory.placement import Buddy, FirstFit
from octavo.memory.prefix_cache import HashChain
from octavo.memory.superblocks import superblock_blocks

__all__ = [
    "Allocator",
    "BlockTable",
    "Blockage",
    "Buddy",
    "Claim",
    "ContiguousAllocator",
    "FirstFit",
    "HashChain",
    "Offload",
    "OffloadTotals",
    "PagedAllocator",
    "Swapped",
    "make_allocator",
]


def make_allocator(cache: CacheConfig, max_num_seqs: int, max_model_len: int) -> Allocator:
    """The allocator that ``cache`` names, for at most ``max_num_seqs`` rows of at most ``max_model_len`` tokens."""
    if cache.allocator == "paged":
        return PagedAllocator(
            cache.num_blocks,
            cache.block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            caching=cache.enable_prefix_caching,
            offload_blocks=cache.offload_blocks,
            superblock=superblock_blocks(cache.superblock_tokens, cache.block_size, cache.num_blocks),
        )
    return ContiguousAllocator(
        cache.allocator,
        cache.num_blocks,
        cache.block_size,
        Buddy(cache.num_blocks) if cache.placement == "buddy" else FirstFit(cache.num_blocks),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        round_up=cache.allocator == "pow2",
    )
