"""A scripted executor and short ways to build a scheduler; for every test that drives the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import StepRecord
from octavo.core.plan import Candidates, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.memory import make_allocator
from octavo.scheduling import Scheduler
from octavo.scheduling.audit import audit


def make_scheduler(cache: CacheConfig, config: SchedulerConfig) -> Scheduler:
    return Scheduler(config, make_allocator(cache, config.max_num_seqs, config.max_model_len))


def make_request(
    request_id: str,
    prompt: int | Iterable[int],
    max_tokens: int | None = None,
    *,
    priority: int = 0,
    salt: str | None = None,
    prompt_logprobs: int | None = None,
) -> Request:
    """``prompt``: token ids, or how many (1, 2, 3, ...)."""
    ids = range(1, prompt + 1) if isinstance(prompt, int) else prompt
    sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs)
    return Request(request_id, np.array(list(ids), np.int32), sampling, priority, salt)


CANDIDATES = Candidates(
    np.arange(20, 40, dtype=np.int32), -np.arange(1, 21, dtype=np.float32), np.zeros(20, np.bool_)
)
"""What every beam may go on with: the first one's two best are always the two best of all."""


class ScriptedExecutor:
    """Ends each request after as many tokens as ``lengths`` says. Knows of a row only what plans have told it."""

    def __init__(self, lengths: Callable[[str], int], rows: int) -> None:
        self.lengths = lengths
        self.end = np.zeros(rows, np.int64)
        self.holder: dict[int, str] = {}
        self.searching: set[int] = set()

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.ended:
            del self.holder[row]
            self.searching.discard(row)
        for start in plan.started:
            assert start.row not in self.holder, "a row was given away twice"
            self.holder[start.row] = start.request.request_id
            if start.request.sampling.beam is not None:
                self.searching.add(start.row)
            prompt = len(start.request.prompt_token_ids)
            self.end[start.row] = prompt + self.lengths(start.request.request_id)
        assert set(plan.rows.tolist()) <= self.holder.keys(), "a row runs that nobody started"
        newest = (plan.computed + plan.scheduled)[plan.samples]
        token_ids = (newest * 7 + plan.rows[plan.samples]).astype(np.int32)
        rows = plan.rows[plan.samples]
        searching = [row for row in rows.tolist() if row in self.searching]
        stopped = (newest + 1 >= self.end[rows]) & ~np.isin(rows, searching)
        return StepResult(token_ids, stopped, candidates=dict.fromkeys(searching, CANDIDATES))


def step(scheduler: Scheduler, executor: ScriptedExecutor, *, check: bool = True) -> StepRecord | None:
    plan = scheduler.plan()
    if plan is None:
        return None
    record = scheduler.apply(plan, executor.run(plan))
    if check:
        audit(scheduler)
    return record


def drain(scheduler: Scheduler, executor: ScriptedExecutor, most: int = 10_000) -> list[StepRecord]:
    """Step until nothing is left; fails after ``most`` steps."""
    records = []
    for _ in range(most):
        record = step(scheduler, executor)
        if record is None:
            assert scheduler.pool_state.live == 0, "blocks are still held after a drain"
            return records
        records.append(record)
    raise AssertionError(f"still running after {most} steps")


class Bench:
    """A scheduler with its executor; the short words of these tests."""

    def __init__(
        self,
        blocks: int,
        size: int = 4,
        *,
        rows: int = 4,
        budget: int | None = 100,
        model_len: int = 1_000,
        length: int = 1_000,
        allocator: str = "paged",
        caching: bool = False,
        tier: int = 0,
        **config: object,
    ) -> None:
        cache = CacheConfig(blocks, size, allocator, "first_fit", caching, tier)  # type: ignore[arg-type]
        settings = SchedulerConfig(rows, budget, model_len, **config)  # type: ignore[arg-type]
        self.scheduler: Scheduler = make_scheduler(cache, settings)
        self.lengths: dict[str, int] = {}
        self.executor = ScriptedExecutor(lambda name: self.lengths.get(name, length), rows)

    def add(self, name: str, *args: object, **kwargs: object) -> None:
        self.scheduler.add(make_request(name, *args, **kwargs))  # type: ignore[arg-type]

    def step(self) -> StepRecord:
        record = step(self.scheduler, self.executor)
        assert record is not None
        return record

    def steps(self, count: int) -> StepRecord:
        for _ in range(count):
            record = self.step()
        return record

    def drain(self) -> list[StepRecord]:
        return drain(self.scheduler, self.executor)


def ran(record: StepRecord) -> list[tuple[str, int, int]]:
    """(request, computed, scheduled) of every row of a step."""
    plan = record.plan
    return list(zip(record.request_ids, plan.computed.tolist(), plan.scheduled.tolist(), strict=True))


def events(record: StepRecord, kind: type) -> list:
    return [event for event in record.events if isinstance(event, kind)]
