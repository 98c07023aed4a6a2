"""The article's experiment as settings of the product: its workload, its controls, its figures and ours.

Every figure comes from the real scheduler and allocators. Where its text leaves a parameter open, the value here is
the one under which all its figures come out; nothing is tuned for a single figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.ports import Sink
from octavo.engine.engine import Engine
from octavo.memory import sizing
from octavo.scheduling.scheduler import Scheduler
from octavo.simulation.content import VOCABULARY, content_key, content_tokens
from octavo.simulation.driver import Simulation, Stop, build_scheduler
from octavo.simulation.executor import SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.oracle import TrueLengths, oracle_allocator
from octavo.simulation.random_numbers import Mulberry32, Uniform
from octavo.simulation.report import Report
from octavo.simulation.requests import SimulatedRequest, make_request
from octavo.simulation.workloads import ANSWER, PROMPT, Saturated, SharedPrefix

BYTES_PER_TOKEN = 147_456
POOL_SLOTS = 405_239
SYSTEM_PROMPT = 1_000
PROMPT_MAX = 10_000
OUTPUT_MAX = 2_048
"""Tokens that no answer exceeds, whatever its client declares."""
MAX_NUM_SEQS = 128
MAX_MODEL_LEN = 40_960
STEPS = 3_000
WARMUP_STEPS = 1_000
SEED = 132_848
KERNEL_FACTOR = 0.77
"""Speed of a paged attention kernel next to a contiguous one, in the article's worst case."""

Allocation = Literal["paged", "reserved", "oracle"]


@dataclass(frozen=True, slots=True)
class ArticleSettings:
    """The controls of the article's page."""

    allocator: Allocation = "paged"
    max_tokens: int = 2_048
    """Output that every client declares, in tokens."""
    spread: int = 70
    """Spread of the output lengths, in percent: the standard deviation of their logarithm."""
    block_size: int = 16
    """Slots of a block; contiguous allocators place single slots, whatever it says."""
    round_up: bool = False
    """Whether contiguous chunks are rounded up to a power of two."""
    share: bool = False
    """Whether requests share the system prompt's blocks."""
    seed: int = SEED
    steps: int = STEPS
    warmup_steps: int = WARMUP_STEPS
    pool_slots: int = POOL_SLOTS
    """Token slots of the pool."""

    def __post_init__(self) -> None:
        if self.allocator != "paged" and self.share:
            raise ConfigError(
                f"the {self.allocator} allocator cannot share blocks; use --allocator paged", param="--share"
            )
        if self.allocator == "paged" and self.round_up:
            raise ConfigError(
                "only contiguous chunks are rounded up; use --allocator reserved", param="--round-up"
            )
        if not 0 <= self.spread <= 400:
            raise ConfigError(f"the spread is {self.spread} %; it must be from 0 to 400", param="--spread")
        if self.max_tokens < 1:
            raise ConfigError(
                f"--max-tokens is {self.max_tokens}; it must be at least 1", param="--max-tokens"
            )
        if not 0 <= self.warmup_steps < self.steps:
            raise ConfigError(
                f"{self.warmup_steps} warm-up steps of {self.steps}; need 0 <= warm-up < steps",
                param="--steps",
            )

    @property
    def cache(self) -> CacheConfig:
        paged = self.allocator == "paged"
        return CacheConfig(
            num_blocks=self.pool_slots // self.block_size if paged else self.pool_slots,
            block_size=self.block_size if paged else 1,
            allocator="paged" if paged else "pow2" if self.round_up else "reserved",
            enable_prefix_caching=self.share,
            superblock_tokens=0,  # where blocks lie changes no count, and costs a third of the run
        )

    @property
    def scheduler(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=None,
            max_model_len=MAX_MODEL_LEN,
            watermark_blocks=0,
            order="admission_first",
            preemption="restart",
        )


def draw(rng: Uniform, spread: int) -> tuple[int, int]:
    """(prompt, output) tokens of the next request: always three numbers, so that all settings see the same prompts."""
    u0, u1, u2 = rng.random(), rng.random(), rng.random()
    prompt = math.floor(1000 * 10**u0 + 0.5)
    z = math.sqrt(-2 * math.log(1 - u1)) * math.cos(2 * math.pi * u2)
    output = math.floor(256 * math.exp(spread / 100 * z) + 0.5)
    return prompt, min(max(output, 1), OUTPUT_MAX)


