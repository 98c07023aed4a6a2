"""A recorded run for tests of the lab: preemptions, evictions and two answers to a prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.simulation.arrivals import poisson
from octavo.simulation.driver import Simulation, build_scheduler
from octavo.simulation.lengths import independent, uniform
from octavo.simulation.random_numbers import stream
from octavo.simulation.workloads import OpenLoop, SharedPrefix, synthetic
from octavo.telemetry.recording import Recorder, open_for_writing

CACHE = CacheConfig(24, 4)
LIMITS = SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=32, max_model_len=90)
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def write_recording(path: Path, requests: int = 40, name: str = "request") -> int:
    """Writes it; returns its steps."""
    lengths = independent(uniform(3, 40), uniform(1, 30), stream(1, "lengths"))
    arrivals = poisson(0.4, stream(1, "arrivals"))
    workload = synthetic(arrivals, lengths, limit=requests, prefix=SharedPrefix(12), max_tokens=25, name=name)
    with open_for_writing(path) as file:
        recorder = Recorder(file, CACHE, LIMITS, {"model": HOSTILE})
        simulation = Simulation(
            OpenLoop(workload),
            build_scheduler(CACHE, LIMITS),
            sinks=[recorder],
            on_arrival=lambda simulated: recorder.added(simulated.request, simulation.clock.now()),
        )
        simulation.run()
    return simulation.steps


def change_decision(path: Path, steps: int) -> None:
    """Let the recorded pool of one step, after so many, be another than it was."""
    lines = path.read_text().splitlines()
    place = [i for i, line in enumerate(lines) if '"step"' in line][steps]
    line = json.loads(lines[place])
    line["pool"][0] += 1
    lines[place] = json.dumps(line)
    path.write_text("\n".join(lines))


def enlarge_pool(path: Path, blocks: int) -> None:
    """Let the header claim a pool of so many blocks."""
    head, rest = path.read_text().split("\n", 1)
    header = json.loads(head)
    header["cache"]["num_blocks"] = replace(CACHE, num_blocks=blocks).num_blocks
    path.write_text(json.dumps(header) + "\n" + rest)
