"""The paper's baselines (Kwon et al., SOSP 2023) as settings: OPT-13B's pool, four ways to hand it out.

Exact are the figures of memory alone: seven requests of 2,048 slots fit a buddy allocator's 15,728, and 8.85 % are left
over. Mean batched requests depend on speed, too. Times come from a roofline of the paper's card at ``EFFICIENCY`` of
its peaks: one number, set so that the paged run on ShareGPT has about the paper's 30 requests; nothing else is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.events import StepRecord
from octavo.core.model_spec import ModelSpec
from octavo.core.ports import Sink
from octavo.simulation.arrivals import poisson
from octavo.simulation.cost_model import RooflineProfile
from octavo.simulation.driver import Simulation, Stop, build_scheduler
from octavo.simulation.executor import CostModel
from octavo.simulation.lengths import Empirical
from octavo.simulation.oracle import TrueLengths, oracle_allocator
from octavo.simulation.profile_files import load_profile
from octavo.simulation.random_numbers import stream
from octavo.simulation.report import Report
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import OpenLoop, synthetic

OPT_13B = ModelSpec(
    name="OPT-13B",
    num_layers=40,
    num_heads=40,
    num_kv_heads=40,
    head_dim=128,
    hidden_size=5120,
    intermediate_size=20480,
    vocab_size=50272,
    max_model_len=2048,
    kv_dtype="bf16",
    weight_dtype="bf16",
    num_parameters=12_853_473_280,
)
"""Two bytes an element, as the paper's fp16: 819,200 bytes of keys and values a token."""

POOL_SLOTS = 15_728
"""12 GiB of 819,200 bytes a token."""
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
PROFILE = "a100-40gb"
EFFICIENCY = 0.5
"""Share of the card's peaks, of memory and of arithmetic, that the paper's system is taken to reach."""

Policy = Literal["orca_max", "orca_pow2", "orca_oracle", "paged"]
POLICIES: tuple[Policy, ...] = ("orca_max", "orca_pow2", "orca_oracle", "paged")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Lengths and load of one of the paper's workloads."""

    name: str
    means: tuple[float, float]
    """Mean prompt and output tokens that the paper states."""
    rate: float
    """Requests a second at which it counts batched requests."""


SHAREGPT = Dataset("sharegpt", (161.31, 337.99), 2.0)
ALPACA = Dataset("alpaca", (19.31, 58.45), 30.0)
DATASETS = {dataset.name: dataset for dataset in (SHAREGPT, ALPACA)}

BATCHED_REQUESTS: dict[tuple[str, Policy], float] = {
    ("sharegpt", "orca_max"): 7.00,
    ("sharegpt", "orca_pow2"): 9.81,
    ("sharegpt", "orca_oracle"): 13.62,
    ("sharegpt", "paged"): 30.42,
    ("alpaca", "orca_max"): 7.00,
    ("alpaca", "orca_pow2"): 43.24,
    ("alpaca", "orca_oracle"): 72.75,
    ("alpaca", "paged"): 132.44,
}
"""Mean batched requests, OPT-13B."""

SHARES: dict[Policy, dict[str, float]] = {
    "orca_max": {"written": 20.4, "reserved": 13.3, "internal": 57.3, "external": 8.9},
    "orca_pow2": {"written": 26.8, "reserved": 17.9, "internal": 13.6, "external": 41.6},
    "orca_oracle": {"written": 38.2, "reserved": 25.2, "internal": 0.0, "external": 36.6},
    "paged": {"written": 96.3, "reserved": 0.0, "internal": 3.7, "external": 0.0},
}
"""Percent of the pool (figure 2). The paper's "external and others" is what no request asked for; of vLLM it states the
first number and that the rest is under 4."""


def length_note(dataset: Dataset, pairs: Sequence[tuple[int, int]]) -> str:
    """How measured lengths differ from the ones the paper states, and what resampling makes of them."""
    own = Empirical(pairs).means
    apart = ", ".join(
        f"{name} {mine:.2f} tokens against {paper} ({mine / paper - 1:+.0%})"
        for name, mine, paper in zip(("prompts", "outputs"), own, dataset.means, strict=True)
    )
    return f"{dataset.name}: mean {apart}; resampled to the paper's means unless told otherwise"


