#!/usr/bin/env python3
"""How well the simulator foretells the engine: the same requests through both, at shares of the engine's capacity.

    python benchmarks/fidelity.py                       about 7 minutes; the machine should have nothing else to do
    python benchmarks/fidelity.py --seconds 120 --json  longer runs, one JSON object

1. Times whole engine steps over a grid (as ``octavo profile`` does), with few requests in flight and in a saturated
   run, which also tells the capacity, and fits a profile to them.
2. For each load: requests arrive at random times (Poisson) in real time, their answers' lengths forced. The simulator
   gets the same requests, arrivals and settings and the profile, and nothing from this run. Right before and after it a
   closed loop with as many requests in flight as the simulator foretells says how fast the machine is in that minute: a
   shared host moves by a tenth, and near saturation each percent of speed is several of latency.
3. Both runs go through one and the same report; what differs is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fidelity_runs import (
    Capacity,
    Relay,
    Settings,
    Steps,
    closed_loop,
    lengths,
    predicted_run,
    real_run,
    requests,
)
from octavo.core.machine import usable_cores
from octavo.llm.build import build_session, machine
from octavo.llm.options import EngineOptions
from octavo.llm.profiling import Measurement, StepTimer, fit_measurements, grouped, measure
from octavo.llm.session import Session
from octavo.simulation.arrivals import poisson
from octavo.simulation.cost_model import Fitted, FittedProfile
from octavo.simulation.random_numbers import stream
from octavo.simulation.report import Report

TARGETS = {50: 5.0, 85: 5.0, 95: 10.0}
"""Load in percent of the capacity -> percent by which throughput and TPOT may be off."""
IN_FLIGHT = (2, 4, 8)
"""Requests that run at once in short closed loops beside the saturated one: a low load's steps have few rows, whose
blocks lie all over the pool, while the grid repeats each step on the same few."""
PEERS = "simulators of others publish errors under 9 % at 85 % load, and worse ones at 95 %"


def scaled(profile: FittedProfile, factor: float) -> FittedProfile:
    coefficients = {name: value * factor for name, value in profile.coefficients.items()}
    return replace(profile, coefficients=coefficients)


def fit_profile(
    session: Session, measured: list[Measurement], light: Steps, capacity: Capacity
) -> tuple[FittedProfile, float, float]:
    """(profile, its mean error on the grid, factor by which it was scaled to take as long as the saturated run did)."""
    source = f"{machine()}, {session.spec.name}"
    measured = [*measured, *grouped([*light, *capacity.steps])]
    profile = fit_measurements("fidelity", source, measured)
    model = Fitted(profile)
    predicted = sum(model.seconds(step) for step, _ in capacity.steps)
    factor = sum(seconds for _, seconds in capacity.steps) / predicted
    return scaled(profile, factor), profile.mean_error, factor


FIGURES: dict[str, Callable[[Report], float]] = {
    "output tokens/s": lambda r: r.delivered_tokens / r.duration,
    "TTFT mean, s": lambda r: r.ttft.mean,
    "TTFT p95, s": lambda r: r.ttft.percentile(95),
    "TPOT mean, ms": lambda r: 1e3 * r.tpot.mean,
    "TPOT p95, ms": lambda r: 1e3 * r.tpot.percentile(95),
    "end to end mean, s": lambda r: r.e2e.mean,
    "preemptions": lambda r: float(r.counts.preemptions),
    "running mean": lambda r: r.mean_over_time("running"),
    "pool held, %": lambda r: 100 * (1 - r.mean_over_time("free") / r.slots_total),
    "steps": lambda r: float(r.counts.steps),
}
JUDGED = ("output tokens/s", "TPOT mean, ms", "TPOT p95, ms")


@dataclass(frozen=True)
class Level:
    load: int
    requests: int
    rate: float
    real: dict[str, float]
    predicted: dict[str, float]
    simulated_in_s: float
    drift: float
    """Percent by which the profile misprices the real run's own steps, all together: whatever this is, the machine or
    the cost model has changed since the profile was made, and no scheduling is to blame."""

    def error(self, name: str) -> float:
        """Percent of the real figure by which the prediction is off (of 1 where a count is 0)."""
        return 100 * (self.predicted[name] - self.real[name]) / (abs(self.real[name]) or 1.0)

    @property
    def passed(self) -> bool:
        return all(abs(self.error(name)) <= TARGETS.get(self.load, 10.0) for name in JUDGED)


def run_level(
    session: Session,
    timer: StepTimer,
    relay: Relay,
    settings: Settings,
    profile: FittedProfile,
    load: int,
    capacity: Capacity,
) -> Level:
    def slowness() -> float:
        """Seconds that the machine takes now for one of the profile's, at about this load."""
        loop = closed_loop(session, timer, relay, settings, settings.seconds / 8, in_flight)
        told = sum(Fitted(profile).seconds(step) for step, _ in loop.steps)
        return sum(seconds for _, seconds in loop.steps) / told

    rate = load / 100 * capacity.requests_per_s
    _, drawn = lengths(settings, 1_000 + load)
    arrivals = poisson(rate, stream(load, "arrivals"))
    coming = list(requests(session.spec, arrivals, drawn, f"load{load}", settings.seconds))
    assert coming, f"no request in {settings.seconds} s at {rate:.2f} a second; use more --seconds"
    foretold = predicted_run(session, settings, Fitted(profile), coming)
    in_flight = max(round(foretold.mean_over_time("running")), 1)
    before = slowness()
    real, steps = real_run(session, timer, relay, coming)
    model = Fitted(scaled(profile, (before + slowness()) / 2))
    begin = time.perf_counter()
    predicted = predicted_run(session, settings, model, coming)
    simulated_in_s = time.perf_counter() - begin
    return Level(
        load,
        len(coming),
        rate,
        {name: figure(real) for name, figure in FIGURES.items()},
        {name: figure(predicted) for name, figure in FIGURES.items()},
        simulated_in_s,
        100 * (sum(model.seconds(step) for step, _ in steps) / sum(seconds for _, seconds in steps) - 1),
    )


