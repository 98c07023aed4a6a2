"""``octavo simulate`` without a preset: workload, model, pool and clock from flags to a run and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from octavo.cli.options import token_budget
from octavo.cli.simulate_output import (
    by_requests,
    make_log,
    open_csv,
    progress_bar,
    require_plotting,
    write_csv,
    write_plot,
)
from octavo.cli.simulate_report import report_text
from octavo.cli.simulate_workload import NUM_REQUESTS, build_workload
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.events import Finished, StepRecord
from octavo.core.model_spec import KV_CACHE_DTYPES, ModelSpec
from octavo.core.ports import Sink
from octavo.memory import sizing
from octavo.memory.lookup import LookupTotals
from octavo.simulation.content import VOCABULARY
from octavo.simulation.conversations import Conversations
from octavo.simulation.cost_model import Profile, RooflineProfile, body_parameters
from octavo.simulation.driver import Simulation, Stop, build_scheduler
from octavo.simulation.model_specs import model_spec, weight_bytes
from octavo.simulation.oracle import TrueLengths, oracle_allocator
from octavo.simulation.profile_files import load_profile
from octavo.simulation.report import Report, Slo
from octavo.simulation.requests import SimulatedRequest
from octavo.telemetry.recording import Recorder, open_for_writing

MODEL, PROFILE = "llama-3.1-8b", "h100"
SIZES = {
    "layers": "num_layers",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the flags say about a run, checked."""

    spec: ModelSpec
    profile: Profile | None
    """None counts steps."""
    cache: CacheConfig
    """The oracle's says ``reserved``: it is the same memory, handed out with more knowledge."""
    scheduler: SchedulerConfig
    oracle: bool
    slo: Slo | None
    stop: Stop
    warmup_steps: int

    @property
    def unit(self) -> str:
        return "steps" if self.profile is None else "s"

    @property
    def allocator(self) -> str:
        return "oracle" if self.oracle else self.cache.allocator

    @property
    def vocabulary(self) -> int:
        """Tokens have content only where somebody looks for it."""
        return VOCABULARY if self.cache.enable_prefix_caching and self.cache.allocator == "paged" else 1


# ---------------------------------------------------------------------- from flags to settings


