"""From options to a running engine: the composition that the offline API and the command line share."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import psutil

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.machine import usable_cores
from octavo.core.model_spec import KV_CACHE_DTYPES, ModelSpec
from octavo.core.ports import Sink
from octavo.engine.engine import Engine
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.embedded import embedded_model_path
from octavo.execution.loading import LoadedModel, load_model
from octavo.execution.tier_file import FileStore
from octavo.llm.completions import CompletionBoard
from octavo.llm.options import EngineOptions
from octavo.llm.session import Session
from octavo.llm.tier import open_store, swap_tokens_per_block, tier_blocks, tier_lines
from octavo.memory import PagedAllocator, make_allocator, sizing
from octavo.scheduling.scheduler import Scheduler
from octavo.telemetry.boot import boot_lines
from octavo.telemetry.recorded_engine import RecordedEngine
from octavo.telemetry.sinks import FanOut, LineSink
from octavo.text.tokenizer import load_tokenizer, tokenizer_from_gguf


class MonotonicClock:
    """Wall time that never goes back. Seconds."""

    def now(self) -> float:
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the options come to for one model."""

    max_model_len: int
    num_blocks: int
    pool_bytes: int


def open_model(options: EngineOptions) -> LoadedModel:
    """The model that the options name, its weights not yet read. Raises ModelError."""
    model = load_model(
        options.model or embedded_model_path(),
        options.dtype,  # type: ignore[arg-type]
        options.quantization,  # type: ignore[arg-type]
    )
    if options.kv_cache_dtype == "auto":
        return model
    return replace(model, spec=replace(model.spec, kv_dtype=KV_CACHE_DTYPES[options.kv_cache_dtype]))


def size_pool(options: EngineOptions, spec: ModelSpec) -> Sizes:
    """Blocks of the pool: as named, or that many bytes, or a share of the free memory. Raises ConfigError."""
    max_model_len = options.max_model_len or spec.max_model_len
    if max_model_len > spec.max_model_len:
        raise ConfigError(
            f"--max-model-len is {max_model_len}, but {spec.name} was made for {spec.max_model_len} tokens",
            param="--max-model-len",
        )
    if options.num_blocks is not None:
        num_blocks = options.num_blocks
    elif options.kv_cache_memory_bytes is not None:
        num_blocks = sizing.blocks_in(options.kv_cache_memory_bytes, spec, options.block_size)
    else:
        share = int(psutil.virtual_memory().available * options.memory_share)
        most = options.max_num_seqs * sizing.blocks_for(max_model_len, options.block_size)
        num_blocks = min(sizing.blocks_in(share, spec, options.block_size), most)
    return Sizes(max_model_len, num_blocks, sizing.pool_bytes(max(num_blocks, 0), spec, options.block_size))


def machine() -> str:
    """The processor's name and the cores that this process may use, for recordings and profiles."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = named[0] if named else name
    return f"{name}, {usable_cores()} cores"


def engine_settings(
    options: EngineOptions, spec: ModelSpec, sizes: Sizes
) -> tuple[CacheConfig, SchedulerConfig]:
    """What pool and scheduler are told. Raises ConfigError."""
    cache = CacheConfig(
        num_blocks=sizes.num_blocks,
        block_size=options.block_size,
        allocator=options.allocator,
        placement=options.placement,
        enable_prefix_caching=options.enable_prefix_caching,
        offload_blocks=tier_blocks(options, spec, sizes.num_blocks),
        superblock_tokens=options.superblock_tokens,
    )
    limits = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=sizes.max_model_len,
        watermark_blocks=options.watermark_blocks,
        headroom_tokens=options.headroom_tokens,
        queue=options.queue,
        preemption=options.preemption,
        prefix_wait=options.prefix_wait,
        swap_tokens_per_block=swap_tokens_per_block(options, spec, options.threads or usable_cores()),
        thrash_preemptions=options.thrash_preemptions,
        thrash_window=options.thrash_window,
    )
    return cache, limits


def build_session(
    options: EngineOptions,
    *,
    lines: LineSink | None = None,
    sinks: Sequence[Sink] = (),
    record: TextIO | None = None,
) -> Session:
    """Model, pool, scheduler, executor and engine.

    ``lines`` gets the boot lines and every step, ``sinks`` every step after the answers have it, and ``record`` the
    whole run as a recording (the caller closes it). Raises ModelError or ConfigError.
    """
    model = open_model(options)
    sizes = size_pool(options, model.spec)
    cache, limits = engine_settings(options, model.spec, sizes)
    store = open_store(options, model, cache.offload_blocks)
    allocator = make_allocator(cache, limits.max_num_seqs, limits.max_model_len)
    if isinstance(store, FileStore) and cache.enable_prefix_caching:
        allocator.offload.tier.adopt(store.contents)
    scheduler = Scheduler(limits, allocator)
    executor = CpuExecutor(
        model,
        path=options.path,
        threads=options.threads or usable_cores(),
        num_blocks=sizes.num_blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_model_len=sizes.max_model_len,
        store=store,
        superblock=allocator.superblock if isinstance(allocator, PagedAllocator) else 1,
    )
    tokenizer = tokenizer_from_gguf(model.metadata) if model.metadata else load_tokenizer(model.path)
    board = CompletionBoard()
    listening: list[Sink] = [board, *sinks]
    if lines is not None:
        told = tier_lines(options, model.spec, cache.offload_blocks, len(allocator.offload.tier.spilled))
        for line in (*model.notes, *boot(model.spec, options, sizes), *told):
            lines.say(line)
        listening.append(lines)
    clock, sink = MonotonicClock(), FanOut(listening)
    if record is None:
        engine = Engine(scheduler, executor, clock, sink)
    else:
        about = {"model": model.spec.name, "machine": machine()}
        engine = RecordedEngine(scheduler, executor, clock, sink, file=record, cache=cache, about=about)
    persistent = isinstance(store, FileStore)
    return Session(engine, board, tokenizer, model.spec, options.seed, persistent=persistent)


def boot(spec: ModelSpec, options: EngineOptions, sizes: Sizes) -> list[str]:
    """The boot lines for these sizes."""
    return boot_lines(
        device="CPU",
        tokens=sizes.num_blocks * options.block_size,
        max_model_len=sizes.max_model_len,
        pool_bytes=sizes.pool_bytes,
        num_blocks=sizes.num_blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
    )