def table(level: Level) -> list[str]:
    target = TARGETS.get(level.load, 10.0)
    lines = [
        f"\n{level.load} % load: {level.requests} requests, {level.rate:.2f} a second; simulated in "
        f"{level.simulated_in_s:.2f} s",
        f"the profile's price of the engine's own steps: {level.drift:+.1f} % of the time that they took",
        f"{'':22}{'engine':>12}{'simulator':>12}{'error':>10}",
    ]
    for name in FIGURES:
        error = f"{level.error(name):+9.1f} %"
        mark = (
            ""
            if name not in JUDGED
            else "  ok"
            if abs(level.error(name)) <= target
            else f"  over {target:g} %"
        )
        lines.append(f"{name:22}{level.real[name]:>12.3f}{level.predicted[name]:>12.3f}{error}{mark}")
    return lines


def parse() -> tuple[Settings, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of arrivals at each load, and of the saturated run"
    )
    parser.add_argument("--profile-seconds", type=float, default=60.0, help="of measuring the grid")
    parser.add_argument(
        "--loads", type=int, nargs="+", default=sorted(TARGETS), help="percent of the capacity"
    )
    parser.add_argument("--scale", type=float, default=0.5, help="multiplies all lengths")
    parser.add_argument(
        "--traces", type=Path, help="folder with sharegpt_single_turn.csv (default: ../shared/traces)"
    )
    parser.add_argument("--model", help="default: the embedded SmolLM2")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument(
        "--blocks", type=int, default=160, help="of the pool, 16 tokens each: few, so that it runs out"
    )
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    default = Path(__file__).resolve().parents[2] / "shared" / "traces"
    options = EngineOptions(
        model=given.model,
        num_blocks=given.blocks,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_model_len=1024,
        threads=given.threads,
        seed=0,
    )
    traces = given.traces or (default if default.is_dir() else None)
    settings = Settings(
        given.seconds, given.profile_seconds, tuple(given.loads), given.scale, traces, options
    )
    return settings, given.json


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    settings, as_json = parse()
    timer, relay = StepTimer(), Relay()
    session = build_session(settings.options, sinks=[timer, relay])
    where = f"{machine()}, {settings.options.threads} threads, {session.spec.name}"
    name, _ = lengths(settings, 0)
    say(f"{where}; pool of {settings.options.num_blocks} blocks, lengths: {name}")
    say(f"timing a grid of steps for about {settings.profile_seconds:g} s")
    measured = measure(session, timer, settings.profile_seconds)
    say(
        f"{IN_FLIGHT} in flight for {settings.seconds / 3:g} s each, then saturated for {settings.seconds:g} s"
    )
    light: Steps = []
    for in_flight in IN_FLIGHT:
        light += closed_loop(session, timer, relay, settings, settings.seconds / 3, in_flight).steps
    capacity = closed_loop(session, timer, relay, settings, settings.seconds, None)
    profile, error, factor = fit_profile(session, measured, light, capacity)
    calibration = (
        f"capacity {capacity.output_tokens_per_s:.1f} output tokens/s = {capacity.requests_per_s:.2f} requests/s at "
        f"{capacity.running:.1f} running, {capacity.preemptions} preemptions; profile off by "
        f"{100 * error:.1f} % a shape, scaled by {factor:.3f}"
    )
    say(calibration)
    levels = []
    for load in settings.loads:
        say(f"load {load} %: {settings.seconds:g} s of arrivals")
        levels.append(run_level(session, timer, relay, settings, profile, load, capacity))
    if as_json:
        found = {"machine": where, "lengths": name, "profile": asdict(profile), "scaled_by": factor}
        found["capacity_tokens_per_s"] = capacity.output_tokens_per_s
        found["levels"] = [
            {**asdict(one), "errors_percent": {n: one.error(n) for n in FIGURES}, "passed": one.passed}
            for one in levels
        ]
        print(json.dumps(found))
        return
    print(f"{where}; pool of {settings.options.num_blocks} blocks; lengths: {name}\n{calibration}")
    for level in levels:
        print("\n".join(table(level)))
    print(f"\n{PEERS}")


if __name__ == "__main__":
    main()
