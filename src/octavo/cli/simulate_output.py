"""What a simulation prints and writes: tables, the decision log, time series, a plot, a progress bar."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from octavo.core.errors import ConfigError
from octavo.core.events import Admitted, Blocked, Preempted, Refused, StepRecord
from octavo.simulation.driver import Simulation
from octavo.telemetry.lines import event_line


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, the others to the right."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


class DecisionLog:
    """A sink that writes the decisions. Of the external-fragmentation blocks, one a step while a request waits, the
    first alone unless ``everything`` is wanted; ``close`` says how many there were."""

    def __init__(self, write: Callable[[str], None], *, everything: bool, timed: bool = True) -> None:
        self._write = write
        self._everything = everything
        self._timed = timed
        self._blocked = 0
        self._preempted = 0
        self._admitted = 0

    def emit(self, record: StepRecord, now: float) -> None:
        for event in record.events:
            if isinstance(event, Blocked):
                self._blocked += 1
                wanted = self._blocked == 1
            else:
                self._preempted += isinstance(event, Preempted)
                self._admitted += isinstance(event, Admitted)
                wanted = isinstance(event, (Admitted, Preempted, Refused))
            if wanted or self._everything:
                time = f", {now:.4f} s" if self._timed else ""
                self._write(f"step {record.plan.step}{time}: {event_line(event)}")

    def close(self) -> None:
        self._write(
            f"in all: {self._admitted:,} admissions, {self._preempted:,} preemptions, "
            f"{self._blocked:,} steps blocked by external fragmentation"
        )


def make_log(flags: dict[str, Any], *, timed: bool = True) -> DecisionLog | None:
    """The log that ``--log`` asks for: on standard output, or on standard error where JSON goes to the former."""
    if flags["log"] is None:
        return None
    to_stderr = bool(flags["as_json"])
    return DecisionLog(
        lambda line: click.echo(line, err=to_stderr), everything=flags["log"] == "all", timed=timed
    )


def open_csv(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="--csv") from error


def write_csv(file: TextIO, rows: Sequence[dict[str, Any]]) -> None:
    """A header and one line a row; closes ``file``."""
    with file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def require_plotting() -> None:
    """Say before a long run, not after it, that nothing can be drawn."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; pip install 'octavo[plot]'", param="--plot"
        )


def write_plot(path: Path, rows: Sequence[dict[str, float]], title: str, unit: str, slots: int) -> None:
    """The pool's shares over time, and below them the requests that run and wait."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    times = [row["time"] for row in rows]
    figure, (pool, requests) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    names = ("written", "reserved", "internal", "external")
    pool.stackplot(times, [[100 * row[name] / slots for row in rows] for name in names], labels=names)
    pool.set(ylabel="% of the pool's slots", ylim=(0, 100), title=title)
    pool.legend(loc="lower right", ncols=4)
    for name in ("running", "waiting"):
        requests.plot(times, [row[name] for row in rows], label=name)
    requests.set(xlabel=unit, ylabel="requests", ylim=(0, None))
    requests.legend(loc="upper right")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}", param="--plot") from error
    finally:
        pyplot.close(figure)


@contextmanager
def progress_bar(total: int | None, unit: str) -> Iterator[Callable[[int], None] | None]:
    """Gives a function that is told how far we are; None where nobody looks. Runs under a second show nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=f" {unit}", delay=1.0, leave=False, file=sys.stderr) as bar:

        def tell(done: int) -> None:
            bar.update(done - bar.n)

        yield tell


def by_requests(tell: Callable[[int], None] | None) -> Callable[[Simulation], None] | None:
    """A driver's progress function that counts the requests that have left."""
    if tell is None:
        return None

    def told(simulation: Simulation) -> None:
        if simulation.steps % 64 == 0:
            scheduler = simulation.scheduler
            tell(simulation.arrivals - scheduler.num_running - scheduler.num_waiting)

    return told
