"""Bytes to blocks and back. The only place that does this; boot lines, planner, simulator and page read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.config import BLOCK_SIZES
from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec

GIB = 1 << 30
MIB = 1 << 20


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // block_size)


def block_bytes(spec: ModelSpec, block_size: int) -> int:
    """Bytes of one block: 2 x layers x block_size x kv_heads x (head_dim x bytes per element + bytes of a scale)."""
    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise ConfigError(
            f"block size {block_size} is not supported; choose one of {sizes}", param="--block-size"
        )
    return spec.kv_bytes_per_token * block_size


def blocks_in(pool_bytes: int, spec: ModelSpec, block_size: int) -> int:
    """Whole blocks in ``pool_bytes``, so that the pool never exceeds them. ConfigError if not even one fits."""
    size = block_bytes(spec, block_size)
    if pool_bytes < size:
        raise ConfigError(
            f"a pool of {pool_bytes:,} bytes holds no block: one block of {block_size} tokens of {spec.name} takes"
            f" {size:,} bytes ({spec.kv_bytes_per_token:,} a token); raise --kv-cache-memory-bytes",
            param="--kv-cache-memory-bytes",
        )
    return pool_bytes // size


def offload_blocks_in(offload_bytes: int, spec: ModelSpec, block_size: int, allocator: str) -> int:
    """Whole blocks in a second tier of so many bytes. ConfigError if not even one fits, or the allocator uses none."""
    if allocator != "paged":
        raise ConfigError(
            f"--kv-offload-bytes needs --allocator paged: with {allocator} nobody is short of a block",
            param="--kv-offload-bytes",
        )
    size = block_bytes(spec, block_size)
    if offload_bytes < size:
        raise ConfigError(
            f"--kv-offload-bytes is {offload_bytes:,}, but one block of {block_size} tokens of {spec.name} takes"
            f" {size:,} bytes",
            param="--kv-offload-bytes",
        )
    return offload_bytes // size


def pool_bytes(num_blocks: int, spec: ModelSpec, block_size: int) -> int:
    """Bytes of a pool of ``num_blocks``."""
    return num_blocks * block_bytes(spec, block_size)


def tokens_per_gib(spec: ModelSpec) -> int:
    """Tokens whose keys and values fit into one GiB."""
    return GIB // spec.kv_bytes_per_token


def table_bytes(max_num_seqs: int, max_model_len: int, block_size: int) -> int:
    """Bytes of the block table: one int32 for each block that each row could hold."""
    return max_num_seqs * blocks_for(max_model_len, block_size) * 4


def max_concurrency(num_blocks: int, block_size: int, tokens_per_request: int) -> float:
    """Requests of ``tokens_per_request`` tokens (a whole number of blocks each) that fit into the pool at once."""
    if tokens_per_request < 1:
        raise ConfigError(f"a request of {tokens_per_request} tokens has no size; it must be at least 1")
    return num_blocks / blocks_for(tokens_per_request, block_size)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests of one size run at once."""

    fitting: int
    """Requests that the pool holds."""
    running: int
    """Requests that run: no more than that, and no more than there are rows."""
    limit: Literal["pool", "max_num_seqs"]
    """What would have to grow for more to run."""


def concurrency(blocks_per_request: int, num_blocks: int, max_num_seqs: int) -> Concurrency:
    """Requests that hold so many blocks each, sharing none, in a pool of ``num_blocks``."""
    assert blocks_per_request >= 1, "a request that runs holds a block"
    fitting = num_blocks // blocks_per_request
    if fitting < max_num_seqs:
        return Concurrency(fitting, fitting, "pool")
    return Concurrency(fitting, max_num_seqs, "max_num_seqs")