def requests(settings: ArticleSettings) -> Iterator[SimulatedRequest]:
    """The endless queue. Request numbers start at 1, as on the page. Tokens have content only where it can be found."""
    vocabulary = VOCABULARY if settings.share else 1
    rng = Mulberry32(settings.seed)
    prefix = SharedPrefix(SYSTEM_PROMPT, included=True)
    for number in count(1):
        prompt, output = draw(rng, settings.spread)
        # A shortest prompt is the system prompt alone; it keeps that content whole.
        segments = prefix.segments(max(prompt, SYSTEM_PROMPT + 1), content_key(PROMPT, number), None)
        tokens = content_tokens(segments, vocabulary)[:prompt]
        key = content_key(ANSWER, number)
        yield make_request(0.0, str(number), tokens, output, key, max_tokens=settings.max_tokens)


def prime(scheduler: Scheduler) -> None:
    """Compute the system prompt once, before the run, as an engine that has been up for a while has."""
    executor = SimulatedExecutor(VirtualClock(), StepCost(), max_num_seqs=MAX_NUM_SEQS)
    segments = SharedPrefix(SYSTEM_PROMPT).segments(1, content_key(PROMPT, 0), None)
    first = make_request(
        0.0, "system prompt", content_tokens(segments), 1, content_key(ANSWER, 0), max_tokens=1
    )
    executor.expect(first)
    engine = Engine(scheduler, executor, executor.clock, _Nowhere())
    engine.add(first.request)
    engine.drain()


class _Nowhere:
    def emit(self, record: object, now: float) -> None:
        """What happens before the run is no part of it."""


