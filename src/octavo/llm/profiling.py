"""Times whole steps of a real engine over a grid and fits a profile that the simulator can price steps with.

A step is timed from planning to telling: scheduler, model, sampler, detokenizer and this package's bookkeeping, as that
is what a user waits for. The executor alone would come out faster than any server.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.core.errors import ConfigError
from octavo.core.events import StepRecord
from octavo.core.sampling_params import SamplingParams
from octavo.llm.session import Session
from octavo.simulation.cost_model import Fitted, FittedProfile
from octavo.simulation.features import PlanFeatures, features
from octavo.simulation.fit import fit

TERMS = ("constant", "tokens", "sequences", "sampled", "kv_tokens", "pairs")
KNOTS = (2, 4, 8, 16, 32, 64, 128, 256)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (16, 96, 384, 1536)
CHUNKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
DECODE_STEPS = 8
"""Decode steps at each (context, batch) of a round."""
PROMPT_TOKENS_MAX = 6_144
"""Prompt tokens that one context's decode rows may cost in a round: what bounds the time of a round."""
POOL_SHARE = 0.9
"""Of the pool that a measurement may fill; preempted rows would measure something else."""

Cell = tuple[str, ...]
"""What a step was made for; steps of one cell are averaged, so that a disturbed one weighs little."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Mean of the steps of one cell."""

    cell: Cell
    step: PlanFeatures
    seconds: float
    steps: int


class StepTimer:
    """A sink that keeps what each step consisted of, for whoever timed it."""

    def __init__(self) -> None:
        self.last: PlanFeatures | None = None

    def emit(self, record: StepRecord, now: float) -> None:
        self.last = features(record.plan) if len(record.plan.rows) else None