def read_setup(flags: dict[str, Any]) -> Setup:
    """Raises ConfigError."""
    profile = None if flags["clock"] == "steps" else load_profile(flags["profile"] or PROFILE)
    spec = _spec(flags, profile)
    max_model_len = spec.max_model_len if flags["max_model_len"] is None else flags["max_model_len"]
    if max_model_len > spec.max_model_len:
        raise ConfigError(
            f"--max-model-len is {max_model_len}, but {spec.name} was made for {spec.max_model_len} tokens",
            param="--max-model-len",
        )
    oracle = flags["allocator"] == "oracle"
    num_blocks = _num_blocks(flags, spec, profile)
    cache = CacheConfig(
        num_blocks=num_blocks,
        block_size=flags["block_size"],
        allocator="reserved" if oracle else flags["allocator"],
        placement=flags["placement"],
        enable_prefix_caching=flags["enable_prefix_caching"],
        offload_blocks=_offload_blocks(flags, spec, num_blocks),
        superblock_tokens=flags["superblock_tokens"],
    )
    scheduler = SchedulerConfig(
        max_num_seqs=flags["max_num_seqs"],
        max_num_batched_tokens=token_budget(flags["max_num_batched_tokens"], flags["chunked_prefill"]),
        max_model_len=max_model_len,
        watermark_blocks=flags["watermark_blocks"],
        headroom_tokens=flags["headroom_tokens"],
        prefix_wait=flags["prefix_wait"],
        order=flags["order"],
        queue=flags["queue"],
        preemption=flags["preemption"],
        swap_tokens_per_block=_swap_tokens_per_block(spec, profile, flags["block_size"]),
    )
    wanted = {name: flags[f"slo_{name}"] for name in ("ttft", "tpot", "e2e")}
    slo = None if all(value is None for value in wanted.values()) else Slo(**wanted)
    stop = Stop(flags["steps"], flags["duration"])
    for flag, value in (("--steps", stop.steps), ("--duration", stop.time)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{flag} is {value}; it must be above 0", param=flag)
    warmup = flags["warmup_steps"] or 0
    if warmup < 0 or (stop.steps is not None and warmup >= stop.steps):
        raise ConfigError(
            f"--warmup-steps is {warmup}; it must be from 0 to below --steps", param="--warmup-steps"
        )
    return Setup(spec, profile, cache, scheduler, oracle, slo, stop, warmup)


def _spec(flags: dict[str, Any], profile: Profile | None) -> ModelSpec:
    """The named model with the sizes that have flags of their own."""
    own = {ours: flags[flag] for flag, ours in SIZES.items() if flags[flag] is not None}
    for flag, ours in SIZES.items():
        if own.get(ours, 1) < 1:
            raise ConfigError(f"{_flag(flag)} is {own[ours]}; it must be at least 1", param=_flag(flag))
    if flags["model_spec"] is not None or not own:
        spec = model_spec(flags["model_spec"] or MODEL)
        if own:
            spec = replace(spec, **own, name=f"{spec.name}, changed", num_parameters=0)
    else:
        needed = list(SIZES) if isinstance(profile, RooflineProfile) else ["layers", "kv_heads", "head_dim"]
        missing = [flag for flag in needed if flags[flag] is None]
        if missing:
            raise ConfigError(
                f"a model without --model-spec needs {', '.join(map(_flag, missing))} too",
                param=_flag(missing[0]),
            )
        sizes = {ours: own.get(ours, 1) for ours in SIZES.values()}
        spec = ModelSpec(name="custom", max_model_len=flags["max_model_len"] or 1 << 20, **sizes)
    dtype = "bf16" if flags["dtype"] == "auto" else flags["dtype"]
    kept = flags["kv_cache_dtype"]
    return replace(spec, kv_dtype=dtype if kept == "auto" else KV_CACHE_DTYPES[kept], weight_dtype=dtype)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _offload_blocks(flags: dict[str, Any], spec: ModelSpec, num_blocks: int) -> int:
    """Blocks of the second tier."""
    named = flags["kv_offload_bytes"]
    if named is not None:
        return sizing.offload_blocks_in(named, spec, flags["block_size"], flags["allocator"])
    return num_blocks if flags["preemption"] == "swap" and flags["allocator"] == "paged" else 0


def _swap_tokens_per_block(spec: ModelSpec, profile: Profile | None, block_size: int) -> float:
    """By the device's published numbers; a clock that knows none always swaps."""
    if not isinstance(profile, RooflineProfile):
        return 0.0
    seconds = 2 * sizing.block_bytes(spec, block_size) / profile.host_bytes_per_s
    flops = profile.flops_per_s.get(spec.weight_dtype, 0.0) * profile.compute_efficiency
    return seconds * flops / (2 * body_parameters(spec))


def _num_blocks(flags: dict[str, Any], spec: ModelSpec, profile: Profile | None) -> int:
    """The pool: as named, or what the profile's device has left beside the weights."""
    if flags["num_blocks"] is not None:
        return int(flags["num_blocks"])
    if flags["kv_cache_memory_bytes"] is not None:
        return sizing.blocks_in(flags["kv_cache_memory_bytes"], spec, flags["block_size"])
    if not isinstance(profile, RooflineProfile):
        what = "a clock of steps" if profile is None else f"the fitted profile {profile.name}"
        raise ConfigError(
            f"{what} knows no memory; give the pool's size by --num-gpu-blocks-override or --kv-cache-memory-bytes",
            param="--num-gpu-blocks-override",
        )
    share = flags["memory_share"]
    if not 0 < share <= 1:
        raise ConfigError(
            f"--gpu-memory-utilization is {share}; it must be in (0, 1]", param="--gpu-memory-utilization"
        )
    left = int(profile.memory_bytes * share) - weight_bytes(spec)
    if left < sizing.block_bytes(spec, flags["block_size"]):
        raise ConfigError(
            f"the weights of {spec.name} take {weight_bytes(spec):,} bytes, {share:.0%} of {profile.name} are "
            f"{int(profile.memory_bytes * share):,}: no block fits; choose another --profile or size the pool by "
            "--kv-cache-memory-bytes",
            param="--profile",
        )
    return sizing.blocks_in(left, spec, flags["block_size"])


# ---------------------------------------------------------------------- from settings to a run


class _Forget:
    """A sink that takes the lengths of ended requests out of the oracle's memory."""

    def __init__(self, lengths: TrueLengths) -> None:
        self._lengths = lengths

    def emit(self, record: StepRecord, now: float) -> None:
        for event in record.events:
            if isinstance(event, Finished):
                self._lengths.forget(event.request_id)


def build_simulation(
    flags: dict[str, Any],
    setup: Setup,
    sinks: Sequence[Sink] = (),
    recorder: Recorder | None = None,
) -> Simulation:
    """A run that is ready to start. Raises ConfigError."""
    lengths, allocator = TrueLengths(), None
    listeners = list(sinks) if recorder is None else [*sinks, recorder]
    if setup.oracle:
        allocator = oracle_allocator(setup.cache, setup.scheduler, lengths)
        listeners.append(_Forget(lengths))

    def arrived(simulated: SimulatedRequest) -> None:
        if setup.oracle:
            lengths.learn(simulated)
        if recorder is not None:
            recorder.added(simulated.request, simulated.arrival_s)

    return Simulation(
        build_workload(flags, setup.scheduler.max_num_seqs, setup.vocabulary),
        build_scheduler(setup.cache, setup.scheduler, allocator),
        None if setup.profile is None else setup.profile.cost_model(setup.spec, setup.cache.block_size),
        report=Report(
            max_num_seqs=setup.scheduler.max_num_seqs,
            slots_total=setup.cache.num_blocks * setup.cache.block_size,
            slo=setup.slo,
            warmup_steps=setup.warmup_steps,
            series_width=1.0 if setup.profile is None else 1e-3,
        ),
        sinks=listeners,
        on_arrival=arrived if setup.oracle or recorder is not None else None,
        vocabulary=setup.vocabulary,
    )


def facts(setup: Setup, simulation: Simulation) -> dict[str, Any]:
    """Settings and figures of a finished run, for JSON."""
    scheduler, cache, workload = simulation.scheduler, setup.cache, simulation.workload
    return {
        "clock": "steps" if setup.profile is None else "seconds",
        "profile": None if setup.profile is None else setup.profile.name,
        "model": setup.spec.name,
        "pool": {
            "num_blocks": cache.num_blocks,
            "block_size": cache.block_size,
            "tokens": cache.num_blocks * cache.block_size,
            "bytes": sizing.pool_bytes(cache.num_blocks, setup.spec, cache.block_size),
            "allocator": setup.allocator,
            "placement": cache.placement,
            "superblock_tokens": cache.superblock_tokens,
            "enable_prefix_caching": cache.enable_prefix_caching,
        },
        "scheduler": asdict(setup.scheduler),
        "requests_arrived": simulation.arrivals,
        "requests_unfinished": scheduler.num_running + scheduler.num_waiting,
        "turns_unasked": workload.turns_unasked if isinstance(workload, Conversations) else 0,
        **simulation.report.as_dict(),
        "kv_run_tokens": simulation.runs.mean_tokens,
        "lookups": _lookups(scheduler.allocator.lookups.totals),
    }


def _lookups(totals: LookupTotals) -> dict[str, Any]:
    """Of the whole run, its warm-up included: what is in the pool does not begin with the measurement."""
    achieved, without_evictions, by_token = totals.rates()
    rates = {"achieved": achieved, "without_evictions": without_evictions, "by_token": by_token}
    return {**asdict(totals), "hit_rates": rates}


def run_workload(flags: dict[str, Any]) -> None:
    """One run, and whatever it is to write."""
    setup = read_setup(flags)
    if flags["plot"] is not None:
        require_plotting()
    if setup.oracle and flags["record"] is not None:
        raise ConfigError(
            "the oracle allocator is no setting of an engine, so its run cannot be recorded", param="--record"
        )
    log = make_log(flags, timed=setup.profile is not None)
    sinks: list[Sink] = [] if log is None else [log]
    csv_file = None if flags["csv"] is None else open_csv(flags["csv"])
    record_file = None if flags["record"] is None else open_for_writing(flags["record"])
    recorder = None
    if record_file is not None:
        recorder = Recorder(
            record_file,
            setup.cache,
            setup.scheduler,
            {"made by": "octavo simulate", "model": setup.spec.name},
        )
    try:
        simulation = build_simulation(flags, setup, sinks, recorder)
        with progress_bar(_expected_requests(flags), "requests") as tell:
            report = simulation.run(setup.stop, by_requests(tell))
    finally:
        if record_file is not None:
            record_file.close()
    if log is not None:
        log.close()
    found = facts(setup, simulation)
    if csv_file is not None:
        write_csv(csv_file, found["series"])
    if flags["plot"] is not None:
        write_plot(flags["plot"], found["series"], setup.spec.name, setup.unit, report.slots_total)
    click.echo(json.dumps(found) if flags["as_json"] else report_text(setup, found))


def _expected_requests(flags: dict[str, Any]) -> int | None:
    """None where only reading the whole trace would tell."""
    drawn = flags["turns"] is None and (flags["trace"] is None or flags["mean_lengths"] is not None)
    return flags["num_requests"] or (NUM_REQUESTS if drawn else None)


def workload_point(flags: dict[str, Any]) -> dict[str, Any]:
    """One run of a sweep: everything but the time series."""
    setup = read_setup(flags)
    simulation = build_simulation(flags, setup)
    simulation.run(setup.stop)
    found = facts(setup, simulation)
    del found["series"]
    return found
