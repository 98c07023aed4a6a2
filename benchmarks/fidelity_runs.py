"""The same requests through the real engine and the simulator: what benchmarks/fidelity.py compares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.core.config import CacheConfig
from octavo.core.events import StepRecord
from octavo.core.model_spec import ModelSpec
from octavo.llm.options import EngineOptions
from octavo.llm.profiling import StepTimer
from octavo.llm.session import Session
from octavo.simulation.content import Segment, content_key, content_tokens
from octavo.simulation.cost_model import Fitted
from octavo.simulation.driver import Simulation, build_scheduler, default_report
from octavo.simulation.features import PlanFeatures
from octavo.simulation.lengths import Empirical, independent, log_normal
from octavo.simulation.random_numbers import stream
from octavo.simulation.report import Report
from octavo.simulation.requests import SimulatedRequest, make_request
from octavo.simulation.traces import open_trace
from octavo.simulation.workloads import ANSWER, PROMPT, OpenLoop

Steps = list[tuple[PlanFeatures, float]]
"""What each step consisted of, and seconds."""


@dataclass(frozen=True)
class Settings:
    seconds: float
    profile_seconds: float
    loads: tuple[int, ...]
    scale: float
    traces: Path | None
    options: EngineOptions


class Relay:
    """A sink whose listener changes from run to run."""

    def __init__(self) -> None:
        self.report: Report | None = None

    def emit(self, record: StepRecord, now: float) -> None:
        if self.report is not None:
            self.report.emit(record, now)


class RunClock:
    """Seconds since the run began."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._begin


def lengths(settings: Settings, seed: int) -> tuple[str, Iterator[tuple[int, int]]]:
    """(where they come from, endless prompt and output lengths), scaled and cut so that a request fits 1,024 tokens."""
    rng, path = stream(seed, "lengths"), None
    if settings.traces is not None:
        path = settings.traces / "sharegpt_single_turn.csv"
    if path is not None and path.is_file():
        name, drawn = path.name, Empirical(open_trace(path).lengths()).endless(rng)
    else:
        name, drawn = "lognormal", independent(log_normal(80, 1.0), log_normal(250, 0.8), rng)
    sizes = (
        (min(max(round(p * settings.scale), 4), 500), min(max(round(o * settings.scale), 2), 500))
        for p, o in drawn
    )
    return f"{name} x {settings.scale:g}", sizes


def requests(
    spec: ModelSpec, arrivals: Iterator[float], drawn: Iterator[tuple[int, int]], name: str, until: float
) -> Iterator[SimulatedRequest]:
    """Requests that arrive before ``until``; no two share content, and each declares its true length."""
    for number, (arrival, (prompt, output)) in enumerate(zip(arrivals, drawn, strict=False)):
        if arrival > until:
            return
        key = content_key(PROMPT, number, *name.encode())
        tokens = content_tokens([Segment(key, prompt)], spec.vocab_size)
        answer = content_key(ANSWER, number)
        yield make_request(arrival, f"{name}-{number}", tokens, output, answer, max_tokens=output)


def real_run(
    session: Session, timer: StepTimer, relay: Relay, coming: list[SimulatedRequest]
) -> tuple[Report, Steps]:
    """Play the requests in real time until the last answer is complete."""
    scheduler = session.engine.scheduler
    assert not scheduler.has_unfinished
    report = relay.report = default_report(scheduler)
    clock = session.engine.clock = RunClock()
    coming = coming[::-1]
    steps: Steps = []
    while True:
        now = clock.now()
        while coming and coming[-1].arrival_s <= now:
            arrived = coming.pop()
            report.arrived(arrived)
            session.add(arrived.request)
        if session.step() is not None:
            if timer.last is not None:
                steps.append((timer.last, clock.now() - now))
        elif coming:
            time.sleep(max(coming[-1].arrival_s - clock.now(), 0.0))
        else:
            relay.report = None
            return report, steps


def predicted_run(
    session: Session, settings: Settings, model: Fitted, coming: list[SimulatedRequest]
) -> Report:
    """The same in the simulator. It sees of the session the settings alone."""
    options, vocabulary = settings.options, session.spec.vocab_size
    assert options.num_blocks is not None
    cache = CacheConfig(options.num_blocks, options.block_size)
    scheduler = build_scheduler(cache, session.engine.scheduler.config)
    return Simulation(OpenLoop(iter(coming)), scheduler, model, vocabulary=vocabulary).run()


@dataclass(frozen=True)
class Capacity:
    output_tokens_per_s: float
    requests_per_s: float
    running: float
    preemptions: int
    steps: Steps
    """Each step of the saturated run, with the time from its predecessor's end to its own."""


def closed_loop(
    session: Session,
    timer: StepTimer,
    relay: Relay,
    settings: Settings,
    seconds: float,
    in_flight: int | None,
) -> Capacity:
    """This many requests at any time, or a queue that is never empty; the first third, in which the pool fills, is not
    counted."""
    _, drawn = lengths(settings, 1)
    endless = requests(session.spec, iter(lambda: 0.0, 1.0), drawn, f"{in_flight} in flight", 1.0)
    scheduler = session.engine.scheduler
    warm_up = seconds / 3
    steps: Steps = []
    tokens = finished = running = 0
    begin = last = time.perf_counter()
    counted_from = None
    report = relay.report = default_report(scheduler)
    while last - begin < seconds:
        while (
            scheduler.num_waiting < 8
            if in_flight is None
            else scheduler.num_waiting + scheduler.num_running < in_flight
        ):
            one = next(endless)
            report.arrived(one)
            session.add(one.request)
        changed = session.step()
        now = time.perf_counter()
        assert changed is not None and timer.last is not None
        if now - begin > warm_up:
            counted_from = counted_from or last
            steps.append((timer.last, now - last))
            tokens += timer.last.sampled
            running += timer.last.sequences
            finished += sum(one.finished for one in changed)
        last = now
    relay.report = None
    session.abort(list(session.board.completions.values()))
    assert counted_from is not None and finished, "no request ended in a closed loop; use more --seconds"
    mean_output = mean_output_tokens(settings)
    rate = tokens / (last - counted_from)
    return Capacity(rate, rate / mean_output, running / len(steps), report.counts.preemptions, steps)


def mean_output_tokens(settings: Settings) -> float:
    """Of the workload itself: what happens to end in a short run is biased towards short answers."""
    _, drawn = lengths(settings, 2)
    return sum(next(drawn)[1] for _ in range(20_000)) / 20_000
