"""Flags that choose model, pool, scheduler and engine, in groups, shared by every command that builds one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from octavo.core.config import BLOCK_SIZES, HEADROOM_TOKENS, MAX_NUM_BATCHED_TOKENS, SUPERBLOCK_TOKENS
from octavo.core.errors import ConfigError
from octavo.core.model_spec import KV_CACHE_DTYPES
from octavo.llm.options import EngineOptions

UNLIMITED = "unlimited"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


class ByteSize(click.ParamType[int]):
    """2GiB, 512M, 1.5G or a plain number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("B")
        number = text.rstrip("KMGI")
        unit = text[len(number) :]
        try:
            return round(float(number) * UNITS[unit])
        except (KeyError, ValueError):
            self.fail(f"{value!r} is not a size; write 2GiB, 512M or a number of bytes", param, ctx)


class TokenBudget(click.ParamType[int | str]):
    """A number of tokens, or unlimited."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == UNLIMITED:
            return UNLIMITED
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of tokens nor {UNLIMITED}", param, ctx)


Flags = tuple[Callable[[Any], Any], ...]

MODEL_FLAGS: Flags = (
    click.option(
        "--model",
        metavar="MODEL",
        help="A Hugging Face folder, a GGUF file or a hub name. Default: the embedded SmolLM2-135M-Instruct.",
    ),
    click.option(
        "--quantization",
        type=click.Choice(["int8", "gguf"]),
        help="Keep linear layers as int8, or in the GGUF file's own blocks (Q4_0, Q4_1, Q8_0). Default: in full.",
    ),
)
"""Which model, as an engine loads it."""

POOL_FLAGS: Flags = (
    click.option(
        "--dtype",
        type=click.Choice(["auto", "bf16", "f32"]),
        default="auto",
        show_default=True,
        help="Element type of weights, and of the KV cache where nothing else is said; auto is bf16.",
    ),
    click.option(
        "--kv-cache-dtype",
        type=click.Choice(["auto", *KV_CACHE_DTYPES]),
        default="auto",
        show_default=True,
        help="Element type of keys and values in the pool; auto is that of the weights. fp8 (fp8_e4m3) and int8 take"
        " a byte, and four for the scale of each token and head.",
    ),
    click.option(
        "--block-size",
        type=int,
        default=16,
        show_default=True,
        help=f"Token slots of a block: {', '.join(map(str, BLOCK_SIZES))}.",
    ),
    click.option("--kv-cache-memory-bytes", type=ByteSize(), help="Bytes of the pool, as 2GiB or 512M."),
    click.option(
        "--num-gpu-blocks-override",
        "num_blocks",
        type=int,
        help="Blocks of the pool, whatever their bytes (the name is vLLM's; it counts blocks on a CPU too).",
    ),
)
"""How big the pool is and what a block is. The simulator takes them too."""

MEMORY_FLAGS: Flags = (
    click.option(
        "--gpu-memory-utilization",
        "memory_share",
        type=float,
        default=0.4,
        show_default=True,
        help="Share of the free memory that the pool may take where no size is given (the name is vLLM's).",
    ),
)
"""The pool of an engine that was given no size: a share of what is free."""

SCHEDULER_FLAGS: Flags = (
    click.option(
        "--max-model-len",
        type=int,
        help="Tokens of prompt and output together. Default: the model's maximum.",
    ),
    click.option(
        "--max-num-seqs", type=int, default=128, show_default=True, help="Most sequences that run at once."
    ),
    click.option(
        "--max-num-batched-tokens",
        type=TokenBudget(),
        help="Token budget of a step, or unlimited; prompts over it are prefilled in chunks. "
        f"Default: {MAX_NUM_BATCHED_TOKENS}.",
    ),
    click.option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        "chunked_prefill",
        default=True,
        show_default=True,
        help="Prefill a prompt over the token budget in chunks, between which others decode; without it every prompt "
        "is prefilled whole, and the budget is unlimited.",
    ),
    click.option(
        "--placement",
        type=click.Choice(["first_fit", "buddy"]),
        default="first_fit",
        show_default=True,
        help="Where a contiguous allocator looks for room.",
    ),
    click.option(
        "--superblock-tokens",
        type=int,
        default=SUPERBLOCK_TOKENS,
        show_default=True,
        help="Slots of an aligned run that the paged allocator leaves to one request while others find room elsewhere; "
        "a power of two, or 0: any block for anyone.",
    ),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=True,
        show_default=True,
        help="Keep the blocks of ended requests findable by content.",
    ),
    click.option(
        "--prefix-wait/--no-prefix-wait",
        default=True,
        show_default=True,
        help="Let requests that arrive together with the same prefix compute it once: later ones wait for the first.",
    ),
    click.option(
        "--watermark-blocks",
        type=int,
        default=0,
        show_default=True,
        help="Blocks that admission leaves free for running requests to grow.",
    ),
    click.option(
        "--headroom-tokens",
        type=int,
        default=HEADROOM_TOKENS,
        show_default=True,
        help="Tokens that admission leaves free for each running request to grow by, where that is more than the"
        " watermark; for the paged allocator alone.",
    ),
    click.option(
        "--scheduling-policy",
        "queue",
        type=click.Choice(["fcfs", "priority"]),
        default="fcfs",
        show_default=True,
        help="Order of the waiting queue.",
    ),
    click.option(
        "--preemption",
        type=click.Choice(["recompute", "restart", "swap"]),
        default="recompute",
        show_default=True,
        help="What a preempted request keeps: its generated tokens (recompute), nothing (restart), or its keys and "
        "values too, in the second tier (swap), where that is sooner.",
    ),
    click.option(
        "--kv-offload-bytes",
        type=ByteSize(),
        help="Bytes of a second tier beside the pool, to which cached blocks go before they are forgotten. "
        "Default: as many as the pool has with --preemption swap, else none.",
    ),
)
"""Limits and policies. The simulator takes them too."""

TIER_FLAGS: Flags = (
    click.option(
        "--kv-offload-path",
        metavar="FILE",
        help="Keep the second tier in this file, so that a later process finds its blocks again. Default: in memory.",
    ),
)
"""What a simulator does not have."""

ALLOCATOR_FLAGS: Flags = (
    click.option(
        "--allocator",
        type=click.Choice(["paged", "reserved", "pow2"]),
        default="paged",
        show_default=True,
        help="paged; or contiguous: reserved (prompt + declared maximum), pow2 (rounded up to a power of two).",
    ),
)
"""The allocators that an engine can have; the simulator has one more."""

MACHINE_FLAGS: Flags = (
    click.option("--threads", type=int, help="Threads of the native part. Default: one a usable core."),
    click.option(
        "--cpu-path",
        "path",
        type=click.Choice(["avx512_amx", "avx512_bf16", "avx2", "portable"]),
        help="Instruction path. Default: the best that this machine has.",
    ),
    click.option(
        "--seed", type=int, help="Seed of every request that names none. Default: drawn by the system."
    ),
)
"""The machine that an engine runs on."""


def with_flags(command: Callable[..., Any], *groups: Flags) -> Callable[..., Any]:
    """Adds the flags of these groups, in this order; the command receives them as keywords."""
    for flag in reversed([flag for group in groups for flag in group]):
        command = flag(command)
    return command


def engine_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of an engine; the command receives them as keywords for ``engine_options``."""
    return with_flags(
        command,
        MODEL_FLAGS,
        POOL_FLAGS,
        MEMORY_FLAGS,
        SCHEDULER_FLAGS,
        TIER_FLAGS,
        ALLOCATOR_FLAGS,
        MACHINE_FLAGS,
    )


