"""The second tier from options: how many blocks it has, what keeps their bytes, and what a swap costs."""

from __future__ import annotations

from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.execution.tier import AnonymousStore, Store
from octavo.llm.options import EngineOptions
from octavo.memory import sizing

COPY_BYTES_PER_S = 4e9
"""Between the pool and anonymous memory, one way, assumed: a block is a run of some KiB in each layer."""
FLOPS_PER_S_AND_CORE = 50e9
"""Of a prefill, assumed. Wrong by a factor of four, either number changes the choice for few victims: see the decision
page."""


def tier_blocks(options: EngineOptions, spec: ModelSpec, num_blocks: int) -> int:
    """Blocks of the second tier; 0 where there is none. Raises ConfigError."""
    named = options.kv_offload_bytes
    if options.allocator != "paged":
        if named is not None:
            raise ConfigError(
                f"--kv-offload-bytes needs --allocator paged: with {options.allocator} nobody is short of a block",
                param="--kv-offload-bytes",
            )
        return 0
    if named is None:
        return num_blocks if options.preemption == "swap" else 0
    size = sizing.block_bytes(spec, options.block_size)
    if named < size:
        raise ConfigError(
            f"--kv-offload-bytes is {named:,}, but one block of {options.block_size} tokens of {spec.name} takes"
            f" {size:,} bytes",
            param="--kv-offload-bytes",
        )
    return named // size


def swap_tokens_per_block(spec: ModelSpec, block_size: int, cores: int) -> float:
    """Tokens that are recomputed in the time in which one block is copied out and back."""
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    weights = spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)
    tokens_per_s = FLOPS_PER_S_AND_CORE * cores / (2 * weights)
    return 2 * sizing.block_bytes(spec, block_size) / COPY_BYTES_PER_S * tokens_per_s


def open_store(options: EngineOptions, spec: ModelSpec, blocks: int) -> Store | None:
    """Memory for so many blocks; None for none. Raises ConfigError."""
    if not blocks:
        return None
    layer_bytes = sizing.block_bytes(spec, options.block_size) // spec.num_layers
    return AnonymousStore(blocks, spec.num_layers, layer_bytes)
