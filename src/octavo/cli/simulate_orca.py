"""``octavo simulate --preset orca``: the paper's baselines on OPT-13B's pool, its figures beside ours."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from octavo.cli.simulate_output import table
from octavo.cli.sweep import over_cores
from octavo.core.errors import ConfigError
from octavo.simulation import orca
from octavo.simulation.driver import Stop
from octavo.simulation.lengths import log_normal
from octavo.simulation.orca import BATCHED_REQUESTS, DATASETS, POLICIES, SHARES, Dataset, OrcaFigures, Policy
from octavo.simulation.random_numbers import stream
from octavo.simulation.sharing import SAVINGS
from octavo.simulation.traces import open_trace

FOLDERS = ("traces", "shared/traces", "../shared/traces")
FILES = {"sharegpt": "sharegpt_single_turn.csv", "alpaca": "alpaca_5k_lengths.csv"}
REQUESTS = {"sharegpt": 600, "alpaca": 3_000}
SYNTHETIC = {"sharegpt": ((90.0, 1.0), (230.0, 0.9)), "alpaca": ((14.0, 0.7), (44.0, 0.8))}
"""(median, sigma) of lognormal prompts and outputs where there is no file."""
LABELS = {"orca_max": "Orca Max", "orca_pow2": "Orca Pow2", "orca_oracle": "Orca Oracle", "paged": "paged"}


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a workload's lengths are drawn from."""

    dataset: Dataset
    source: str
    pairs: list[tuple[int, int]]
    means: tuple[float, float]
    """Of these lengths."""
    drawn_means: tuple[float, float] | None
    """Expected lengths of a draw: the paper's, or None for these as they are."""
    note: str
    """How they differ from the paper's."""


@dataclass(frozen=True, slots=True)
class _Task:
    lengths: Lengths
    policy: Policy
    requests: int
    seed: int
    profile: str


def run_orca(flags: dict[str, Any]) -> None:
    """Raises ConfigError."""
    seed = 0 if flags["seed"] is None else flags["seed"]
    count = flags["num_requests"]
    if count is not None and count < 1:
        raise ConfigError(f"--num-requests is {count}; it must be at least 1", param="--num-requests")
    lengths = [lengths_of(dataset, flags) for dataset in DATASETS.values()]
    profile = flags["profile"] or orca.PROFILE
    tasks = [
        _Task(one, policy, count or REQUESTS[one.dataset.name], seed, profile)
        for one in lengths
        for policy in POLICIES
    ]
    held, left = capacity()
    figures = over_cores(_run, tasks, flags["jobs"], "runs")
    rows = [
        row for task, found in zip(tasks, figures, strict=True) for row in _rows(task.lengths.dataset, found)
    ]
    if flags["as_json"]:
        click.echo(json.dumps(_as_json(lengths, rows, held, left, seed, profile)))
        return
    _print(lengths, tasks, figures, held, left)


# ---------------------------------------------------------------------- lengths


def lengths_of(dataset: Dataset, flags: dict[str, Any]) -> Lengths:
    path = _file(dataset, flags)
    if path is None:
        rng = stream(0, f"{dataset.name} lengths")
        prompt, output = (log_normal(median, sigma) for median, sigma in SYNTHETIC[dataset.name])
        pairs = [(prompt(rng), output(rng)) for _ in range(10_000)]
        source = "no trace file: synthetic lognormal lengths"
    else:
        pairs = [(int(a), int(b)) for a, b in open_trace(path).lengths().tolist()]
        source = path.name
    means = np.mean(pairs, axis=0)
    note = orca.length_note(dataset, pairs).partition(";")[0]
    drawn = None if flags["as_measured"] else dataset.means
    return Lengths(dataset, source, pairs, (float(means[0]), float(means[1])), drawn, note)


def _file(dataset: Dataset, flags: dict[str, Any]) -> Path | None:
    """The file that is named, or the one in the folder that is named, or the first that lies where they usually do."""
    if flags[dataset.name] is not None:
        return Path(flags[dataset.name])
    name = FILES[dataset.name]
    if flags["traces"] is not None:
        path = Path(flags["traces"]) / name
        if not path.is_file():
            raise ConfigError(
                f"{flags['traces']} holds no {name}; name the file by --{dataset.name}", param="--traces"
            )
        return path
    return next((path for folder in FOLDERS if (path := Path(folder) / name).is_file()), None)


# ---------------------------------------------------------------------- runs


def capacity() -> tuple[int, float]:
    """(requests that Orca Max holds, percent of the pool left over) when more arrive than fit."""
    simulation, _ = orca.build("orca_max", [(100, 400)], rate=1000.0, requests=50)
    simulation.run(Stop(steps=60))
    scheduler = simulation.scheduler
    return scheduler.num_running, 100 * scheduler.pool_state.free / orca.POOL_SLOTS