def token_budget(named: int | str | None, chunked: bool) -> int | None:
    """Tokens of a step from --max-num-batched-tokens and --enable-chunked-prefill; None is unlimited.

    Raises ConfigError where a prompt could be neither cut nor taken whole.
    """
    if not chunked and isinstance(named, int):
        raise ConfigError(
            f"--no-enable-chunked-prefill prefills every prompt whole, and --max-num-batched-tokens {named} would cut"
            " the longer ones; leave one of them out",
            param="--max-num-batched-tokens",
        )
    if not chunked or isinstance(named, str):
        return None
    return MAX_NUM_BATCHED_TOKENS if named is None else named


def engine_options(**flags: Any) -> EngineOptions:
    """Frozen options from the flags, honouring vLLM's VLLM_CPU_KVCACHE_SPACE (GiB) where no size was given."""
    space = os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    if space and flags["kv_cache_memory_bytes"] is None and flags["num_blocks"] is None:
        try:
            flags["kv_cache_memory_bytes"] = int(float(space) * 2**30)
        except ValueError:
            raise ConfigError(
                f"VLLM_CPU_KVCACHE_SPACE is {space!r}; it must be a number of GiB",
                param="VLLM_CPU_KVCACHE_SPACE",
            ) from None
    flags["max_num_batched_tokens"] = token_budget(
        flags["max_num_batched_tokens"], flags.pop("chunked_prefill")
    )
    return EngineOptions(**flags)
