"""A run whose executor fails now and then: recorded whole, replayed whole, failures included."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.constraint import TokenMask
from octavo.core.plan import FinishReason, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.simulation.driver import build_scheduler
from octavo.simulation.replay import recorded_requests, replay_recording
from octavo.telemetry.recorded_engine import RecordedEngine
from octavo.telemetry.recording import open_for_writing
from octavo.telemetry.recording_reader import Abandoned, Added, Recording, Stepped
from octavo.telemetry.sinks import FanOut

CACHE = CacheConfig(num_blocks=14, block_size=4)
LIMITS = SchedulerConfig(max_num_seqs=5, max_num_batched_tokens=16, max_model_len=48)


class Anything:
    """A constraint that forbids nothing."""

    def start(self, output_token_ids: NDArray[np.int32]) -> TokenMask:
        raise AssertionError("no sampler runs here")

    def gave_up(self, output_token_ids: NDArray[np.int32]) -> bool:
        return False


class FailsAt:
    """Executor that fails in these steps and else answers what follows from the plan."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps

    def submit(self, plan: StepPlan) -> StepPlan:
        if plan.step in self.steps and plan.num_tokens % 2:
            raise RuntimeError("injected before the step ran")
        return plan

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepPlan)
        if handle.step in self.steps:
            raise RuntimeError("injected while it ran")
        count = int(handle.samples.sum())
        tokens = (np.arange(count) * 5 + handle.step + 1).astype(np.int32)
        return StepResult(tokens, tokens % 13 == 0)


class Counting:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 0.5
        return self.time


def run(path: Path, failing: set[int]) -> int:
    """Returns how many steps failed."""
    failed = 0
    with open_for_writing(path) as file:
        engine = RecordedEngine(
            build_scheduler(CACHE, LIMITS), FailsAt(failing), Counting(), FanOut([]), file=file, cache=CACHE
        )
        for number in range(30):
            prompt = (np.arange(6 + number % 9) + 50 * (number % 2)).astype(np.int32)
            constraint = Anything() if number % 4 == 0 else None
            engine.add(Request(f"r{number}", prompt, SamplingParams(max_tokens=14), constraint=constraint))
            if number == 20:
                engine.finish("r19", FinishReason.ABORT)
            for _ in range(2 if number < 29 else 10_000):
                try:
                    if engine.step() is None:
                        break
                except RuntimeError:
                    failed += 1
    return failed


@pytest.mark.parametrize("failing", [set(), {0}, {7}, {3, 4, 5, 30}, set(range(0, 60, 6))], ids=str)
def test_a_run_with_failed_steps_replays_without_a_difference(tmp_path: Path, failing: set[int]) -> None:
    path = tmp_path / "run.jsonl"
    assert run(path, failing) == len(failing)
    items = list(Recording(path).items())
    assert {item.plan.step for item in items if isinstance(item, Abandoned)} == failing
    errors = sum(
        getattr(event, "reason", None) == FinishReason.ERROR
        for item in items
        if isinstance(item, Stepped)
        for event in item.record.events
    )
    assert bool(errors) == bool(failing)
    steps, differences = replay_recording(path)
    assert differences == []
    assert steps == sum(isinstance(item, (Stepped, Abandoned)) for item in items)
    assert len(list(recorded_requests(path))) == 30


def test_a_recording_may_end_with_the_step_that_ended_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with open_for_writing(path) as file:
        engine = RecordedEngine(
            build_scheduler(CACHE, LIMITS), FailsAt({2}), Counting(), FanOut([]), file=file, cache=CACHE
        )
        engine.add(Request("a", np.arange(9, dtype=np.int32), SamplingParams()))
        engine.step()
        engine.step()
        with pytest.raises(RuntimeError):
            engine.step()
        assert json.loads(path.read_text().splitlines()[-1])["abandoned"] == 2, "written at once"
    assert replay_recording(path) == (3, [])


def test_another_plan_for_a_failed_step_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(path, {7})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (failed,) = [line for line in lines if "abandoned" in line]
    failed["ended"] = [4]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps, (difference, *_) = replay_recording(path)
    assert (steps, difference.step, difference.what) == (7, 7, "ended")


def test_who_was_constrained_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(path, set())
    added = [item for item in Recording(path).items() if isinstance(item, Added)]
    assert [item.constrained for item in added] == [number % 4 == 0 for number in range(30)]
    assert all(item.request.constraint is None for item in added)
