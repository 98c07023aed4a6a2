#!/usr/bin/env python3
"""How fast the simulator is: the article's run, all of the article's runs, and an hour of a public trace.

    python benchmarks/simulator.py                      a table, medians of several runs
    python benchmarks/simulator.py --json               one JSON object
    python benchmarks/simulator.py --skip-traces        the article's runs alone: a few seconds

The scheduler that it times is the engine's own. CPU seconds of one thread are what the code costs; wall seconds are
what a user waits, other programs on the machine included.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from octavo.core.events import StepRecord
from octavo.core.plan import StepPlan, StepResult
from octavo.llm.build import machine
from octavo.simulation import article
from octavo.simulation.driver import Stop

VLLM_STEPS_PER_S = {"caching off": 791, "caching on": 623}
"""vLLM 0.32's scheduler with the article's pool, prompts of about 4,100 tokens and about 94 running: measured by
``benchmarks/scheduler.py --peer-python`` on a machine like this one (2 cores of a Xeon with AVX-512)."""
LITERATURE = (
    "Vidur: 128 requests on 4 replicas (41.9 s of virtual time) in about 2 s, after fitting its predictors; a log in "
    "github.com/microsoft/vidur/issues/41, read, not measured here",
    "Vidur: searches the deployments of LLaMA2-70B in about an hour on one CPU machine (Agrawal et al., MLSys 2024, "
    "abstract), read, not measured here",
)
TRACE = "azure2023_conv.csv.gz"
TRACE_RUNS = {
    "llama-3.1-8b on l4": ("--profile", "l4", "--no-enable-prefix-caching"),
    "llama-3.1-8b on h100": ("--profile", "h100", "--no-enable-prefix-caching"),
}
"""The same hour on a card that it overloads (many run, steps are long) and on one that it hardly keeps busy (few run,
steps are short and very many). The trace says nothing about content, so a prefix cache could find nothing.
"""


@dataclass(frozen=True)
class Timed:
    wall_s: float
    cpu_s: float


def timed(run: Any) -> Timed:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Timed(time.perf_counter() - wall, time.process_time() - cpu)


def medians(run: Any, repeats: int) -> dict[str, float]:
    found = [timed(run) for _ in range(repeats)]
    return {
        "wall_s": round(median(one.wall_s for one in found), 4),
        "cpu_s": round(median(one.cpu_s for one in found), 4),
        "wall_s_best": round(min(one.wall_s for one in found), 4),
    }


class TimedScheduler:
    """The scheduler, with the CPU time of its planning and applying added up."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent_ns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self) -> StepPlan | None:
        begin = time.thread_time_ns()
        plan: StepPlan | None = self._inner.plan()
        self.spent_ns += time.thread_time_ns() - begin
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> StepRecord:
        begin = time.thread_time_ns()
        record: StepRecord = self._inner.apply(plan, result)
        self.spent_ns += time.thread_time_ns() - begin
        return record


def scheduler_steps_per_s(repeats: int) -> tuple[float, float]:
    """(steps a second of the scheduler's CPU time, mean number running) in the article's paged run."""
    rates = []
    for _ in range(repeats):
        simulation = article.build(article.RUNS["paged"])
        timing = TimedScheduler(simulation.engine.scheduler)
        simulation.engine.scheduler = timing  # type: ignore[assignment]
        gc.collect()
        report = simulation.run(Stop(steps=article.STEPS))
        rates.append(article.STEPS / (timing.spent_ns / 1e9))
    return median(rates), report.mean_over_steps("running")


def article_runs(repeats: int) -> dict[str, Any]:
    paged = article.RUNS["paged"]
    article.run(paged)  # warms up
    rate, running = scheduler_steps_per_s(repeats)
    return {
        "scheduler_steps_per_s": round(rate, 1),
        "running": round(running, 1),
        "paged": medians(lambda: article.run(paged), repeats),
        "all": medians(
            lambda: [article.run(settings) for settings in article.RUNS.values()], max(repeats // 2, 1)
        ),
        "runs": len(article.RUNS),
    }


def trace_run(path: Path, flags: tuple[str, ...], repeats: int) -> dict[str, Any]:
    """The command as a user types it, its start included. Raises RuntimeError with what it said if it fails."""
    command = [
        sys.executable,
        "-c",
        "from octavo.cli.main import main; main()",
        "simulate",
        "--trace",
        str(path),
    ]
    walls = []
    for _ in range(repeats):
        begin = time.perf_counter()
        done = subprocess.run([*command, *flags, "--json"], capture_output=True, text=True, check=False)
        walls.append(time.perf_counter() - begin)
        if done.returncode:
            raise RuntimeError(f"octavo simulate --trace {path} failed: {done.stderr.strip()[-300:]}")
    facts = json.loads(done.stdout)
    return {
        "wall_s": round(median(walls), 2),
        "requests": facts["requests_finished"],
        "steps": facts["steps"],
        "steps_per_s": round(facts["steps"] / median(walls)),
        "virtual_s": round(facts["duration"], 1),
    }


def lines(found: dict[str, Any]) -> list[str]:
    ours = found["article"]
    rate, paged, all_runs = ours["scheduler_steps_per_s"], ours["paged"], ours["all"]
    off = VLLM_STEPS_PER_S["caching off"]
    made = [
        f"{found['machine']}; medians",
        f"scheduler + memory manager, article's paged run, {ours['running']} running: {rate:,.0f} steps/s of CPU time "
        f"(target 8,000)",
        f"  vLLM 0.32's scheduler there, measured: {off} steps/s (prefix caching off): {rate / off:.1f} x",
        f"that run of {article.STEPS:,} steps: {paged['wall_s']:.2f} s, {paged['cpu_s']:.2f} s of CPU (target 0.5 s)",
        f"all {ours['runs']} of the article's runs, one core: {all_runs['wall_s']:.2f} s, "
        f"{all_runs['cpu_s']:.2f} s of CPU",
    ]
    for name, run in found["traces"].items():
        made.append(
            f"Azure conversation trace, {run['requests']:,} requests, {name}: {run['wall_s']:.1f} s for "
            f"{run['steps']:,} steps and {run['virtual_s']:,.0f} s of virtual time; {run['steps_per_s']:,} steps/s, "
            f"{run['requests'] / run['wall_s']:,.0f} requests/s (target 20 s)"
        )
    return [*made, *LITERATURE]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the median is printed")
    parser.add_argument("--trace-repeats", type=int, default=1)
    parser.add_argument("--traces", type=Path, help="folder with the trace (default: ../shared/traces)")
    parser.add_argument("--skip-traces", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "article": article_runs(options.repeats), "traces": {}}
    path = (options.traces or Path(__file__).resolve().parents[2] / "shared" / "traces") / TRACE
    if not options.skip_traces and not path.is_file():
        print(f"{path} is not there: the trace was not run (--traces names its folder)", file=sys.stderr)
    elif not options.skip_traces:
        for name, flags in TRACE_RUNS.items():
            print(f"{TRACE}, {name}", file=sys.stderr)
            found["traces"][name] = trace_run(path, flags, options.trace_repeats)
    if options.json:
        print(json.dumps({**found, "vllm_steps_per_s": VLLM_STEPS_PER_S, "literature": LITERATURE}))
        return
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
