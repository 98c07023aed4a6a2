#!/usr/bin/env python3
"""How long physical runs stay in an hour of mixed traffic, and what attention through such tables costs.

    python benchmarks/churn.py [--minutes 60] [--num-blocks 4096] [--loads moderate saturated] [--no-kernel] [--json]

The product's simulator plays chat, short and long requests on a virtual clock (about SmolLM2-135M on two cores)
through the real scheduler and memory manager: at a moderate load, and with a queue that is never empty, so that the
pool is always full and requests are preempted; each without and with prefix caching (the pool is then full of cached
blocks); each with any free block for anyone (``--superblock-tokens 0``) and with superblocks. Every ten virtual minutes
the running sequences' tables are looked at.

Then the attention kernel reads through the last of these tables, in turn with a table in which every sequence has one
run (the contiguous cache), and ``of contiguous`` is the ratio of the times. Only ratios of one run are comparable.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kernels import machine
from octavo import _native
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.memory.runs import run_lengths
from octavo.simulation.arrivals import poisson
from octavo.simulation.content import content_key, content_tokens
from octavo.simulation.cost_model import FittedProfile
from octavo.simulation.driver import Simulation, Stop, build_scheduler
from octavo.simulation.lengths import log_normal, uniform
from octavo.simulation.model_specs import KNOWN
from octavo.simulation.random_numbers import stream
from octavo.simulation.requests import SimulatedRequest, make_request
from octavo.simulation.workloads import ANSWER, PROMPT, OpenLoop, Saturated, SharedPrefix

BLOCK_SIZE = 16
SPEC = KNOWN["smollm2-135m"]
PROFILE = FittedProfile(
    "a small model on two cores",
    "order of magnitude: 270 MB of weights at 27 GB/s, 0.4 ms a token, 23 kB of keys and values a token",
    {"constant": 0.01, "tokens": 4e-4, "kv_tokens": 1e-6},
)
KINDS = (
    (0.6, log_normal(300, 0.8, 8, 4000), log_normal(200, 0.7, 8, 2000)),
    (0.9, uniform(20, 120), uniform(10, 60)),
    (1.0, uniform(2000, 6000), uniform(100, 400)),
)
"""Chat, short requests, long prompts: share of all requests up to here, lengths of prompt and answer."""
SYSTEM = SharedPrefix(200, groups=8)
MODERATE_RATE = 1.2
"""Requests a second: about three quarters of what the machine of the profile can serve."""
PLACEMENTS = {"any block": 0, "superblocks": 128}
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 8, 9, 3, 64
"""SmolLM2-135M's attention, in as many layers as exceed the caches."""


def requests(seed: int) -> Iterator[SimulatedRequest]:
    kinds, groups = stream(seed, "kinds"), stream(seed, "groups")
    arrivals = poisson(MODERATE_RATE, stream(seed, "arrivals"))
    for number in count():
        place = kinds.random()
        _, prompt, answer = next(kind for kind in KINDS if place < kind[0])
        segments = SYSTEM.segments(prompt(kinds), content_key(PROMPT, number), groups)
        tokens, output = content_tokens(segments), answer(kinds)
        yield make_request(next(arrivals), f"r{number}", tokens, output, content_key(ANSWER, number))


@dataclass
class Tables:
    """What was seen of one run."""

    minutes: list[int]
    run_tokens: list[float]
    """Mean slots of a run, every ten minutes."""
    long_share: list[float]
    """Share of the held blocks that lie in runs of at least 128 tokens."""
    running: list[int]
    steps: int = 0
    preemptions: int = 0
    hit_rate: float = 0.0
    tables: list[tuple[NDArray[np.int32], NDArray[np.int32]]] | None = None
    """(int32 [rows, blocks], int32 [rows]: tokens) of the last look."""

    def look(self, simulation: Simulation, minute: int) -> None:
        scheduler = simulation.scheduler
        table, running = scheduler.allocator.table, scheduler.running
        runs = run_lengths(table)
        self.minutes.append(minute)
        self.running.append(running.count)
        self.run_tokens.append(round(float(runs.mean()) * BLOCK_SIZE, 1) if len(runs) else 0.0)
        long = runs[runs * BLOCK_SIZE >= 128].sum() / max(1, runs.sum())
        self.long_share.append(round(float(long), 3))
        rows = running.row[: running.count]
        tokens = running.computed[: running.count].astype(np.int32)
        written = tokens > 0
        width = int(table.num_blocks.max())
        self.tables = [(table.matrix[rows[written], :width].copy(), tokens[written])]


