"""The paper's sharing experiment (Kwon et al., SOSP 2023, figure 15): how many blocks several answers to a prompt save.

OPT-13B's pool, paged; each request asks for 2, 4 or 6 answers, by parallel sampling or by beam search. A table entry is
a block that somebody would hold if nothing were shared; saved is what lies between the entries and the blocks that are
really held, as a share of the entries, over the time in which steps ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from octavo.core.beam_params import BeamParams
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import StepRecord
from octavo.memory.allocator import Allocator
from octavo.simulation.arrivals import poisson
from octavo.simulation.driver import Simulation, build_scheduler
from octavo.simulation.lengths import Empirical
from octavo.simulation.orca import BLOCK_SIZE, MAX_NUM_SEQS, OPT_13B, POOL_SLOTS, Dataset, cost_model
from octavo.simulation.random_numbers import stream
from octavo.simulation.report import Report
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import OpenLoop, synthetic

Method = Literal["parallel", "beam"]
METHODS: tuple[Method, ...] = ("parallel", "beam")
WIDTHS = (2, 4, 6)
LOAD = 0.5

SAVINGS: dict[tuple[str, Method, int], float] = {
    ("alpaca", "parallel", 2): 6.09,
    ("alpaca", "parallel", 4): 8.53,
    ("alpaca", "parallel", 6): 9.79,
    ("alpaca", "beam", 2): 37.56,
    ("alpaca", "beam", 4): 53.13,
    ("alpaca", "beam", 6): 55.16,
    ("sharegpt", "parallel", 2): 16.2,
    ("sharegpt", "parallel", 6): 30.5,
    ("sharegpt", "beam", 2): 44.3,
    ("sharegpt", "beam", 6): 66.3,
}
"""The paper's percent of blocks saved; of ShareGPT it states the least and the most of each method."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What one run saved."""

    method: Method
    width: int
    """Answers to a request."""
    percent: float
    batched_sequences: float
    """Mean rows in use over the time in which steps ran."""
    copied_blocks: int
    preemptions: int


class SharedBlocks:
    """A sink that compares the table's entries with the blocks that are held, after each step, over time."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._entries = 0.0
        self._held = 0.0
        self._previous = 0.0
        self.copied_blocks = 0

    def emit(self, record: StepRecord, now: float) -> None:
        seconds, self._previous = now - self._previous, now
        self.copied_blocks += len(record.plan.copies)
        self._entries += seconds * self._allocator.table.entries
        self._held += seconds * record.pool.live

    @property
    def percent(self) -> float:
        """Entries without a block of their own, as a share of all."""
        return 100 * (1 - self._held / self._entries) if self._entries else 0.0


def run(
    method: Method,
    width: int,
    dataset: Dataset,
    pairs: Sequence[tuple[int, int]],
    *,
    means: tuple[float, float] | None,
    requests: int,
    seed: int,
    profile: str,
    efficiency: float,
) -> Saved:
    """``requests`` Poisson arrivals with lengths drawn from ``pairs`` (brought to ``means``, see Empirical).

    A fraction of the paper's rate for single answers, ``LOAD`` over ``width``: where the pool is full, answers that
    were preempted come back with a prompt of their own, and what is shared depends on how often.
    """
    cache = CacheConfig(
        num_blocks=POOL_SLOTS // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
        superblock_tokens=0,  # where blocks lie changes no count
    )
    config = SchedulerConfig(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=None,
        max_model_len=OPT_13B.max_model_len,
        order="admission_first",
    )
    fitting = [pair for pair in pairs if sum(pair) <= OPT_13B.max_model_len]
    drawn = Empirical(fitting, means).endless(stream(seed, "lengths"))
    arrivals = poisson(LOAD * dataset.rate / width, stream(seed, "arrivals"))
    single = synthetic(arrivals, drawn, limit=requests, max_tokens=None)
    scheduler = build_scheduler(cache, config)
    shared = SharedBlocks(scheduler.allocator)
    simulation = Simulation(
        OpenLoop(_several(single, method, width)),
        scheduler,
        cost_model(profile, efficiency),
        report=Report(max_num_seqs=MAX_NUM_SEQS, slots_total=cache.num_blocks * cache.block_size),
        sinks=(shared,),
    )
    report = simulation.run()
    return Saved(
        method,
        width,
        shared.percent,
        report.mean_over_time("running"),
        shared.copied_blocks,
        report.counts.preemptions,
    )


def _several(single: Iterator[SimulatedRequest], method: Method, width: int) -> Iterator[SimulatedRequest]:
    """The same requests for several answers, all as long as the one that the data set has."""
    beam = BeamParams(width=width) if method == "beam" else None
    for one in single:
        # A search is limited by what the pool can hold for all its beams, so its true length is declared.
        named = one.output_tokens if beam is not None else None
        sampling = replace(one.request.sampling, n=width, beam=beam, max_tokens=named)
        yield replace(one, request=replace(one.request, sampling=sampling))
