"""``octavo simulate --preset article``: the article's table, or one setting of its controls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

import click
from msgspec import structs

from octavo.cli.simulate_output import make_log, open_csv, require_plotting, table, write_csv, write_plot
from octavo.cli.sweep import over_cores
from octavo.core.errors import ConfigError
from octavo.simulation import article
from octavo.simulation.article import ArticleSettings, Figures, Row
from octavo.simulation.driver import Stop

TABLE_FLAGS = frozenset({"preset", "seed", "as_json", "log", "kernel_penalty", "jobs"})
"""With these alone the whole table is printed; any other flag is a control of one run."""


def settings_of(flags: dict[str, Any]) -> ArticleSettings:
    """The flags as the article's controls. Raises ConfigError."""
    penalty = flags["kernel_penalty"]
    if not 0 <= penalty < 100:
        raise ConfigError(
            f"the kernel penalty is {penalty} %; it must be from 0 to below 100", param="--kernel-penalty"
        )
    allocator, round_up = flags["allocator"], flags["round_up"]
    if allocator == "pow2":  # what a real engine calls reserved with chunks rounded up
        allocator, round_up = "reserved", True
    steps = article.STEPS if flags["steps"] is None else flags["steps"]
    warmup = flags["warmup_steps"]
    return ArticleSettings(
        allocator=allocator,
        max_tokens=article.DEFAULTS.max_tokens if flags["max_tokens"] is None else flags["max_tokens"],
        spread=flags["spread"],
        block_size=flags["block_size"],
        round_up=round_up,
        share=flags["share"],
        seed=article.SEED if flags["seed"] is None else flags["seed"],
        steps=steps,
        warmup_steps=min(article.WARMUP_STEPS, steps // 3) if warmup is None else warmup,
    )


def penalised(figures: Figures, flags: dict[str, Any]) -> Figures:
    """The figures under ``--kernel-penalty``."""
    return replace(
        figures, penalised_tokens_per_step=(1 - flags["kernel_penalty"] / 100) * figures.tokens_per_step
    )


def run_article(flags: dict[str, Any], given: set[str]) -> None:
    if given <= TABLE_FLAGS:
        _whole_table(flags)
    else:
        _one_run(flags)


# ---------------------------------------------------------------------- the table


def _whole_table(flags: dict[str, Any]) -> None:
    seed = settings_of(flags).seed
    runs = {name: replace(settings, seed=seed) for name, settings in article.RUNS.items()}
    found = {
        name: penalised(figures, flags)
        for name, figures in (
            _all_runs(runs, flags) if flags["log"] is None else _logged(runs, flags)
        ).items()
    }
    rows = [row for name, figures in found.items() for row in article.rows_of(name, figures)]
    sizes = {
        "block_table_mib": {str(size): article.block_table_mib(size) for size in (1, 16)},
        "shared_tokens": {str(size): article.shared_tokens(size) for size in (16, 256)},
        "held_and_empty_mib_max": found["paged"].held_and_empty_mib_max,
    }
    if flags["as_json"]:
        click.echo(
            json.dumps(
                {"preset": "article", "seed": seed, "rows": [asdict(row) for row in rows], "sizes": sizes}
            )
        )
        return
    click.echo(
        table(["run", "figure", "article", "Octavo", "difference", "seed-to-seed sd"], list(_cells(rows)))
    )
    click.echo(
        f"\nSeed {seed}; {article.STEPS:,} steps, the last {article.STEPS - article.WARMUP_STEPS:,} measured. "
        "sd: standard deviation over 300 seeds.\n"
        f"Held and empty never exceeds {found['paged'].held_and_empty_mib_max:.0f} MiB (paged). "
        f"Block table: {article.block_table_mib(16):g} MiB at blocks of 16, {article.block_table_mib(1):g} MiB at 1. "
        f"Shared: {article.shared_tokens(16)} tokens at 16, {article.shared_tokens(256)} at 256."
    )


def _all_runs(runs: dict[str, ArticleSettings], flags: dict[str, Any]) -> dict[str, Figures]:
    """Over all cores, the ones with content to compare first: they take longest."""
    order = sorted(runs, key=lambda name: not runs[name].share)
    found = over_cores(article.run, [runs[name] for name in order], flags["jobs"], "runs")
    by_name = dict(zip(order, found, strict=True))
    return {name: by_name[name] for name in runs}


def _logged(runs: dict[str, ArticleSettings], flags: dict[str, Any]) -> dict[str, Figures]:
    """One after the other, each behind its log."""
    found = {}
    for name, settings in runs.items():
        log = make_log(flags, timed=False)
        assert log is not None
        click.echo(f"--- {name}", err=flags["as_json"])
        found[name] = article.run(settings, (log,))
        log.close()
    return found


def _cells(rows: list[Row]) -> Iterator[list[str]]:
    previous = ""
    for row in rows:
        yield [
            "" if row.name == previous else row.name,
            row.figure,
            f"{row.article:,g}" if row.article >= 1000 else f"{row.article:g}",
            f"{row.octavo:,.2f}",
            f"{row.octavo - row.article:+,.2f}",
            "exact" if row.sd is None else f"{row.sd:g}",
        ]
        previous = row.name


# ---------------------------------------------------------------------- one run


def _one_run(flags: dict[str, Any]) -> None:
    settings = settings_of(flags)
    if flags["plot"] is not None:
        require_plotting()
    file = None if flags["csv"] is None else open_csv(flags["csv"])
    log = make_log(flags, timed=False)
    simulation = article.build(settings, () if log is None else (log,))
    report = simulation.run(Stop(steps=settings.steps))
    figures = penalised(article.figures_of(settings, report), flags)
    if log is not None:
        log.close()
    series = report.series.rows()
    if file is not None:
        write_csv(file, series)
    if flags["plot"] is not None:
        write_plot(flags["plot"], series, f"article, {settings.allocator}", "steps", report.slots_total)
    rows = _rows_of_one(settings, figures)
    blocked = report.first_blocked
    if flags["as_json"]:
        click.echo(
            json.dumps(
                {
                    "preset": "article",
                    "settings": asdict(settings),
                    "figures": asdict(figures),
                    "first_blocked": None if blocked is None else structs.asdict(blocked),
                    "rows": rows,
                }
            )
        )
        return
    click.echo(", ".join(f"{name} {value}" for name, value in asdict(settings).items()))
    cells = [
        [
            str(row["figure"]),
            f"{row['octavo']:,.2f}",
            "" if row["article"] is None else f"{row['article']:,g}",
        ]
        for row in rows
    ]
    click.echo(table(["figure", "Octavo", "article"], cells))
    if blocked is not None:
        click.echo(
            f"First external-fragmentation block: request {blocked.request_id} needed {blocked.slots_needed:,} "
            f"contiguous slots; {blocked.slots_free:,} were free in {blocked.runs_free} runs, "
            f"the largest {blocked.largest_run:,}."
        )


def _rows_of_one(settings: ArticleSettings, figures: Figures) -> list[dict[str, Any]]:
    """Every figure; beside it the article's where these settings are one of its runs (of any seed)."""
    name = next(
        (name for name, known in article.RUNS.items() if replace(known, seed=settings.seed) == settings),
        "custom",
    )
    published = {row.figure: row for row in article.rows_of(name, figures)}
    return [
        {
            "name": name,
            "figure": field.name,
            "article": published[field.name].article if field.name in published else None,
            "octavo": float(getattr(figures, field.name)),
            "sd": published[field.name].sd if field.name in published else None,
        }
        for field in fields(Figures)
    ]


def article_point(flags: dict[str, Any]) -> dict[str, Any]:
    """One run of a sweep."""
    return asdict(penalised(article.run(settings_of(flags)), flags))
