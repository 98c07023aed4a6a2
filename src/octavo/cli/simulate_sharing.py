"""``octavo simulate --preset sharing``: blocks that several answers to a prompt save, beside the paper's figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from octavo.cli.simulate_orca import Lengths, lengths_of
from octavo.cli.simulate_output import table
from octavo.cli.sweep import over_cores
from octavo.core.errors import ConfigError
from octavo.simulation import orca, sharing
from octavo.simulation.orca import DATASETS
from octavo.simulation.sharing import METHODS, SAVINGS, WIDTHS, Method, Saved

REQUESTS = {"sharegpt": 60, "alpaca": 300}
LABELS = {"parallel": "parallel sampling", "beam": "beam search"}


@dataclass(frozen=True, slots=True)
class _Task:
    lengths: Lengths
    method: Method
    width: int
    requests: int
    seed: int
    profile: str


def run_sharing(flags: dict[str, Any]) -> None:
    """Raises ConfigError."""
    seed = 0 if flags["seed"] is None else flags["seed"]
    count = flags["num_requests"]
    if count is not None and count < 1:
        raise ConfigError(f"--num-requests is {count}; it must be at least 1", param="--num-requests")
    profile = flags["profile"] or orca.PROFILE
    lengths = [lengths_of(DATASETS[name], flags) for name in ("alpaca", "sharegpt")]
    tasks = [
        _Task(one, method, width, count or REQUESTS[one.dataset.name], seed, profile)
        for one in lengths
        for method in METHODS
        for width in WIDTHS
    ]
    found = over_cores(_run, tasks, flags["jobs"], "runs")
    if flags["as_json"]:
        click.echo(json.dumps(_as_json(tasks, found, seed, profile)))
        return
    _print(lengths, tasks, found)


def _run(task: _Task) -> Saved:
    return sharing.run(
        task.method,
        task.width,
        task.lengths.dataset,
        task.lengths.pairs,
        means=task.lengths.drawn_means,
        requests=task.requests,
        seed=task.seed,
        profile=task.profile,
        efficiency=orca.EFFICIENCY,
    )


def _as_json(tasks: list[_Task], found: list[Saved], seed: int, profile: str) -> dict[str, Any]:
    return {
        "preset": "sharing",
        "seed": seed,
        "profile": profile,
        "rows": [
            {
                "dataset": task.lengths.dataset.name,
                "source": task.lengths.source,
                "method": saved.method,
                "sequences": saved.width,
                "percent_saved": saved.percent,
                "paper_percent_saved": SAVINGS.get((task.lengths.dataset.name, saved.method, saved.width)),
                "batched_sequences": saved.batched_sequences,
                "copied_blocks": saved.copied_blocks,
                "preemptions": saved.preemptions,
            }
            for task, saved in zip(tasks, found, strict=True)
        ],
    }


def _print(lengths: list[Lengths], tasks: list[_Task], found: list[Saved]) -> None:
    click.echo("Blocks saved by sharing, OPT-13B, blocks of 16 (in brackets the paper's).")
    for one in lengths:
        name = one.dataset.name
        saved = {(s.method, s.width): s for t, s in zip(tasks, found, strict=True) if t.lengths is one}
        click.echo(f"\n{name}. Lengths: {one.source}.\n{one.note}")
        rows = [
            [LABELS[method], *(_cell(name, saved[method, width]) for width in WIDTHS)] for method in METHODS
        ]
        click.echo(table(["", *(f"n={width}" for width in WIDTHS)], rows))
    click.echo(
        "\nAll answers to a request are as long as the data set's one. Parallel sampling depends on lengths alone. A "
        "beam\nsearch's likelihoods are made up (see docs/simulator.md): how early beams part moves its figures."
    )


def _cell(dataset: str, saved: Saved) -> str:
    paper = SAVINGS.get((dataset, saved.method, saved.width))
    return f"{saved.percent:.2f} %" + ("" if paper is None else f" ({paper:g} %)")