def build(settings: ArticleSettings, sinks: Sequence[Sink] = ()) -> Simulation:
    """A run that is ready to start."""
    lengths: TrueLengths | None = None
    allocator = None
    if settings.allocator == "oracle":
        lengths = TrueLengths()
        allocator = oracle_allocator(settings.cache, settings.scheduler, lengths, round_up=settings.round_up)
    scheduler = build_scheduler(settings.cache, settings.scheduler, allocator)
    if settings.share:
        prime(scheduler)
    report = Report(
        max_num_seqs=MAX_NUM_SEQS,
        slots_total=settings.cache.num_blocks * settings.cache.block_size,
        warmup_steps=settings.warmup_steps,
    )
    return Simulation(
        Saturated(requests(settings), backlog=MAX_NUM_SEQS),
        scheduler,
        report=report,
        sinks=sinks,
        on_arrival=None if lengths is None else lengths.learn,
        vocabulary=VOCABULARY if settings.share else 1,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """What the article prints of a run."""

    tokens_per_step: float
    """Delivered tokens a step: generated and not discarded later."""
    effective: float
    """Percent of the held slots that hold a token."""
    sequences: int
    preemptions: int
    discarded_tokens: int
    held_and_empty_mib: float
    blocked_steps: int
    """Steps, of the whole run, in which external fragmentation kept the queue's head out."""
    block_table_mib: float
    penalised_tokens_per_step: float
    """With the paged kernel's penalty."""
    held_and_empty_mib_max: float
    delivered_tokens: int


def run(
    settings: ArticleSettings,
    sinks: Sequence[Sink] = (),
    progress: Callable[[Simulation], None] | None = None,
) -> Figures:
    """Run the article's simulator and return its figures."""
    return figures_of(settings, build(settings, sinks).run(Stop(steps=settings.steps), progress))


def figures_of(settings: ArticleSettings, report: Report) -> Figures:
    """The article's figures of a run that ``build`` made."""
    counts = report.counts
    per_step = report.delivered_tokens / counts.steps
    empty = report.mean_over_steps("reserved") + report.mean_over_steps("internal")
    return Figures(
        tokens_per_step=per_step,
        effective=100 * report.effective,
        sequences=math.floor(per_step + 0.5),
        preemptions=counts.preemptions,
        discarded_tokens=counts.tokens_discarded,
        held_and_empty_mib=empty * BYTES_PER_TOKEN / sizing.MIB,
        blocked_steps=report.blocked_steps_all,
        block_table_mib=block_table_mib(settings.block_size),
        penalised_tokens_per_step=KERNEL_FACTOR * per_step,
        held_and_empty_mib_max=report.empty_slots_max * BYTES_PER_TOKEN / sizing.MIB,
        delivered_tokens=report.delivered_tokens,
    )


def block_table_mib(block_size: int) -> float:
    """MiB of the block table of 128 sequences of 40,960 tokens."""
    return sizing.table_bytes(MAX_NUM_SEQS, MAX_MODEL_LEN, block_size) / sizing.MIB


def shared_tokens(block_size: int) -> int:
    """Tokens of the system prompt in full blocks: what requests can share."""
    return SYSTEM_PROMPT // block_size * block_size


DEFAULTS = ArticleSettings()

RUNS: dict[str, ArticleSettings] = {
    "contiguous_2048": replace(DEFAULTS, allocator="reserved", round_up=True),
    "contiguous_16384": replace(DEFAULTS, allocator="reserved", round_up=True, max_tokens=16_384),
    "contiguous_256": replace(DEFAULTS, allocator="reserved", round_up=True, max_tokens=256),
    "paged": DEFAULTS,
    "paged_block_256": replace(DEFAULTS, block_size=256),
    "shared": replace(DEFAULTS, share=True),
    "shared_block_256": replace(DEFAULTS, share=True, block_size=256),
    "oracle_spread_100": replace(DEFAULTS, allocator="oracle", spread=100),
    "oracle_spread_0": replace(DEFAULTS, allocator="oracle", spread=0),
    "paged_spread_0": replace(DEFAULTS, spread=0),
}
"""The settings behind each of the article's figures."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A figure of the article, and how it comes out over 300 seeds (mean and standard deviation; None: exact)."""

    name: str
    figure: str
    article: float
    mean: float | None = None
    sd: float | None = None


EXPECTED = (
    Expected("contiguous_2048", "tokens_per_step", 43.7, 42.7, 1.5),
    Expected("contiguous_2048", "effective", 48.0, 48.3, 0.8),
    Expected("contiguous_2048", "sequences", 44.0, 42.7, 1.5),
    Expected("contiguous_16384", "tokens_per_step", 12.0, 12.0, 0.0),
    Expected("contiguous_16384", "effective", 13.5, 12.8, 1.1),
    Expected("contiguous_16384", "sequences", 12.0, 12.0, 0.0),
    Expected("contiguous_256", "tokens_per_step", 60.0, 59.85, 1.8),
    Expected("contiguous_256", "effective", 66.0, 65.9, 0.7),
    Expected("paged", "tokens_per_step", 95.4, 96.2, 2.7),
    Expected("paged", "effective", 99.8, 99.82, 0.005),
    Expected("paged", "sequences", 95.0, 96.2, 2.7),
    Expected("paged", "preemptions", 45.0, 50.8, 6.5),
    Expected("paged", "discarded_tokens", 120.0, 141.0, 30.0),
    Expected("paged", "held_and_empty_mib", 101.0, 101.5, 2.9),
    Expected("paged", "block_table_mib", 1.25),
    Expected("paged_block_256", "tokens_per_step", 93.0, 93.4, 2.6),
    Expected("shared", "tokens_per_step", 122.9, 123.5, 2.3),
    Expected("shared_block_256", "tokens_per_step", 112.6, 113.7, 3.2),
    Expected("oracle_spread_100", "blocked_steps", 2938.0, 2966.0, 14.0),
    Expected("oracle_spread_0", "tokens_per_step", 96.7, 96.6, 2.0),
    Expected("oracle_spread_0", "effective", 96.9, 96.89, 0.06),
    Expected("paged_spread_0", "tokens_per_step", 96.3, 96.5, 2.0),
    Expected("paged_spread_0", "penalised_tokens_per_step", 74.2, 74.3, 1.5),
    Expected("paged_spread_0", "preemptions", 83.0, 86.8, 9.1),
    Expected("paged_spread_0", "discarded_tokens", 4917.0, 6080.0, 720.0),
)
"""Every figure that the article states of a run, in the order of ``RUNS``."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    name: str
    figure: str
    article: float
    octavo: float
    sd: float | None


def table(seed: int = SEED, only: Sequence[str] | None = None) -> Iterator[Row]:
    """The table, run by run as it is computed. ``only``: these runs."""
    for name, settings in RUNS.items():
        if only is not None and name not in only:
            continue
        yield from rows_of(name, run(replace(settings, seed=seed)))


def rows_of(name: str, figures: Figures) -> Iterator[Row]:
    """The table's lines for one of ``RUNS``."""
    for expected in EXPECTED:
        if expected.name == name:
            value = float(getattr(figures, expected.figure))
            yield Row(name, expected.figure, expected.article, value, expected.sd)
