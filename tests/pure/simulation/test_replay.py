"""A recording of the simulator, again through the scheduler: no decision differs; and a differing one is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.simulation.arrivals import at_once, poisson
from octavo.simulation.driver import Simulation, build_scheduler
from octavo.simulation.lengths import independent, uniform
from octavo.simulation.random_numbers import stream
from octavo.simulation.replay import Difference, recorded_requests, replay_recording
from octavo.simulation.trace_workloads import TraceOptions, open_workload
from octavo.simulation.workloads import OpenLoop, SharedPrefix, synthetic
from octavo.telemetry.recording import Recorder, open_for_writing

SETTINGS = [
    (CacheConfig(24, 4), SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=32, max_model_len=90)),
    (
        CacheConfig(40, 4, enable_prefix_caching=False),
        SchedulerConfig(6, None, 90, order="admission_first", preemption="restart"),
    ),
    (CacheConfig(160, 1, allocator="reserved"), SchedulerConfig(6, 64, 90)),
    (CacheConfig(64, 4, allocator="pow2", placement="buddy"), SchedulerConfig(6, 16, 90)),
]


def record(path: Path, cache: CacheConfig, limits: SchedulerConfig) -> int:
    lengths = independent(uniform(3, 40), uniform(1, 30), stream(1, "lengths"))
    arrivals = poisson(0.4, stream(1, "arrivals"))
    requests = synthetic(arrivals, lengths, limit=60, prefix=SharedPrefix(12), max_tokens=25)
    with open_for_writing(path) as file:
        recorder = Recorder(file, cache, limits)
        simulation = Simulation(
            OpenLoop(requests),
            build_scheduler(cache, limits),
            sinks=[recorder],
            on_arrival=lambda simulated: recorder.added(simulated.request, simulation.clock.now()),
        )
        report = simulation.run()
    assert report.counts.requests_finished == 60
    if cache.allocator == "paged":
        assert report.counts.preemptions > 0
    return simulation.steps


@pytest.mark.parametrize(("cache", "limits"), SETTINGS)
def test_a_recording_replays_without_a_difference(
    tmp_path: Path, cache: CacheConfig, limits: SchedulerConfig
) -> None:
    path = tmp_path / "run.jsonl.gz"
    steps = record(path, cache, limits)
    compared, differences = replay_recording(path)
    assert differences == []
    assert compared >= steps


def test_a_different_decision_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, *SETTINGS[0])
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    header["scheduler"]["max_num_batched_tokens"] = 20
    path.write_text("\n".join([json.dumps(header), *lines[1:]]))
    compared, differences = replay_recording(path)
    first = differences[0]
    assert first.step == compared
    assert first.what in ("rows", "scheduled")
    assert str(Difference(3, "rows", "[0]", "[1]")) == "step 3: rows was [0] and is [1]"


def test_other_blocks_are_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, *SETTINGS[0])
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        found = json.loads(line)
        if found.get("blocks"):
            found["blocks"][0][-1] = 23
            lines[number] = json.dumps(found)
            break
    path.write_text("\n".join(lines))
    compared, differences = replay_recording(path)
    assert (compared, [difference.what for difference in differences]) == (0, ["blocks"])


def test_a_recording_opens_like_any_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, *SETTINGS[0])
    workload = open_workload(path, None, TraceOptions(speed=2.0, limit=10, max_tokens=3))
    taken = []
    while (found := workload.take(1e9, 0)) is not None:
        taken.append(found)
    played = list(recorded_requests(path))[:10]
    assert [found.arrival_s for found in taken] == [found.arrival_s / 2 for found in played]
    assert {found.request.sampling.max_tokens for found in taken} == {3}
    plain = open_workload(path, "recording", TraceOptions(arrivals=at_once())).take(0.0, 0)
    assert plain is not None
    assert plain.request.sampling.max_tokens == 25
    other = tmp_path / "trace.csv"
    other.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,7\n")
    asked = open_workload(other, None, TraceOptions()).take(0.0, 0)
    assert asked is not None
    assert asked.output_tokens == 7


def test_a_recording_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, *SETTINGS[0])
    made = list(recorded_requests(path))
    lengths = independent(uniform(3, 40), uniform(1, 30), stream(1, "lengths"))
    expected = [next(lengths) for _ in range(60)]
    assert [len(found.request.prompt_token_ids) - 12 for found in made] == [prompt for prompt, _ in expected]
    assert [found.output_tokens for found in made] == [min(output, 25) for _, output in expected]
    report = Simulation(OpenLoop(iter(made)), build_scheduler(*SETTINGS[2])).run()
    assert report.counts.requests_finished == 60
