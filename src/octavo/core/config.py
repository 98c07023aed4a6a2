"""Frozen settings, built once at the edge. Every field has a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.errors import ConfigError

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Block sizes that every kernel and allocator supports, in token slots."""

SUPERBLOCK_TOKENS = 128
"""Slots of a superblock where nobody names a number."""

HEADROOM_TOKENS = 32
"""Tokens kept free for each running sequence where nobody names a number."""

MAX_NUM_BATCHED_TOKENS = 2048
"""Token budget of a step where nobody names one."""

AllocatorName = Literal["paged", "reserved", "pow2"]
Placement = Literal["first_fit", "buddy"]
Order = Literal["decode_first", "admission_first"]
QueueOrder = Literal["fcfs", "priority"]
Preemption = Literal["recompute", "restart", "swap"]


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The pool and the policy that hands it out."""

    num_blocks: int
    """Blocks in the pool."""
    block_size: int = 16
    """Token slots of a block; a power of two from 1 to 256."""
    allocator: AllocatorName = "paged"
    placement: Placement = "first_fit"
    """Where a contiguous allocator looks for a run; the paged one ignores it."""
    enable_prefix_caching: bool = True
    """Whether full blocks stay findable by content. Contiguous allocators never share."""
    offload_blocks: int = 0
    """Blocks of the second tier, for swapped and forgotten blocks; contiguous allocators have no use for it."""
    superblock_tokens: int = SUPERBLOCK_TOKENS
    """Slots of an aligned run that the paged allocator leaves to one sequence while others find room elsewhere; a power
    of two, or 0: any block is as good as another."""

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"block size {self.block_size} is not supported; choose one of {', '.join(map(str, BLOCK_SIZES))}",
                param="--block-size",
            )
        if self.superblock_tokens < 0 or self.superblock_tokens & (self.superblock_tokens - 1):
            raise ConfigError(
                f"a superblock of {self.superblock_tokens} tokens; it must be a power of two, or 0 for none",
                param="--superblock-tokens",
            )
        if self.num_blocks < 1:
            raise ConfigError(
                f"the pool has {self.num_blocks} blocks; it needs at least 1",
                param="--num-gpu-blocks-override",
            )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of the scheduler. Presets are values of these; nothing asks for a preset's name."""

    max_num_seqs: int = 128
    """Most sequences running at once (rows of the block table)."""
    max_num_batched_tokens: int | None = MAX_NUM_BATCHED_TOKENS
    """Token budget of a step over all rows; None is unlimited (a prompt is then prefilled whole)."""
    max_model_len: int = 2048
    """Tokens: longest prompt + output. The scheduler takes the smaller of this and the pool."""
    watermark_blocks: int = 0
    """Blocks that admission leaves free for growth; ignored while nothing runs."""
    order: Order = "decode_first"
    """Whether a step serves running rows or the queue first."""
    queue: QueueOrder = "fcfs"
    """fcfs: by arrival. priority: by ``Request.priority`` (lower first), then arrival."""
    preemption: Preemption = "recompute"
    """What a victim keeps: its generated tokens (recompute), nothing (restart), or its keys and values, too, in the
    second tier (swap), where that has room and ``swap_tokens_per_block`` says that it is sooner."""
    prefix_wait: bool = False
    """Whether the queue's head waits for blocks of its prefix that a running request is computing, where that spares
    it at least half of its own work."""
    thrash_preemptions: int | None = None
    """Preemptions within ``thrash_window`` at which admission pauses; None never pauses it."""
    thrash_window: int = 64
    """Steps without a preemption after which it goes on."""
    swap_tokens_per_block: float = 0.0
    """Tokens that are recomputed in the time in which one block is copied to the second tier and back; 0 always
    swaps. A number of the settings, not a measurement in the loop: the same requests must be decided alike."""
    headroom_tokens: int = 0
    """Tokens that admission leaves free for each running sequence to grow by, where that is more than the watermark;
    allocators that reserve ahead have no use for it."""

    def __post_init__(self) -> None:
        limit = self.thrash_preemptions
        positive = {
            "--thrash-preemptions": 1 if limit is None else limit,
            "--thrash-window": self.thrash_window,
            "--max-num-seqs": self.max_num_seqs,
            "--max-model-len": self.max_model_len,
            "--max-num-batched-tokens": 1
            if self.max_num_batched_tokens is None
            else self.max_num_batched_tokens,
        }
        for flag, value in positive.items():
            if value < 1:
                raise ConfigError(f"{flag} is {value}; it must be at least 1", param=flag)
        if self.watermark_blocks < 0:
            raise ConfigError(
                f"the watermark is {self.watermark_blocks} blocks; it must be at least 0",
                param="--watermark-blocks",
            )
        if self.headroom_tokens < 0:
            raise ConfigError(
                f"the headroom is {self.headroom_tokens} tokens; it must be at least 0",
                param="--headroom-tokens",
            )
