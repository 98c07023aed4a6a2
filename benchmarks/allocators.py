#!/usr/bin/env python3
"""The article's headline, measured: the real engine on contiguous reservations and on blocks, same pool, same requests.

    python benchmarks/allocators.py                     8 minutes with AVX-512, half an hour with AVX2; run nothing else
    python benchmarks/allocators.py --plot FILE.svg     and the plot in the README (needs matplotlib)
    python benchmarks/allocators.py --without-headroom     and blocks once more, given out to the last one at admission

Requests of ShareGPT's lengths wait in a queue that is never empty. Clients declare 256, 2,048 or 16,384 tokens and end
their answers at their true lengths, as a stop string would. Every prompt begins with the same system prompt; ``shared``
turns the prefix cache on. The simulator runs the same requests under the same settings: steps and memory come from the
decisions alone, tokens/s from a profile of this machine that was measured right before. The model's limit is written up
to 20,480 tokens in a copy of its file, or nobody could declare 16,384.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fidelity_runs import Relay
from fidelity_runs import lengths as drawn_lengths
from octavo.core.config import HEADROOM_TOKENS, CacheConfig
from octavo.core.machine import usable_cores
from octavo.core.plan import FinishReason
from octavo.execution.embedded import embedded_model_path
from octavo.llm.build import build_session, machine
from octavo.llm.options import EngineOptions
from octavo.llm.profiling import StepTimer, fit_measurements, grouped, measure
from octavo.llm.session import Session
from octavo.simulation.content import Segment, content_key, content_tokens
from octavo.simulation.cost_model import Fitted
from octavo.simulation.driver import Simulation, Stop, build_scheduler, default_report
from octavo.simulation.features import PlanFeatures
from octavo.simulation.report import Report
from octavo.simulation.requests import SimulatedRequest, make_request
from octavo.simulation.workloads import ANSWER, PROMPT, SHARED, Saturated

MODEL_LEN = 20_480
BACKLOG = 160
"""Requests that wait: more than there are rows, so that the queue looks endless."""


@dataclass(frozen=True)
class Case:
    allocator: str
    shared: bool
    declared: int
    headroom: bool = True
    """Whether an admission leaves room for who runs already."""

    @property
    def name(self) -> str:
        return (
            self.allocator + (", shared" if self.shared else "") + ("" if self.headroom else ", no headroom")
        )


@dataclass(frozen=True)
class Figures:
    tokens_per_s: float
    tokens_per_step: float
    running: float
    effective: float
    """Share of the held slots that hold a token."""
    reserved: float
    internal: float
    external: float
    """Wastes, as shares of the pool."""
    preemptions: int

    @staticmethod
    def of(report: Report) -> Figures:
        shares = report.shares()
        return Figures(
            report.delivered_tokens / report.duration,
            report.delivered_tokens / report.counts.steps,
            report.mean_over_steps("running"),
            report.effective,
            shares["reserved"],
            shares["internal"],
            shares["external"],
            report.counts.preemptions,
        )


@dataclass(frozen=True)
class Row:
    case: Case
    real: Figures
    predicted: Figures


def long_model(folder: Path) -> Path:
    """A copy of the embedded file whose limit is MODEL_LEN. Weights are the same; no request gets that long."""
    import gguf

    path = folder / "embedded-long.gguf"
    shutil.copyfile(embedded_model_path(), path)
    field = gguf.GGUFReader(path, "r+").fields["llama.context_length"]
    field.parts[field.data[0]][0] = MODEL_LEN
    return path


def requests(given: argparse.Namespace, case: Case, vocabulary: int) -> Iterator[SimulatedRequest]:
    """The same prompts and true lengths whatever the case; an answer ends within what was declared."""
    _, drawn = drawn_lengths(given, 3)
    for number, (prompt, output) in enumerate(drawn):
        own = Segment(content_key(PROMPT, number), prompt)
        tokens = content_tokens([Segment(content_key(SHARED), given.system_prompt), own], vocabulary)
        key = content_key(ANSWER, number)
        yield make_request(0.0, f"r{number}", tokens, min(output, 256), key, max_tokens=case.declared)


def options_of(given: argparse.Namespace, case: Case, model: Path) -> EngineOptions:
    return EngineOptions(
        model=str(model),
        num_blocks=given.pool_tokens // 16,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=2048,
        allocator=case.allocator,  # type: ignore[arg-type]
        enable_prefix_caching=case.shared,
        headroom_tokens=HEADROOM_TOKENS if case.headroom else 0,
        threads=given.threads,
        seed=0,
    )


def real_run(
    given: argparse.Namespace, case: Case, model: Path
) -> tuple[Report, list[tuple[PlanFeatures, float]]]:
    timer, relay = StepTimer(), Relay()
    session = build_session(options_of(given, case, model), sinks=[timer, relay])
    scheduler = session.engine.scheduler
    report = replace_report(relay, session, given)
    coming = requests(given, case, session.spec.vocab_size)
    true_lengths: dict[str, int] = {}
    steps: list[tuple[PlanFeatures, float]] = []
    for _ in range(given.steps):
        while scheduler.num_waiting < BACKLOG:
            one = next(coming)
            report.arrived(one)
            true_lengths[one.request_id] = one.output_tokens
            session.add(one.request)
        begin = time.perf_counter()
        changed = session.step()
        assert changed is not None and timer.last is not None
        for completion in changed:
            name = completion.request.request_id
            if not completion.finished and len(completion.token_ids) >= true_lengths[name]:
                session.engine.finish(name, FinishReason.STOP)
        steps.append((timer.last, time.perf_counter() - begin))
    relay.report = None
    return report, steps


def replace_report(relay: Relay, session: Session, given: argparse.Namespace) -> Report:
    found = default_report(session.engine.scheduler)
    report = relay.report = Report(
        max_num_seqs=given.max_num_seqs, slots_total=found.slots_total, warmup_steps=given.steps // 3
    )
    return report


def predicted_run(given: argparse.Namespace, case: Case, model: Fitted, vocabulary: int) -> Report:
    options = options_of(given, case, Path())
    assert options.num_blocks is not None
    cache = CacheConfig(
        options.num_blocks,
        options.block_size,
        allocator=options.allocator,
        enable_prefix_caching=options.enable_prefix_caching,
    )
    config = replace(given.scheduler_config, headroom_tokens=options.headroom_tokens)
    scheduler = build_scheduler(cache, config)
    report = Report(
        max_num_seqs=given.max_num_seqs,
        slots_total=options.num_blocks * options.block_size,
        warmup_steps=given.steps // 3,
    )
    workload = Saturated(requests(given, case, vocabulary), BACKLOG)
    simulation = Simulation(workload, scheduler, model, report=report, vocabulary=vocabulary)
    return simulation.run(Stop(steps=given.steps))


def calibrate(given: argparse.Namespace, model: Path) -> tuple[Fitted, int]:
    """(cost model, vocabulary) from a grid of steps and from a run of the paged engine on other requests."""
    say(f"timing a grid of steps for about {given.profile_seconds:g} s")
    timer = StepTimer()
    session = build_session(options_of(given, Case("paged", False, 256), model), sinks=[timer])
    given.scheduler_config = session.engine.scheduler.config
    measured = measure(session, timer, given.profile_seconds)
    _, steps = real_run(given, Case("paged", False, 256), model)
    profile = fit_measurements("here", machine(), [*measured, *grouped(steps)])
    return Fitted(profile), session.spec.vocab_size


def cases(given: argparse.Namespace) -> list[Case]:
    found = []
    for declared in given.declared:
        found += [Case("reserved", False, declared), Case("pow2", False, declared)]
        found += [Case("paged", False, declared), Case("paged", True, declared)]
        if given.without_headroom:
            found.append(Case("paged", False, declared, headroom=False))
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    lines = [
        f"{'declared':>8}  {'allocator':15}{'tokens/s':>17}{'tokens/step':>15}{'running':>15}{'effective %':>15}"
        f"{'wasted %: reserved':>20}{'internal':>10}{'external':>10}{'preemptions':>14}",
        f"{'':25}" + f"{'engine (simulator)':>17}",
    ]
    for row in rows:
        real, told = row.real, row.predicted
        pairs = "".join(
            f"{f'{a:.{digits}f} ({b:.{digits}f})':>{width}}"
            for a, b, digits, width in (
                (real.tokens_per_s, told.tokens_per_s, 0, 17),
                (real.tokens_per_step, told.tokens_per_step, 1, 15),
                (real.running, told.running, 1, 15),
                (100 * real.effective, 100 * told.effective, 1, 15),
                (100 * real.reserved, 100 * told.reserved, 1, 20),
            )
        )
        lines.append(
            f"{row.case.declared:>8,}  {row.case.name:15}{pairs}{100 * real.internal:>10.1f}"
            f"{100 * real.external:>10.1f}{f'{real.preemptions} ({told.preemptions})':>14}"
        )
    return "\n".join(lines)


def plot(rows: list[Row], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "octavo"
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.case.name for row in rows))
    colours = dict(zip(names, ("#b35806", "#f1a340", "#2166ac", "#67a9cf", "#b2abd2"), strict=False))
    declared = list(dict.fromkeys(row.case.declared for row in rows))
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        mine = [row for row in rows if row.case.name == name]
        places = [declared.index(row.case.declared) + (i - (len(names) - 1) / 2) * width for row in mine]
        bars = axes.bar(
            places, [row.real.tokens_per_s for row in mine], width, label=name, color=colours[name]
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
        axes.plot(places, [row.predicted.tokens_per_s for row in mine], "k_", markersize=14)
    axes.plot([], [], "k_", markersize=14, label="the simulator's prediction")
    axes.set_xticks(range(len(declared)), [f"{tokens:,}" for tokens in declared])
    axes.set(xlabel="max_tokens that clients declare", ylabel="output tokens/s", title=title)
    axes.set_ylim(0, 1.2 * max(max(row.real.tokens_per_s, row.predicted.tokens_per_s) for row in rows))
    axes.legend(fontsize=8, ncols=5, loc="upper center")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pool-tokens", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=900, help="of each run; the first third is not counted")
    parser.add_argument("--system-prompt", type=int, default=192, help="tokens that every prompt begins with")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--declared", type=int, nargs="+", default=[256, 2_048, 16_384], help="max_tokens")
    parser.add_argument(
        "--without-headroom", action="store_true", help="paged once more, with --headroom-tokens 0"
    )
    parser.add_argument("--profile-seconds", type=float, default=30.0)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all lengths")
    default = Path(__file__).resolve().parents[2] / "shared" / "traces"
    parser.add_argument("--traces", type=Path, default=default if default.is_dir() else None)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = parse()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = long_model(Path(folder))
        cost, vocabulary = calibrate(given, model)
        for case in cases(given):
            say(f"declared {case.declared:,}: {case.name}")
            report, _ = real_run(given, case, model)
            predicted = predicted_run(given, case, cost, vocabulary)
            rows.append(Row(case, Figures.of(report), Figures.of(predicted)))
    where = f"{machine()}, {given.threads} threads; pool of {given.pool_tokens:,} tokens, SmolLM2-135M"
    if given.json:
        print(json.dumps({"machine": where, "rows": [asdict(row) for row in rows]}))
    else:
        print(f"{where}\n{table(rows)}")
    if given.plot:
        plot(rows, given.plot, where)


if __name__ == "__main__":
    main()
