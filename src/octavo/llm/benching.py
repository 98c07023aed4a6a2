"""Times decode steps of a real engine at given batch sizes, and on demand every operator in them."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field, replace

from octavo.core.errors import ConfigError
from octavo.core.sampling_params import SamplingParams
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.operator_times import MachineLimits, OperatorTime, judge, probe_limits, time_steps
from octavo.llm.session import Session

WARM_STEPS = 3
"""Decode steps that are run and not timed."""


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    batch: int
    context: int
    step_s: float
    """Median, planning and sampling included."""
    best_step_s: float
    operators: list[OperatorTime] = field(default_factory=list)
    limit_s: float | None = None
    """What memory and arithmetic alone would take, one operator after another."""
    limits: MachineLimits | None = None
    """Probed right before and after; the better ones."""

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s


def check_fits(session: Session, batch: int, context: int, steps: int) -> None:
    """Raises ConfigError, naming flag and number, for what the engine cannot run at once."""
    scheduler = session.engine.scheduler
    allocator, length = scheduler.allocator, context + 2 * steps + WARM_STEPS + 1
    if batch > scheduler.config.max_num_seqs:
        raise ConfigError(
            f"a batch of {batch} exceeds --max-num-seqs {scheduler.config.max_num_seqs}", param="--batch"
        )
    if length > scheduler.max_len:
        raise ConfigError(
            f"context {context} and {2 * steps} steps need {length} tokens; the longest request has "
            f"{scheduler.max_len}",
            param="--context",
        )
    blocks = batch * -(-length // allocator.block_size)
    if blocks > allocator.num_blocks:
        raise ConfigError(
            f"a batch of {batch} at context {context} needs {blocks} blocks; the pool has {allocator.num_blocks}",
            param="--batch",
        )


def decode_times(
    session: Session, batch: int, context: int, steps: int, profile: bool = False
) -> DecodeTimes:
    """``steps`` decode steps around this context. With ``profile``, operators too, in as many steps more.

    The engine must be idle, and is again. Raises ConfigError for what does not fit.
    """
    check_fits(session, batch, context, steps)
    executor = session.engine.executor
    assert isinstance(executor, CpuExecutor)
    before = probe_limits(executor.runtime) if profile else None
    _fill(session, batch, max(1, context - steps), 2 * steps + WARM_STEPS + 1)
    for _ in range(WARM_STEPS):
        session.step()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        session.step()
        times.append(time.perf_counter() - begin)
    found = DecodeTimes(batch, context, statistics.median(times), min(times))
    if before is not None:
        timed = time_steps(executor, session.step, steps, batch, context)
        limits = before.best_of(probe_limits(executor.runtime))
        operators = judge(executor, timed, limits)
        limit_s = sum(one.limit_s or 0.0 for one in operators)
        found = replace(found, operators=operators, limit_s=limit_s, limits=limits)
    session.abort(list(session.board.completions.values()))
    return found


def _fill(session: Session, batch: int, prompt_tokens: int, output_tokens: int) -> None:
    """Start so many requests of random tokens and compute their prompts."""
    rng = random.Random(batch)
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens + batch, ignore_eos=True)
    requests = []
    for _ in range(batch):
        ids = [rng.randrange(session.spec.vocab_size) for _ in range(prompt_tokens)]
        requests.append(session.add(session.prepare(ids, sampling)))
    while not all(request.token_ids for request in requests):
        session.step()
