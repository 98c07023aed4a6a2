"""``SimulatedExecutor``: prices a step instead of running it, and answers what the script says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import Candidates, StepPlan, StepResult
from octavo.simulation.beam_candidates import simulated_candidates
from octavo.simulation.content import MASK64, VOCABULARY, tokens_at
from octavo.simulation.requests import SimulatedRequest


class VirtualClock:
    """Seconds (or steps) that pass when somebody says so."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0.0, "time does not go back"
        self._now += seconds

    def advance_to(self, time: float) -> None:
        self._now = max(self._now, time)


class CostModel(Protocol):
    def price(self, plan: StepPlan) -> float:
        """Seconds that the step takes."""


class StepCost:
    """Counts steps: each takes 1, whatever it does. Steps that only tell of events take nothing."""

    def price(self, plan: StepPlan) -> float:
        return 1.0 if len(plan.rows) else 0.0


@dataclass(frozen=True, slots=True)
class _Script:
    output_tokens: int
    answer_key: int


@dataclass(slots=True)
class _Steady:
    """The rows of a step in which all of them sampled. In most steps the same ones do so again, and then they need not
    be looked up; until others come, what they have left is written down here alone."""

    named: NDArray[np.int32]
    """The plan's own array. The scheduler gives the same object as long as the same sequences run."""
    rows: NDArray[np.intp]
    left: NDArray[np.int64]
    nobody: NDArray[np.bool_]
    """bool [rows]: false, for a result in which nobody ends."""
    least: int
    """Smallest of ``left``."""
    tokens: NDArray[np.int32] | None
    """int32 [rows]: their tokens in any step, where all tokens are alike."""


class SimulatedExecutor:
    """Executor port. State is arrays over rows: a decode step costs the same few NumPy calls at any number of rows."""

    def __init__(
        self, clock: VirtualClock, cost: CostModel, *, max_num_seqs: int, vocabulary: int = VOCABULARY
    ) -> None:
        self.clock = clock
        self.cost = cost
        self._vocabulary = vocabulary
        self._scripts: dict[str, _Script] = {}
        self._left = np.zeros(max_num_seqs, np.int64)
        """int64 [rows]: tokens that each row's script still has."""
        self._total = np.zeros(max_num_seqs, np.int64)
        """int64 [rows]: tokens after which the script ends it."""
        self._key = np.zeros(max_num_seqs, np.uint64)
        """uint64 [rows]: content of the answer."""
        self._searching: dict[int, int] = {}
        """Row -> beams of its search, for the rows of beam searches."""
        self._steady: _Steady | None = None

    def expect(self, simulated: SimulatedRequest) -> None:
        """Learn a request's script before the scheduler hears of the request."""
        for request_id, output_tokens, answer_key in simulated.scripts():
            self._scripts[request_id] = _Script(output_tokens, answer_key)

    def forget(self, request_id: str) -> None:
        """The request has ended or was refused."""
        self._scripts.pop(request_id, None)

    def submit(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, handle: object) -> StepResult:
        plan = handle
        assert isinstance(plan, StepPlan)
        steady = self._steady
        if steady is not None:
            rows = plan.rows
            if rows is steady.named and not plan.started and np.count_nonzero(plan.samples) == len(rows):
                self.clock.advance(self.cost.price(plan))
                return self._once_more(steady)
            self._left[steady.rows] = steady.left
            self._steady = None
        return self._any_step(plan)

    def _once_more(self, steady: _Steady) -> StepResult:
        left, tokens = steady.left, steady.tokens
        if tokens is None:
            tokens = self._tokens(steady.rows, left)
        left -= 1
        steady.least -= 1
        return StepResult(tokens, steady.nobody if steady.least > 0 else left <= 0)

    def _any_step(self, plan: StepPlan) -> StepResult:
        if self._searching:
            for row in plan.ended:
                self._searching.pop(row, None)
        for start in plan.started:
            script = self._scripts[start.request.request_id]
            self._left[start.row] = script.output_tokens - len(start.output_token_ids)
            self._total[start.row] = script.output_tokens
            self._key[start.row] = script.answer_key & MASK64
            if start.request.sampling.beam is not None:
                self._searching[start.row] = start.request.sampling.beam.width
        self.clock.advance(self.cost.price(plan))
        rows = plan.rows.astype(np.intp)  # NumPy takes its own index type several times as fast as int32
        all_sample = np.count_nonzero(plan.samples) == len(rows)
        if not all_sample:
            rows = rows[plan.samples]
        left = self._left[rows]
        token_ids = self._tokens(rows, left)
        candidates = self._candidates(plan) if self._searching else {}
        left -= 1
        self._left[rows] = left
        stopped = left <= 0
        if candidates:
            stopped &= ~np.isin(rows, list(candidates))
        if all_sample and len(rows) and not self._searching:
            nobody = np.zeros(len(rows), np.bool_)
            nobody.setflags(write=False)
            alike = token_ids if self._vocabulary == 1 else None
            token_ids.setflags(write=False)
            self._steady = _Steady(plan.rows, rows, left, nobody, int(left.min()), alike)
        return StepResult(token_ids, stopped, candidates=candidates)

    def _candidates(self, plan: StepPlan) -> dict[int, Candidates]:
        """What beam searches choose from; all of it ends the answer where the script ends."""
        found: dict[int, Candidates] = {}
        ends = plan.scheduled.cumsum()
        for i in plan.samples.nonzero()[0].tolist():
            row = int(plan.rows[i])
            if row in self._searching:
                left, total = int(self._left[row]), int(self._total[row])
                found[row] = simulated_candidates(
                    int(self._key[row]),
                    total - left,
                    int(plan.token_ids[ends[i] - 1]),
                    Candidates.count(self._searching[row], 1),
                    last=left <= 1,
                    vocabulary=self._vocabulary,
                )
        return found

    def _tokens(self, rows: NDArray[np.intp], left: NDArray[np.int64]) -> NDArray[np.int32]:
        if self._vocabulary == 1:
            return np.zeros(len(rows), np.int32)
        return tokens_at(self._key[rows], self._total[rows] - left, self._vocabulary)