def build(
    policy: Policy,
    pairs: Sequence[tuple[int, int]],
    *,
    rate: float,
    seed: int = 0,
    requests: int = 2_000,
    means: tuple[float, float] | None = None,
    profile: str = PROFILE,
    efficiency: float = EFFICIENCY,
    sinks: Sequence[Sink] = (),
) -> tuple[Simulation, PaperShares]:
    """A run that is ready to start and the sink that watches it: ``requests`` Poisson arrivals, ``rate`` a second, with
    lengths drawn from ``pairs`` (brought to ``means``, see Empirical).

    Pairs longer than the model's 2,048 tokens are not drawn.
    """
    if policy not in POLICIES:
        raise ConfigError(
            f"policy {policy!r} is not known; known are {', '.join(POLICIES)}", param="--allocator"
        )
    cache = _cache(policy)
    # As in the paper's systems a step serves whole prompts and every running request.
    config = SchedulerConfig(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=None,
        max_model_len=OPT_13B.max_model_len,
        order="admission_first",
        preemption="recompute",
    )
    lengths = TrueLengths()
    allocator = None
    if policy in ("orca_pow2", "orca_oracle"):
        allocator = oracle_allocator(cache, config, lengths, guess=policy == "orca_pow2")
    fitting = [pair for pair in pairs if sum(pair) <= OPT_13B.max_model_len]
    drawn = Empirical(fitting, means).endless(stream(seed, "lengths"))
    workload = OpenLoop(_requests(rate, drawn, seed, requests))
    shares = PaperShares(policy, lengths)
    simulation = Simulation(
        workload,
        build_scheduler(cache, config, allocator),
        cost_model(profile, efficiency),
        report=Report(max_num_seqs=MAX_NUM_SEQS, slots_total=cache.num_blocks * cache.block_size),
        sinks=(shares, *sinks),
        on_arrival=lengths.learn,
        vocabulary=1,
    )
    return simulation, shares


def cost_model(name: str, efficiency: float) -> CostModel:
    profile = load_profile(name)
    if isinstance(profile, RooflineProfile):
        profile = replace(profile, memory_efficiency=efficiency, compute_efficiency=efficiency)
    return profile.cost_model(OPT_13B)


def _cache(policy: Policy) -> CacheConfig:
    if policy == "paged":
        return CacheConfig(
            num_blocks=POOL_SLOTS // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=False,
            superblock_tokens=0,  # where blocks lie changes no count
        )
    return CacheConfig(num_blocks=POOL_SLOTS, block_size=1, allocator="reserved", placement="buddy")


def _requests(
    rate: float, lengths: Iterator[tuple[int, int]], seed: int, requests: int
) -> Iterator[SimulatedRequest]:
    """No client declares max_tokens: Orca Max then reserves the model's maximum, 2,048."""
    return synthetic(
        poisson(rate, stream(seed, "arrivals")), lengths, limit=requests, max_tokens=None, vocabulary=1
    )


class PaperShares:
    """A sink that divides the pool as the paper does, which knows the true lengths: *reserved* are the slots that a
    request will still fill, *internal* what its chunk holds beyond that; everything else, a buddy's rounding included,
    is *external and others*. (An engine does not know the true lengths; its own three wastes count declared ones.)"""

    def __init__(self, policy: Policy, lengths: TrueLengths) -> None:
        self._policy = policy
        self._lengths = lengths
        self._target = np.zeros(MAX_NUM_SEQS, np.int64)
        """int64 [rows]: tokens with which each row's request will end."""
        self._chunk = np.zeros(MAX_NUM_SEQS, np.int64)
        """int64 [rows]: slots that the policy asked for."""
        self._sums = np.zeros(4)
        self._time = 0.0
        self._previous = 0.0

    def emit(self, record: StepRecord, now: float) -> None:
        plan, waste = record.plan, record.waste
        for start in plan.started:
            output = self._lengths.of(start.request.request_id)
            target = len(start.request.prompt_token_ids) + output
            rounded = target - output + (1 << (output - 1).bit_length())
            chunks = {"orca_max": OPT_13B.max_model_len, "orca_pow2": min(rounded, OPT_13B.max_model_len)}
            self._target[start.row] = target
            self._chunk[start.row] = chunks.get(self._policy, target)
        seconds, self._previous = now - self._previous, now
        if not len(plan.rows):
            return
        if self._policy == "paged":
            reserved, internal = 0, waste.internal
        else:
            target = int(self._target[plan.rows].sum())
            reserved, internal = target - waste.written, int(self._chunk[plan.rows].sum()) - target
        external = POOL_SLOTS - waste.written - reserved - internal
        self._sums += np.multiply((waste.written, reserved, internal, external), seconds)
        self._time += seconds

    def shares(self) -> dict[str, float]:
        """Percent of the pool over the time in which steps ran."""
        percent = 100 / POOL_SLOTS / self._time * self._sums if self._time else self._sums
        return dict(zip(("written", "reserved", "internal", "external"), percent.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class OrcaFigures:
    """What the paper prints of a run."""

    policy: Policy
    batched_requests: float
    """Mean running requests over the time in which steps ran."""
    shares: dict[str, float]
    """Percent of the pool by ``PaperShares``."""
    normalized_latency_s: float
    """Mean of end-to-end latency over output length."""
    preemptions: int


def run(
    policy: Policy, simulation: Simulation, shares: PaperShares, seconds: float | None = None
) -> OrcaFigures:
    """Run what ``build`` made (to its end or for ``seconds`` of its clock) and read it off."""
    report = simulation.run(Stop(time=seconds))
    return OrcaFigures(
        policy,
        report.mean_over_time("running"),
        shares.shares(),
        report.normalized_latency.mean,
        report.counts.preemptions,
    )