def churn(load: str, caching: bool, superblock: int, options: argparse.Namespace) -> Tables:
    cache = CacheConfig(
        options.num_blocks, BLOCK_SIZE, enable_prefix_caching=caching, superblock_tokens=superblock
    )
    config = SchedulerConfig(max_num_seqs=128, max_model_len=8192)
    asked = requests(options.seed)
    workload = OpenLoop(asked) if load == "moderate" else Saturated(asked, backlog=8)
    simulation = Simulation(workload, build_scheduler(cache, config), PROFILE.cost_model(SPEC))
    seen = Tables([], [], [], [])
    for minute in range(options.every, options.minutes + 1, options.every):
        simulation.run(Stop(time=60.0 * minute))
        seen.look(simulation, minute)
    seen.steps = simulation.steps
    seen.preemptions = simulation.report.as_dict()["preemptions"]
    seen.hit_rate = round(simulation.scheduler.allocator.lookups.totals.rates()[0], 4)
    return seen


class Kernel:
    """Decode attention over one set of keys and values, through any table."""

    def __init__(self, runtime: _native.Runtime, num_blocks: int, block_size: int, rows: int) -> None:
        kv = _native.KVStorage(runtime, num_blocks, block_size, LAYERS, KV_HEADS, HEAD_DIM, "bf16")
        kv.fill(0.125)
        width = HEADS * HEAD_DIM
        self._program = program = _native.Program(runtime, kv)
        query, out = program.register(width), program.register(width)
        program.embed(query, np.random.default_rng(1).standard_normal((rows, width), dtype=np.float32))
        for layer in range(LAYERS):
            program.paged_attention(out, query, 0, HEADS, layer, HEAD_DIM**-0.5)
        self._ids, self._ones = np.arange(rows, dtype=np.int32), np.ones(rows, np.int32)
        self._logits = np.empty((rows, width), np.float32)

    def seconds(self, table: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """float64 [layers]: of one pass over every row's ``tokens``."""
        program, ids = self._program, self._ids
        program.enable_profile(True)
        program.run(ids, tokens - 1, self._ones, np.ascontiguousarray(table), ids, ids, self._logits)
        return np.array([spent for name, spent in program.profile() if name == "paged_attention"])


def consecutive(tokens: NDArray[np.int32], block_size: int) -> NDArray[np.int32]:
    """int32 [rows, blocks]: the table of a contiguous cache."""
    blocks = -(-tokens // block_size)
    starts = np.cumsum(blocks) - blocks
    table = np.zeros((len(tokens), int(blocks.max())), np.int32)
    for row, (start, held) in enumerate(zip(starts.tolist(), blocks.tolist(), strict=True)):
        table[row, :held] = np.arange(start, start + held)
    return table


def kernel_times(
    found: dict[str, Tables], options: argparse.Namespace, runtime: _native.Runtime
) -> dict[str, dict[str, float]]:
    """GB/s of every placement's last table, and its share of what the same rows give from contiguous memory."""
    times: dict[str, dict[str, float]] = {}
    for name, seen in found.items():
        assert seen.tables is not None
        table, tokens = seen.tables[0]
        # Shared blocks are read by each of their rows, but contiguous memory shares none.
        blocks = max(options.num_blocks, int((-(-tokens // BLOCK_SIZE)).sum()))
        paged = Kernel(runtime, blocks, BLOCK_SIZE, len(tokens))
        whole = Kernel(runtime, int((-(-tokens // 256)).sum()), 256, len(tokens))
        cases = {
            "paged": (paged, table),
            "contiguous": (paged, consecutive(tokens, BLOCK_SIZE)),
            "contiguous, blocks of 256": (whole, consecutive(tokens, 256)),
        }
        best = {case: np.full(LAYERS, np.inf) for case in cases}
        for _ in range(options.passes):
            for case, (kernel, through) in cases.items():
                best[case] = np.minimum(best[case], kernel.seconds(through, tokens))
        read = int(tokens.sum()) * 2 * KV_HEADS * HEAD_DIM * 2
        speed = {case: read / float(spent.mean()) * 1e-9 for case, spent in best.items()}
        contiguous = max(speed["contiguous"], speed["contiguous, blocks of 256"])
        times[name] = {
            "rows": len(tokens),
            "tokens": int(tokens.sum()),
            "gb_per_s": round(speed["paged"], 2),
            "contiguous_gb_per_s": round(contiguous, 2),
            "of_contiguous": round(speed["paged"] / contiguous, 3),
            "of_contiguous_16": round(speed["paged"] / speed["contiguous"], 3),
        }
    return times


def lines(
    load: str, caching: bool, found: dict[str, Tables], times: dict[str, dict[str, float]]
) -> list[str]:
    minutes = next(iter(found.values())).minutes
    made = [
        f"\n{load} load, prefix caching {'on' if caching else 'off'}",
        f"{'mean run, tokens, after minute':32}" + "".join(f"{minute:8}" for minute in minutes),
    ]
    for name, seen in found.items():
        made.append(f"  {name:30}" + "".join(f"{run:8.0f}" for run in seen.run_tokens))
    made.append("share of the blocks in runs of 128 tokens and more")
    for name, seen in found.items():
        made.append(f"  {name:30}" + "".join(f"{share:8.2f}" for share in seen.long_share))
    for name, seen in found.items():
        told = f"{name}: {seen.running[-1]} running, {seen.steps:,} steps, {seen.preemptions:,} preemptions"
        if caching:
            told += f", hit rate {seen.hit_rate:.4f}"
        if (one := times.get(name)) is not None:
            told += (
                f"; attention {one['gb_per_s']:.1f} GB/s, {one['of_contiguous']:.3f} of contiguous "
                f"({one['of_contiguous_16']:.3f} of contiguous blocks of {BLOCK_SIZE})"
            )
        made.append(told)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=int, default=60, help="of virtual time")
    parser.add_argument("--every", type=int, default=10, help="minutes between two looks at the tables")
    parser.add_argument("--num-blocks", type=int, default=4096)
    parser.add_argument(
        "--loads", nargs="+", default=["moderate", "saturated"], choices=["moderate", "saturated"]
    )
    parser.add_argument("--caching", nargs="+", default=["off", "on"], choices=["off", "on"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", default=_native.available_paths()[0], choices=_native.available_paths())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--no-kernel", action="store_true", help="only the tables")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    runtime = _native.Runtime(options.path, options.threads)
    about = {"machine": machine(), "path": options.path, "threads": options.threads, "dtype": "bf16"}
    if not options.json:
        print(", ".join(f"{key} {value}" for key, value in about.items()))
    for load in options.loads:
        for caching in (one == "on" for one in options.caching):
            found = {name: churn(load, caching, tokens, options) for name, tokens in PLACEMENTS.items()}
            times = {} if options.no_kernel else kernel_times(found, options, runtime)
            if options.json:
                for name, seen in found.items():
                    told = {key: value for key, value in vars(seen).items() if key != "tables"}
                    case = {"load": load, "caching": caching, "placement": name}
                    print(json.dumps(about | case | told | {"attention": times.get(name)}))
            else:
                print("\n".join(lines(load, caching, found, times)), flush=True)


if __name__ == "__main__":
    main()