class Bench:
    """Makes a session's engine run steps of a wanted shape, and times them."""

    def __init__(self, session: Session, timer: StepTimer, seed: int = 0) -> None:
        """``timer`` is one of the session's sinks. The engine must be idle."""
        self.session = session
        self.cells: dict[Cell, list[tuple[PlanFeatures, float]]] = {}
        config, allocator = session.engine.scheduler.config, session.engine.scheduler.allocator
        self.length_max = session.engine.scheduler.max_len
        self.rows_max = config.max_num_seqs
        self.budget = config.max_num_batched_tokens or self.length_max
        self._slots = int(allocator.num_blocks * allocator.block_size * POOL_SHARE)
        self._block = allocator.block_size
        self._timer = timer
        self._rng = random.Random(seed)

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        """Queue a request of these lengths; its tokens are random, so no prefix is found."""
        ids = [self._rng.randrange(self.session.spec.vocab_size) for _ in range(prompt_tokens)]
        greedy = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        self.session.add(self.session.prepare(ids, greedy))

    def step(self, cell: Cell) -> bool:
        """Run and time one step as one of ``cell``. False when there was nothing to run."""
        begin = time.perf_counter()
        changed = self.session.step()
        seconds = time.perf_counter() - begin
        if changed is None:
            return False
        if self._timer.last is not None:
            self.cells.setdefault(cell, []).append((self._timer.last, seconds))
        return True

    def clear(self) -> None:
        """Abort whatever runs."""
        self.session.abort(list(self.session.board.completions.values()))

    def prefill(self, chunk: int) -> None:
        """One prompt of ``chunk`` tokens in one step."""
        self.add(chunk, 1)
        while self.step(("prefill", str(chunk))):
            pass

    def long_prompt(self, tokens: int) -> None:
        """A prompt of several chunks: each one attends to those before it."""
        self.add(tokens, 1)
        chunk = 0
        while self.step(("long prompt", str(tokens), str(chunk))):
            chunk += 1

    def decode(self, context: int) -> None:
        """More and more rows that decode at about this context; the prompts that join them make mixed steps."""
        running = 0
        for batch in self.batches(context):
            while running < batch:
                self.add(context, self.length_max - context)
                running += 1
            join = 0
            while True:  # until all prompts are computed
                self.step(("join", str(context), str(batch), str(join)))
                join += 1
                last = self._timer.last
                assert last is not None
                if last.sampled == last.sequences == batch:
                    break
            for _ in range(DECODE_STEPS):
                self.step(("decode", str(context), str(batch)))
        self.clear()

    def batches(self, context: int) -> list[int]:
        """Batch sizes that fit rows, budget, pool and time at this context; each is run after the ones before it."""
        found: list[int] = []
        for batch in BATCHES:
            if batch > min(self.rows_max, self.budget - 1) or (found and batch * context > PROMPT_TOKENS_MAX):
                break
            joins = -(-batch * context // (self.budget - batch)) + len(found) + 1
            length = context + joins + DECODE_STEPS * (len(found) + 1) + 1
            if length >= self.length_max or batch * (length + self._block) > self._slots:
                break  # rows would end or be preempted
            found.append(batch)
        return found

    def shapes(self) -> Iterator[Callable[[], None]]:
        """One round of the grid, short shapes first."""
        for chunk in CHUNKS:
            if chunk <= min(self.budget, self.length_max - 1, self._slots):
                yield lambda chunk=chunk: self.prefill(chunk)  # type: ignore[misc]
        longest = min(3 * self.budget, self.length_max - 1, self._slots, PROMPT_TOKENS_MAX)
        if longest > self.budget:
            yield lambda: self.long_prompt(longest)
        for context in CONTEXTS:
            if self.batches(context):
                yield lambda context=context: self.decode(context)  # type: ignore[misc]

    def measurements(self) -> list[Measurement]:
        return [_mean(cell, steps) for cell, steps in self.cells.items()]


def _mean(cell: Cell, steps: Sequence[tuple[PlanFeatures, float]]) -> Measurement:
    """Means over all of them, slow ones too: what a machine's neighbours cost a step is part of what a step costs, and
    durations add up by their means. (Without the slowest tenth, the engine's own steps were priced 16-20 % too low.)"""
    table = np.array([step for step, _ in steps], np.float64)
    return Measurement(
        cell,
        PlanFeatures(*(round(value) for value in table.mean(axis=0).tolist())),
        float(np.mean([seconds for _, seconds in steps])),
        len(steps),
    )


def grouped(steps: Sequence[tuple[PlanFeatures, float]]) -> list[Measurement]:
    """Steps of an ordinary run, averaged where they are alike (within about a tenth)."""
    cells: dict[Cell, list[tuple[PlanFeatures, float]]] = {}
    for step, seconds in steps:
        alike = (
            str(round(8 * math.log2(1 + amount))) for amount in (step.tokens, step.sampled, step.kv_tokens)
        )
        cells.setdefault(("run", *alike), []).append((step, seconds))
    return [_mean(cell, found) for cell, found in cells.items()]


def measure(
    session: Session, timer: StepTimer, seconds: float, progress: Callable[[float], None] = lambda done: None
) -> list[Measurement]:
    """Rounds over the grid for about ``seconds``, at least one whole round after a first one that only warms up.

    ``progress`` hears of the seconds gone. Raises ConfigError if the engine is too small to run any of it.
    """
    bench = Bench(session, timer)
    shapes = list(bench.shapes())
    if len(shapes) < 4:
        raise ConfigError(
            f"the pool of {session.engine.scheduler.allocator.num_blocks} blocks is too small to measure in",
            param="--num-gpu-blocks-override",
        )
    begin = time.perf_counter()
    for shape in shapes[:4]:
        shape()
    bench.cells.clear()
    rounds = 0
    while rounds == 0 or time.perf_counter() - begin < seconds:
        for shape in shapes:
            shape()
            progress(time.perf_counter() - begin)
        rounds += 1
    return bench.measurements()


def fit_measurements(name: str, source: str, measured: Sequence[Measurement]) -> FittedProfile:
    """The profile of these measurements."""
    return fit(name, source, [(one.step, one.seconds) for one in measured], terms=TERMS, knots=KNOTS)


def errors_by_kind(
    profile: FittedProfile, measured: Sequence[Measurement]
) -> dict[str, tuple[int, float, float]]:
    """Kind of cell -> (cells, mean, largest) of |predicted - measured| / measured."""
    model = Fitted(profile)
    found: dict[str, list[float]] = {}
    for one in measured:
        error = abs(model.seconds(one.step) - one.seconds) / one.seconds
        found.setdefault(one.cell[0], []).append(error)
    return {kind: (len(all_), sum(all_) / len(all_), max(all_)) for kind, all_ in found.items()}