def _run(task: _Task) -> OrcaFigures:
    dataset = task.lengths.dataset
    simulation, shares = orca.build(
        task.policy,
        task.lengths.pairs,
        rate=dataset.rate,
        seed=task.seed,
        requests=task.requests,
        means=task.lengths.drawn_means,
        profile=task.profile,
    )
    # Measured while requests arrive, as a server that stays up is: the queue's end would count as idle memory.
    return orca.run(task.policy, simulation, shares, seconds=task.requests / dataset.rate)


def _rows(dataset: Dataset, found: OrcaFigures) -> list[dict[str, Any]]:
    """Memory shares have a figure of the paper for ShareGPT alone."""
    shared = dataset.name == "sharegpt"
    figures = [
        ("batched_requests", BATCHED_REQUESTS[dataset.name, found.policy], found.batched_requests),
        *(
            (f"{name}_percent", SHARES[found.policy][name] if shared else None, share)
            for name, share in found.shares.items()
        ),
        ("normalized_latency_s", None, found.normalized_latency_s),
        ("preemptions", None, float(found.preemptions)),
    ]
    return [
        {
            "name": found.policy,
            "dataset": dataset.name,
            "figure": figure,
            "paper": paper,
            "octavo": None if math.isnan(octavo) else octavo,
        }
        for figure, paper, octavo in figures
    ]


# ---------------------------------------------------------------------- output

ELSEWHERE = "octavo simulate --preset sharing"


def _as_json(
    lengths: list[Lengths], rows: list[dict[str, Any]], held: int, left: float, seed: int, profile: str
) -> dict[str, Any]:
    return {
        "preset": "orca",
        "seed": seed,
        "profile": profile,
        "efficiency": orca.EFFICIENCY,
        "capacity": {"requests": held, "left_over_percent": left, "slots": orca.POOL_SLOTS},
        "lengths": [
            {
                "dataset": one.dataset.name,
                "source": one.source,
                "means": one.means,
                "paper_means": one.dataset.means,
                "drawn_means": one.drawn_means or one.means,
            }
            for one in lengths
        ],
        "rows": rows,
        "sharing": [
            {
                "method": method,
                "sequences": n,
                "paper_percent_saved": paper,
                "octavo": None,
                "note": ELSEWHERE,
            }
            for (dataset, method, n), paper in SAVINGS.items()
            if dataset == "alpaca"
        ],
    }


def _print(
    lengths: list[Lengths], tasks: list[_Task], figures: list[OrcaFigures], held: int, left: float
) -> None:
    click.echo(
        f"OPT-13B, {orca.POOL_SLOTS:,} slots of 819,200 bytes. Orca Max holds exactly {held} requests of 2,048; "
        f"{left:.2f} % are left over."
    )
    for one in lengths:
        dataset = one.dataset
        click.echo(
            f"\n{dataset.name}, {dataset.rate:g} requests/s. Lengths: {one.source}.\n{one.note}; "
            + (
                "drawn as they are"
                if one.drawn_means is None
                else "resampled to the paper's means (not: --as-measured)"
            )
        )
        cells = [
            _cells(dataset, found) for task, found in zip(tasks, figures, strict=True) if task.lengths is one
        ]
        headers = [
            "ours (the paper's)",
            "batched requests",
            "tokens %",
            "reserved %",
            "internal %",
            "other %",
            "s/token",
        ]
        click.echo(table(headers, cells))
    click.echo(
        f"\nStep times: roofline of {tasks[0].profile} at {orca.EFFICIENCY:.0%} of its peaks, one number for all runs. "
        "Shares of a pool that is full depend on it little, batched requests of one that is not depend on it much.\n"
        f"\nBlocks saved by sharing, Alpaca (the paper's; ours beside them: {ELSEWHERE}):"
    )
    click.echo(
        table(
            ["", "n=2", "n=4", "n=6"],
            [
                [f"{method} search" if method == "beam" else f"{method} sampling"]
                + [f"({SAVINGS['alpaca', method, n]:.2f} %)" for n in (2, 4, 6)]
                for method in ("parallel", "beam")
            ],
        )
    )


def _cells(dataset: Dataset, found: OrcaFigures) -> list[str]:
    paper = SHARES[found.policy] if dataset.name == "sharegpt" else None
    return [
        LABELS[found.policy],
        f"{found.batched_requests:.2f} ({BATCHED_REQUESTS[dataset.name, found.policy]:.2f})",
        *(
            f"{share:.1f}" if paper is None else f"{share:.1f} ({paper[name]:.1f})"
            for name, share in found.shares.items()
        ),
        f"{found.normalized_latency_s:.3f}",
    ]
