"""One case through the real executor and through the simulated one; both leave a list of what was decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np
from agreement_cases import Case
from msgspec import structs, to_builtins

from octavo.core.errors import RequestError
from octavo.core.events import Finished, StepRecord
from octavo.core.plan import Candidates, FinishReason, StepPlan, StepResult
from octavo.core.ports import Executor
from octavo.core.request import Request
from octavo.engine.engine import Engine
from octavo.scheduling.audit import audit
from octavo.simulation.driver import Simulation, build_scheduler
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import OpenLoop
from octavo.telemetry.recorded_engine import RecordedEngine

FOREVER = 1 << 30
"""Script of a request that something else than its script ends."""


@dataclass
class Watched:
    """An executor and a sink around the real ones: notes each step, the block table as it was while the step ran."""

    inner: Executor
    block_size: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    _tables: list[list[int]] = field(default_factory=list)

    def submit(self, plan: StepPlan) -> object:
        ends = -(-(plan.computed + plan.scheduled) // self.block_size)
        self._tables = [
            plan.block_table[row, :end].tolist()
            for row, end in zip(plan.rows.tolist(), ends.tolist(), strict=True)
        ]
        return self.inner.submit(plan)

    def collect(self, handle: object) -> StepResult:
        return self.inner.collect(handle)

    def emit(self, record: StepRecord, now: float) -> None:
        plan, result = record.plan, record.result
        arrays = ("rows", "computed", "scheduled", "token_ids", "samples", "copies", "forks", "transfers")
        self.records.append(record)
        self.steps.append(
            {
                "step": plan.step,
                **{name: getattr(plan, name).tolist() for name in arrays},
                "tables": self._tables,
                "started": [
                    (
                        start.row,
                        start.request.request_id,
                        start.output_token_ids.tolist(),
                        start.cached_tokens,
                    )
                    for start in plan.started
                ],
                "ended": plan.ended,
                "request_ids": record.request_ids,
                "sampled": result.token_ids.tolist(),
                "finished": record.finished.tolist(),
                "events": [(type(event).__name__, to_builtins(event)) for event in record.events],
                "pool": to_builtins(record.pool),
                "waste": to_builtins(record.waste),
                "queue": (record.running, record.waiting),
            }
        )


class StepClock:
    """The real engine's clock in these tests: steps that ran rows, as the simulator's clock counts them."""

    def __init__(self) -> None:
        self.steps = 0

    def now(self) -> float:
        return float(self.steps)


def run_real(case: Case, executor: Executor, recording: TextIO) -> Watched:
    """The real engine, in a loop of its own that knows nothing of the simulator."""
    watched = Watched(executor, case.cache.block_size)
    clock = StepClock()
    engine = RecordedEngine(
        build_scheduler(case.cache, case.limits),
        watched,
        clock,
        watched,
        file=recording,
        cache=case.cache,
    )
    coming = list(case.arrivals)
    while True:
        while coming and coming[0][0] <= clock.steps:
            _add(engine, coming.pop(0)[1])
        record = engine.step()
        if record is None:
            if not coming:
                return watched
            clock.steps = coming[0][0]
            continue
        clock.steps += bool(len(record.plan.rows))
        for request_id in case.aborts.get(clock.steps, ()):
            engine.finish(request_id)
        audit(engine.scheduler)


def _add(engine: Engine, request: Request) -> None:
    with suppress(RequestError):  # an event of the next record tells of it
        engine.add(request)


Found = dict[tuple[str, tuple[int, ...]], Candidates]
"""(request, tokens of a beam) -> what its search chose from."""


class Outputs:
    """What each row has generated, as far as plans tell."""

    def __init__(self) -> None:
        self.owner: dict[int, Request] = {}
        self._tokens: dict[int, list[int]] = {}

    def follow(self, plan: StepPlan) -> None:
        for start in plan.started:
            self.owner[start.row] = start.request
            self._tokens[start.row] = start.output_token_ids.tolist()
        first = 0
        for row, computed, scheduled in zip(
            plan.rows.tolist(), plan.computed.tolist(), plan.scheduled.tolist(), strict=True
        ):
            generated = computed - len(self.owner[row].prompt_token_ids)
            for i, token in enumerate(plan.token_ids[first : first + scheduled].tolist()):
                if generated + i >= 0:
                    self._tokens[row][generated + i :] = [token]
            first += scheduled

    def beam(self, row: int) -> tuple[str, tuple[int, ...]]:
        return self.owner[row].request_id, tuple(self._tokens[row])


class Answering:
    """The simulated executor decides when answers end; what is in them it takes from the real run."""

    def __init__(self, inner: Executor, answers: Mapping[str, Sequence[int]], found: Found) -> None:
        self._inner = inner
        self._answers = answers
        self._found = found
        self._outputs = Outputs()

    def submit(self, plan: StepPlan) -> object:
        self._outputs.follow(plan)
        return plan, self._inner.submit(plan)

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, tuple)
        plan, inner = handle
        result = self._inner.collect(inner)
        ends = (plan.computed + plan.scheduled)[plan.samples].tolist()
        tokens, candidates = [], {}
        for row, end in zip(plan.rows[plan.samples].tolist(), ends, strict=True):
            owner = self._outputs.owner[row]
            if owner.sampling.beam is None:
                tokens.append(self._answers[owner.request_id][end - len(owner.prompt_token_ids)])
            else:
                assert row in result.candidates, "the simulated executor gives a search candidates, too"
                # A beam that the real run never had is a difference, which its own tokens will show.
                candidates[row] = self._found.get(self._outputs.beam(row), result.candidates[row])
                tokens.append(int(candidates[row].token_ids[0]))
        return structs.replace(result, token_ids=np.array(tokens, np.int32), candidates=candidates)


def run_simulated(
    case: Case, answers: Mapping[str, Sequence[int]], scripts: Mapping[str, int], found: Found
) -> Watched:
    """The product's own simulation driver, on its clock of steps."""

    def requests() -> Iterator[SimulatedRequest]:
        for step, request in case.arrivals:
            lengths = [scripts.get(run.request_id, FOREVER) for run in request.runs()]
            yield SimulatedRequest(float(step), request, lengths[0], 0, tuple(lengths))

    simulation = Simulation(OpenLoop(requests()), build_scheduler(case.cache, case.limits))
    engine = simulation.engine
    watched = Watched(Answering(engine.executor, answers, found), case.cache.block_size)
    engine.executor, engine.sink = watched, _Both(engine.sink, watched)

    def after_a_step(_: Simulation) -> None:
        for request_id in case.aborts.get(int(simulation.clock.now()), ()):
            engine.finish(request_id)

    simulation.run(progress=after_a_step)
    return watched


