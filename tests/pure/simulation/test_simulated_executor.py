"""The scripted executor: predictable tokens, scripted ends, priced steps; and its fidelity to the Executor port."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from simulation_helpers import requests, scheduler

from octavo.core.ports import Executor
from octavo.simulation.executor import SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.workloads import answer_tokens


class PerToken:
    def price(self, plan) -> float:  # type: ignore[no-untyped-def]
        return 0.5 * plan.num_tokens


def test_answers_follow_the_script_through_preemption() -> None:
    """Recomputed rows go on where they were: the answer is the scripted one, whatever happens on the way."""
    loop = scheduler(blocks=10, block_size=4, max_num_batched_tokens=16)
    clock = VirtualClock()
    executor: Executor = SimulatedExecutor(clock, StepCost(), max_num_seqs=4)
    assert isinstance(executor, SimulatedExecutor)
    made = list(requests([0.0] * 5, [(7, 12), (6, 15), (5, 9), (8, 1), (3, 20)], max_tokens=18))
    answers: dict[str, list[int]] = {}
    preemptions = 0
    for simulated in made:
        executor.expect(simulated)
        loop.add(simulated.request)
    while (plan := loop.plan()) is not None:
        result = executor.collect(executor.submit(plan))
        record = loop.apply(plan, result)
        sampled = [record.request_ids[i] for i in np.flatnonzero(plan.samples)]
        for name, token in zip(sampled, result.token_ids.tolist(), strict=True):
            answers.setdefault(name, []).append(token)
        preemptions += sum(type(event).__name__ == "Preempted" for event in record.events)
    assert preemptions > 0
    for simulated in made:
        length = min(simulated.output_tokens, 18)
        assert answers[simulated.request_id] == answer_tokens(simulated.answer_key, length).tolist()


def test_a_step_takes_what_the_cost_model_says() -> None:
    loop = scheduler()
    clock = VirtualClock(10.0)
    executor = SimulatedExecutor(clock, PerToken(), max_num_seqs=4)
    (simulated,) = requests([0.0], [(6, 2)])
    executor.expect(simulated)
    loop.add(simulated.request)
    plan = loop.plan()
    assert plan is not None
    result = executor.collect(executor.submit(plan))
    assert clock.now() == 13.0
    assert result.stopped.tolist() == [False]
    loop.apply(plan, result)
    plan = loop.plan()
    assert plan is not None
    assert executor.collect(executor.submit(plan)).stopped.tolist() == [True]
    assert clock.now() == 13.5


def test_rows_that_do_not_sample_emit_nothing() -> None:
    loop = scheduler(max_num_batched_tokens=4)
    executor = SimulatedExecutor(VirtualClock(), StepCost(), max_num_seqs=4)
    (simulated,) = requests([0.0], [(6, 2)])
    executor.expect(simulated)
    loop.add(simulated.request)
    plan = loop.plan()
    assert plan is not None
    assert executor.collect(plan).token_ids.tolist() == []


@pytest.mark.parametrize("vocabulary", [1, 1 << 16])
def test_rows_that_go_on_together_get_what_they_would_get_one_by_one(vocabulary: int) -> None:
    """The executor knows the same rows again by the plan's array; of a copy it knows nothing, and looks each one up."""
    loop = scheduler(blocks=10, block_size=4, max_num_batched_tokens=16)
    executors = [
        SimulatedExecutor(VirtualClock(), PerToken(), max_num_seqs=4, vocabulary=vocabulary) for _ in range(2)
    ]
    for simulated in requests([0.0] * 6, [(7, 12), (6, 15), (5, 9), (8, 1), (3, 20), (2, 20)], max_tokens=18):
        for executor in executors:
            executor.expect(simulated)
        loop.add(simulated.request)
    steps = again = 0
    rows = None
    while (plan := loop.plan()) is not None:
        again += plan.rows is rows
        rows = plan.rows
        one, other = (
            executor.collect(plan if i else replace(plan, rows=plan.rows.copy()))
            for i, executor in enumerate(executors)
        )
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.stopped.tolist() == other.stopped.tolist()
        assert executors[0].clock.now() == executors[1].clock.now()
        loop.apply(plan, one)
        steps += 1
    assert steps > again > 20


def test_the_clock_does_not_go_back() -> None:
    clock = VirtualClock(5.0)
    clock.advance_to(3.0)
    assert clock.now() == 5.0
    clock.advance_to(7.5)
    assert clock.now() == 7.5
    with pytest.raises(AssertionError):
        clock.advance(-1.0)
