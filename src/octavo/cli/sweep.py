"""``octavo simulate --sweep``: every combination of some flags' values, over all cores, and one table of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any, TypeVar

import click

from octavo.cli.simulate_flags import check_together
from octavo.cli.simulate_output import open_csv, progress_bar, table, write_csv
from octavo.core.errors import ConfigError, OctavoError
from octavo.core.machine import usable_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

ARTICLE_COLUMNS = {
    "tokens_per_step": "tokens/step",
    "effective": "effective %",
    "preemptions": "preemptions",
    "discarded_tokens": "discarded",
    "blocked_steps": "blocked steps",
    "held_and_empty_mib": "held, empty MiB",
    "block_table_mib": "table MiB",
}
COLUMNS = {
    "output_tokens_per_second": "tokens/s",
    "requests_per_second": "requests/s",
    "ttft.mean": "TTFT mean",
    "ttft.p95": "TTFT p95",
    "tpot.mean": "TPOT mean",
    "tpot.p95": "TPOT p95",
    "e2e.p95": "end-to-end p95",
    "running_mean": "running",
    "preemptions": "preemptions",
    "hit_rate": "hit rate",
    "effective": "effective",
    "requests_refused": "refused",
}
SLO_COLUMNS = {"goodput_per_second": "goodput/s", "slo_attainment": "SLO kept"}


def over_cores(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int | None, unit: str
) -> list[Result]:
    """``work`` of every task, in their order, in up to ``jobs`` processes, this one among them.

    An error of a failing task is raised; the tasks that have not begun are dropped then.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; it must be at least 1", param="--jobs")
    others = min(jobs or usable_cores(), len(tasks)) - 1
    with progress_bar(len(tasks), unit) as tell:
        if others == 0:
            found: list[Result] = []
            for task in tasks:
                found.append(work(task))
                if tell is not None:
                    tell(len(found))
            return found
        # A forked process would inherit whatever threads were doing; a spawned one starts clean on every platform.
        with ProcessPoolExecutor(others, mp_context=get_context("spawn")) as pool:
            try:
                return _share(work, tasks, [pool.submit(work, task) for task in tasks], tell)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _share(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    futures: Sequence[Future[Result]],
    tell: Callable[[int], None] | None,
) -> list[Result]:
    """The others take tasks from the front; this process takes them from the back, as starting another one takes
    longer than many a task."""
    own: dict[int, Result] = {}

    def count() -> None:
        if tell is not None:
            tell(len(own) + sum(future.done() and not future.cancelled() for future in futures))

    for i in reversed(range(len(tasks))):
        if not futures[i].cancel():
            break
        own[i] = work(tasks[i])
        count()
    found = []
    for i, future in enumerate(futures):
        found.append(own[i] if i in own else future.result())
        count()
    return found


def run_sweep(
    flags: dict[str, Any], grid: dict[str, list[Any]], names: dict[str, str], given: set[str]
) -> None:
    """Raises ConfigError, which names the combination at fault."""
    named = given | set(grid)
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    labels = [_label(point, names) for point in points]
    tasks = [({**flags, **point}, label) for point, label in zip(points, labels, strict=True)]
    for changed, _ in tasks:
        check_together(named, changed, names)
    csv_file = None if flags["csv"] is None else open_csv(flags["csv"])
    found = over_cores(_run_point, tasks, flags["jobs"], "runs")
    settings = [{names[name].removeprefix("--"): value for name, value in point.items()} for point in points]
    columns = ARTICLE_COLUMNS if flags["preset"] == "article" else COLUMNS
    if "slo_attainment" in found[0]:
        columns = {**columns, **SLO_COLUMNS}
    rows = [
        {**setting, **{path: _at(result, path) for path in columns}}
        for setting, result in zip(settings, found, strict=True)
    ]
    if csv_file is not None:
        write_csv(csv_file, rows)
    if flags["as_json"]:
        runs = [
            {"settings": setting, "report": result} for setting, result in zip(settings, found, strict=True)
        ]
        click.echo(json.dumps({"sweep": runs}, default=str))
        return
    cells = [[_shown(value) for value in row.values()] for row in rows]
    click.echo(table([*settings[0], *columns.values()], cells))


def _label(point: dict[str, Any], names: dict[str, str]) -> str:
    return " ".join(f"{names[name].removeprefix('--')}={value}" for name, value in point.items())


def _run_point(task: tuple[dict[str, Any], str]) -> dict[str, Any]:
    flags, label = task
    try:
        if flags["preset"] == "article":
            from octavo.cli.simulate_article import article_point

            return article_point(flags)
        from octavo.cli.simulate_run import workload_point

        return workload_point(flags)
    except OctavoError as error:
        error.message = f"--sweep, {label}: {error.message}"
        raise


def _at(result: dict[str, Any], path: str) -> Any:
    value: Any = result
    for key in path.split("."):
        value = value[key]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
