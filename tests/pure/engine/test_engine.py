"""The loop: what it tells, and what a failing executor does to it."""

from __future__ import annotations

import pytest

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import Finished, StepRecord
from octavo.core.plan import FinishReason, StepPlan, StepResult
from octavo.engine.engine import Engine
from octavo.scheduling.audit import audit
from scheduler_helpers import ScriptedExecutor, make_request, make_scheduler


class Failing:
    """Runs a script, but breaks in the steps named: before it has heard of the plan, or after."""

    def __init__(self, inner: ScriptedExecutor, before: set[int], after: set[int]) -> None:
        self.inner, self.before, self.after = inner, before, after

    def submit(self, plan: StepPlan) -> StepPlan:
        if plan.step in self.before:
            # What it never heard of is told to have ended in the next plan, which a real executor takes.
            self.inner.holder.update({start.row: start.request.request_id for start in plan.started})
            raise RuntimeError("broken before the step")
        return plan

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepPlan)
        result = self.inner.run(handle)
        if handle.step in self.after:
            raise RuntimeError("broken after the step")
        return result


class Ticks:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1
        return self.time


class Keep:
    def __init__(self) -> None:
        self.records: list[tuple[StepRecord, float]] = []

    def emit(self, record: StepRecord, now: float) -> None:
        self.records.append((record, now))

    def ends(self) -> dict[str, FinishReason]:
        found = [event for record, _ in self.records for event in record.events]
        return {event.request_id: event.reason for event in found if isinstance(event, Finished)}


def engine(failing_before: set[int], failing_after: set[int], blocks: int = 40) -> tuple[Engine, Keep]:
    scheduler = make_scheduler(
        CacheConfig(blocks, 4), SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16, max_model_len=64)
    )
    keep = Keep()
    inner = ScriptedExecutor(lambda _: 5, 8)
    return Engine(scheduler, Failing(inner, failing_before, failing_after), Ticks(), keep), keep


def test_every_step_is_told_once_with_the_clocks_time() -> None:
    runner, keep = engine(set(), set())
    runner.add(make_request("a", 6, 10))
    assert runner.has_unfinished
    runner.drain()
    assert runner.step() is None
    assert [record.plan.step for record, _ in keep.records] == list(range(len(keep.records)))
    assert [now for _, now in keep.records] == [float(i + 1) for i in range(len(keep.records))]
    assert keep.ends() == {"a": FinishReason.STOP}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_failed_step_ends_its_own_requests_and_no_others(when: str, at: int) -> None:
    runner, keep = engine({at} if when == "before" else set(), {at} if when == "after" else set())
    for name in ("a", "b"):
        runner.add(make_request(name, 10, 8))
    for _ in range(at):
        runner.step()
    with pytest.raises(RuntimeError, match=f"broken {when}"):
        runner.step()
    audit(runner.scheduler)
    runner.add(make_request("c", 10, 8))
    runner.drain()
    audit(runner.scheduler)
    ends = keep.ends()
    assert set(ends) == {"a", "b", "c"}
    assert ends["a"] == FinishReason.ERROR
    assert ends["c"] == FinishReason.STOP
    assert runner.scheduler.pool_state.live == 0


def test_an_abort_during_a_step_that_fails_keeps_its_reason() -> None:
    runner, keep = engine(set(), set())

    class AbortsItself:
        def submit(self, plan: StepPlan) -> StepPlan:
            assert runner.finish("a", FinishReason.ABORT)
            raise RuntimeError("broken")

        def collect(self, handle: object) -> StepResult:
            raise AssertionError("nothing was submitted")

    runner.add(make_request("a", 10, 8))
    runner.executor = AbortsItself()
    with pytest.raises(RuntimeError, match="broken"):
        runner.step()
    runner.executor = Failing(ScriptedExecutor(lambda _: 5, 8), set(), set())
    runner.executor.inner.holder[0] = "a"
    runner.drain()
    assert keep.ends() == {"a": FinishReason.ABORT}
    assert runner.scheduler.pool_state.live == 0