@dataclass
class _Both:
    first: Any
    second: Any

    def emit(self, record: StepRecord, now: float) -> None:
        self.first.emit(record, now)
        self.second.emit(record, now)


def answers_of(watched: Watched) -> tuple[dict[str, list[int]], dict[str, int], Found]:
    """(tokens of every request, output tokens of those that a stop token ended, what beam searches chose from).

    A restarted request's tokens count once: the ones that it first got, which it must get again.
    """
    tokens: dict[str, dict[int, int]] = {}
    prompts: dict[str, int] = {}
    scripts: dict[str, int] = {}
    found: Found = {}
    outputs = Outputs()
    for record in watched.records:
        plan = record.plan
        outputs.follow(plan)
        found |= {outputs.beam(row): candidates for row, candidates in record.result.candidates.items()}
        for start in plan.started:
            prompts[start.request.request_id] = len(start.request.prompt_token_ids)
        sampling = np.flatnonzero(plan.samples).tolist()
        for i, token in zip(sampling, record.result.token_ids.tolist(), strict=True):
            name = record.request_ids[i]
            if int(plan.rows[i]) in record.result.candidates:
                continue
            place = int(plan.computed[i] + plan.scheduled[i]) - prompts[name]
            tokens.setdefault(name, {}).setdefault(place, token)
        for event in record.events:
            if isinstance(event, Finished) and event.reason == FinishReason.STOP:
                scripts[event.request_id] = event.output_tokens
    answers = {name: [places[i] for i in range(len(places))] for name, places in tokens.items()}
    return answers, scripts, found
