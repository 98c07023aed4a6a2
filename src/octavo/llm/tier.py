"""The second tier from options: how many blocks it has, what keeps their bytes, and what a swap costs."""

from __future__ import annotations

from pathlib import Path

from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.execution.cpu_executor import instruction_path
from octavo.execution.loading import LoadedModel
from octavo.execution.loading.fingerprint import fingerprint
from octavo.execution.tier import AnonymousStore
from octavo.execution.tier_file import FileStore
from octavo.llm.options import EngineOptions
from octavo.memory import sizing

COPY_BYTES_PER_S = 8e9
"""Between the pool and anonymous memory, one way, assumed: a block is a run of some KiB in each layer."""
FILE_BYTES_PER_S = 0.9e9
"""Between the pool and a file's pages in memory, one way, assumed: most of it goes into the checksum."""
FLOPS_PER_S_AND_CORE = 100e9
"""Of a prefill, assumed. Wrong by a factor of four, either number changes the choice for few victims: see the decision
page."""


def tier_blocks(options: EngineOptions, spec: ModelSpec, num_blocks: int) -> int:
    """Blocks of the second tier; 0 where there is none. Raises ConfigError."""
    named = options.kv_offload_bytes
    if named is None and options.kv_offload_path is not None:
        raise ConfigError(
            "--kv-offload-path needs --kv-offload-bytes: how large the file is to be",
            param="--kv-offload-bytes",
        )
    if named is not None:
        return sizing.offload_blocks_in(named, spec, options.block_size, options.allocator)
    return num_blocks if options.preemption == "swap" and options.allocator == "paged" else 0


def swap_tokens_per_block(options: EngineOptions, spec: ModelSpec, cores: int) -> float:
    """Tokens that are recomputed in the time in which one block is copied out and back."""
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    weights = spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)
    tokens_per_s = FLOPS_PER_S_AND_CORE * cores / (2 * weights)
    bandwidth = COPY_BYTES_PER_S if options.kv_offload_path is None else FILE_BYTES_PER_S
    return 2 * sizing.block_bytes(spec, options.block_size) / bandwidth * tokens_per_s


def open_store(options: EngineOptions, model: LoadedModel, blocks: int) -> FileStore | AnonymousStore | None:
    """Memory or a file for so many blocks; None for none. Raises ConfigError."""
    if not blocks:
        return None
    spec = model.spec
    layer_bytes = sizing.block_bytes(spec, options.block_size) // spec.num_layers
    if options.kv_offload_path is None:
        return AnonymousStore(blocks, spec.num_layers, layer_bytes)
    # Whatever changes a bit of a block: other instructions round otherwise, too.
    about: dict[str, str | int] = {
        "model": f"{spec.name} {fingerprint(model.path)}",
        "element type of weights (--dtype)": spec.weight_dtype,
        "quantization (--quantization)": options.quantization or "none",
        "element type of keys and values (--kv-cache-dtype)": spec.kv_dtype,
        "block size (--block-size)": options.block_size,
        "instruction path (--cpu-path)": instruction_path(options.path),
        "layout of blocks": f"1, {spec.num_layers} layers of {layer_bytes} bytes",
    }
    return FileStore(Path(options.kv_offload_path).expanduser(), about, blocks, spec.num_layers, layer_bytes)


def tier_lines(options: EngineOptions, spec: ModelSpec, blocks: int, found: int) -> list[str]:
    """What to say of it at the start; nothing where there is none. ``found``: blocks that the file had."""
    if not blocks:
        return []
    size = blocks * sizing.block_bytes(spec, options.block_size) / sizing.MIB
    where = "in memory"
    if options.kv_offload_path is not None:
        where = f"in {options.kv_offload_path}, {found:,} of them full from before"
    return [f"Second tier: {blocks:,} blocks, {size:,.1f} MiB (--kv-offload-bytes) {where}"]
