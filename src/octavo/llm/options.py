"""``EngineOptions``: what a user may choose about an engine; flags of the command line, keywords of ``LLM``."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.config import (
    HEADROOM_TOKENS,
    MAX_NUM_BATCHED_TOKENS,
    SUPERBLOCK_TOKENS,
    AllocatorName,
    Placement,
    Preemption,
    QueueOrder,
)
from octavo.core.errors import ConfigError
from octavo.core.model_spec import KV_CACHE_DTYPES


@dataclass(frozen=True, slots=True)
class EngineOptions:
    model: str | None = None
    """A Hugging Face folder, a GGUF file or a hub name; None is the embedded SmolLM2-135M-Instruct."""
    dtype: str = "auto"
    """Element type of weights: auto (bf16), bf16 or f32."""
    quantization: str | None = None
    """How linear layers are kept: int8, gguf (in the file's own Q4_0, Q4_1 or Q8_0 blocks), or None: in ``dtype``."""
    kv_cache_dtype: str = "auto"
    """Element type of keys and values in the pool: auto (that of the weights), or a key of ``KV_CACHE_DTYPES``."""
    max_model_len: int | None = None
    """Tokens of prompt + output; None is the model's own maximum."""
    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = MAX_NUM_BATCHED_TOKENS
    """Token budget of a step; None is unlimited: every prompt is prefilled whole."""
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    """Bytes of the pool; None takes ``memory_share`` of the free memory."""
    num_blocks: int | None = None
    """Blocks of the pool, whatever their bytes; for tests. Overrides the two others."""
    memory_share: float = 0.4
    """Share of the free memory that the pool may take, in (0, 1]; at most what max_num_seqs longest requests need."""
    allocator: AllocatorName = "paged"
    placement: Placement = "first_fit"
    superblock_tokens: int = SUPERBLOCK_TOKENS
    """Slots of an aligned run that the paged allocator leaves to one request where it can; 0 places blocks anywhere."""
    enable_prefix_caching: bool = True
    watermark_blocks: int = 0
    headroom_tokens: int = HEADROOM_TOKENS
    """Tokens that admission leaves free for each running request to grow by, where that is more than the watermark."""
    queue: QueueOrder = "fcfs"
    preemption: Preemption = "recompute"
    prefix_wait: bool = True
    """Whether requests that arrive together with the same prefix compute it once: the later ones wait for the first."""
    kv_offload_bytes: int | None = None
    """Bytes of the second tier; None is as many blocks as the pool has where ``preemption`` is swap, else none."""
    kv_offload_path: str | None = None
    """A file for the second tier, which outlives this process; None is memory that does not."""
    thrash_preemptions: int | None = None
    """Preemptions within ``thrash_window`` steps at which admission pauses; None never pauses it."""
    thrash_window: int = 64
    threads: int | None = None
    """Threads of the native part; None is one a usable core."""
    path: str | None = None
    """Instruction path (avx512_amx, avx512_bf16, avx2, portable); None is the best this machine has."""
    seed: int | None = None
    """Seeds of requests that name none are drawn from this one; None draws it from the system."""

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "bf16", "f32"):
            raise ConfigError(
                f"dtype {self.dtype!r} is not supported; choose auto, bf16 or f32", param="--dtype"
            )
        if self.kv_cache_dtype not in ("auto", *KV_CACHE_DTYPES):
            known = ", ".join(("auto", *KV_CACHE_DTYPES))
            raise ConfigError(
                f"KV cache dtype {self.kv_cache_dtype!r} is not supported; choose one of {known}",
                param="--kv-cache-dtype",
            )
        if not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"the pool's share of free memory is {self.memory_share}; it must be in (0, 1]",
                param="--gpu-memory-utilization",
            )
        counts = {
            "--threads": self.threads,
            "--kv-cache-memory-bytes": self.kv_cache_memory_bytes,
            "--kv-offload-bytes": self.kv_offload_bytes,
            "--num-gpu-blocks-override": self.num_blocks,
            "--max-model-len": self.max_model_len,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
        }
        for flag, value in counts.items():
            if value is not None and value < 1:
                raise ConfigError(f"{flag} is {value}; it must be at least 1", param=flag)
