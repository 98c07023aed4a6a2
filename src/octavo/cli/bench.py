"""``octavo bench``: decode speed of this machine, and with ``--profile`` where a step's time goes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import engine_flags, engine_options
from octavo.core.errors import ConfigError

if TYPE_CHECKING:
    from octavo.llm.benching import DecodeTimes


@click.command("bench")
@click.argument("model_argument", metavar="[MODEL]", required=False)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 16, 64),
    show_default="1, 16 and 64",
    help="Rows that decode at once; may be given several times.",
)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens that each row attends to, about.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=32, show_default=True, help="Decode steps; medians count."
)
@click.option(
    "--profile",
    is_flag=True,
    help="Time of every operator, and its share of the limits probed right before and after.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@engine_flags
def command(
    model_argument: str | None,
    batches: tuple[int, ...],
    context: int,
    steps: int,
    profile: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Time decode steps of this machine's engine, operator by operator on demand."""
    from octavo.llm.benching import check_fits, decode_times  # --help loads no model code
    from octavo.llm.build import build_session, machine

    if model_argument and flags["model"]:
        raise ConfigError(f"two models: {model_argument} and --model {flags['model']}", param="--model")
    options = engine_options(**{**flags, "model": model_argument or flags["model"]})
    session = build_session(options)
    for batch in batches:
        check_fits(session, batch, context, steps)
    found = [decode_times(session, batch, context, steps, profile) for batch in batches]
    kept = options.quantization or session.spec.weight_dtype
    head = f"{session.spec.name}, {kept} weights, {session.spec.kv_dtype} KV, context {context}; {machine()}"
    if as_json:
        click.echo(json.dumps(_facts(head, found)))
        return
    click.echo(head)
    for times in found:
        _show(times)


def _show(times: DecodeTimes) -> None:
    click.echo(f"batch {times.batch}: {1e3 * times.step_s:.2f} ms a step, {times.tokens_per_s:.1f} tokens/s")
    if times.limits is None or times.limit_s is None:
        return
    click.echo(
        f"  of the limit {times.limit_s / times.step_s:.2f}; the fastest step, {1e3 * times.best_step_s:.2f} ms, "
        f"{times.limit_s / times.best_step_s:.2f}"
    )
    rates = ", ".join(f"{rate / 1e9:.0f} G{kind}" for kind, rate in times.limits.operations_per_s.items())
    click.echo(
        f"  probed before and after: {times.limits.bytes_per_s / 1e9:.1f} GB/s; multiply-adds a second, twice: {rates}"
    )
    whole_s = sum(one.seconds for one in times.operators)
    click.echo(
        f"  {'operator':32}{'calls':>6}{'ms':>9}{'share':>7}{'best ms':>9}{'limit ms':>10}{'of limit':>10}{'best':>6}"
    )
    for one in times.operators:
        limit = (
            ""
            if one.limit_s is None
            else f"{1e3 * one.limit_s:10.3f}{one.limit_s / one.seconds:10.2f}{one.limit_s / one.best_s:6.2f}"
        )
        click.echo(
            f"  {one.name:32}{one.count:6}{1e3 * one.seconds:9.3f}{one.seconds / whole_s:7.3f}"
            f"{1e3 * one.best_s:9.3f}{limit}"
        )


def _facts(head: str, found: list[DecodeTimes]) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "about": head,
        "batches": [{**asdict(times), "tokens_per_s": times.tokens_per_s} for times in found],
    }
