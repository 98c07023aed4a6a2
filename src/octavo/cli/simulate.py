"""``octavo simulate``: the real scheduler and memory manager on a virtual clock."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from click.core import ParameterSource

from octavo.cli.options import POOL_FLAGS, SCHEDULER_FLAGS, with_flags
from octavo.cli.simulate_flags import (
    MODEL_SPEC_FLAGS,
    OUTPUT_FLAGS,
    PRESET_FLAGS,
    RUN_FLAGS,
    SIMULATED_POOL_FLAGS,
    UNSWEEPABLE,
    WORKLOAD_FLAGS,
    check_together,
)
from octavo.core.errors import ConfigError


def simulate_flags(command: Any) -> Any:
    """All flags, in the order of ``--help``."""
    return with_flags(
        command,
        PRESET_FLAGS,
        WORKLOAD_FLAGS,
        MODEL_SPEC_FLAGS,
        POOL_FLAGS,
        SIMULATED_POOL_FLAGS,
        SCHEDULER_FLAGS,
        RUN_FLAGS,
        OUTPUT_FLAGS,
    )


@click.command("simulate")
@click.argument("more", nargs=-1, metavar="[FLAG=A,B...]")
@simulate_flags
def command(more: tuple[str, ...], **flags: Any) -> None:
    """What these settings would do to a workload: no model, no GPU, no waiting.

    The scheduler and the memory manager are the engine's own; only the time that a step takes is computed.
    """
    # Everything else is imported below: --help loads no NumPy.
    ctx = click.get_current_context()
    names = {
        param.name: param.opts[0]
        for param in ctx.command.params
        if isinstance(param, click.Option) and param.name is not None
    }
    given = {name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    grid = _grid(ctx, flags["sweep"], more)
    check_together(given | set(grid), flags, names)
    if grid:
        from octavo.cli.sweep import run_sweep

        run_sweep(flags, grid, names, given)
    elif flags["preset"] == "article":
        from octavo.cli.simulate_article import run_article

        run_article(flags, given)
    elif flags["preset"] == "orca":
        from octavo.cli.simulate_orca import run_orca

        run_orca(flags)
    elif flags["preset"] == "sharing":
        from octavo.cli.simulate_sharing import run_sharing

        run_sharing(flags)
    elif flags["replay"] is not None:
        sys.exit(_replay(flags))
    elif flags["cache_blocks"] is not None:
        _cache_blocks(flags)
    else:
        from octavo.cli.simulate_run import run_workload

        run_workload(flags)


def _grid(ctx: click.Context, sweep: tuple[str, ...], more: tuple[str, ...]) -> dict[str, list[Any]]:
    """Values of each swept parameter, checked and converted as the flag itself would."""
    if more and not sweep:
        raise ConfigError(f"{more[0]!r} is no flag; FLAG=A,B... belongs behind --sweep", param="--sweep")
    options = {
        opt.removeprefix("--"): param
        for param in ctx.command.params
        if isinstance(param, click.Option) and param.name not in UNSWEEPABLE
        for opt in param.opts
    }
    grid: dict[str, list[Any]] = {}
    for term in (term for text in (*sweep, *more) for term in text.split()):
        flag, equals, values = term.partition("=")
        param = options.get(flag.removeprefix("--"))
        if param is None or param.name is None:
            raise ConfigError(f"--sweep: {flag!r} is no flag that can be swept", param="--sweep")
        if not equals or not all(values.split(",")):
            raise ConfigError(f"--sweep: {term!r} has no values; write {flag}=A,B", param="--sweep")
        if param.name in grid:
            raise ConfigError(f"--sweep names {flag} twice", param="--sweep")
        grid[param.name] = [param.type.convert(value, param, ctx) for value in values.split(",")]
    if sweep and not grid:
        raise ConfigError("--sweep names no flag; write --sweep block-size=8,16", param="--sweep")
    return grid


def _replay(flags: dict[str, Any]) -> int:
    """Returns the exit code: 1 if a decision came out otherwise, for then ours is wrong."""
    from octavo.simulation.replay import replay_recording

    steps, found = replay_recording(flags["replay"])
    if flags["as_json"]:
        click.echo(json.dumps({"steps": steps, "differences": [str(difference) for difference in found]}))
    elif found:
        click.echo(f"{steps:,} steps agree; then")
        for difference in found:
            click.echo(str(difference))
    else:
        click.echo(f"{steps:,} steps, 0 differing decisions")
    return 1 if found else 0


def _cache_blocks(flags: dict[str, Any]) -> None:
    from itertools import islice

    from octavo.cli.simulate_output import table
    from octavo.simulation.cache_replay import replay
    from octavo.simulation.traces import open_trace

    try:
        capacities = [int(number) for number in flags["cache_blocks"].split(",")]
    except ValueError:
        raise ConfigError(
            f"--cache-blocks is {flags['cache_blocks']!r}; write numbers of blocks, as 1000,2000",
            param="--cache-blocks",
        ) from None
    trace = open_trace(flags["trace"], flags["trace_kind"])
    size = trace.kind.block_size
    if size is None:
        raise ConfigError(
            f"{trace.path} is a trace of kind {trace.kind.name}: it has no block ids", param="--trace"
        )
    found = replay(islice(trace.rows(), flags["num_requests"]), size, [*capacities, None])
    if flags["as_json"]:
        rows = [
            {
                "capacity": one.capacity,
                "blocks": one.blocks,
                "block_hits": one.block_hits,
                "hit_rate": one.rate,
                "token_hit_rate": one.token_rate,
            }
            for one in found
        ]
        click.echo(json.dumps({"block_size": size, "rows": rows}))
        return
    click.echo(
        f"{trace.path.name}: {found[0].blocks:,} references to blocks of {size} tokens, least recently used first out"
    )
    cells = [
        [
            "unlimited" if one.capacity is None else f"{one.capacity:,}",
            f"{one.rate:.4f}",
            f"{one.token_rate:.4f}",
        ]
        for one in found
    ]
    click.echo(table(["blocks", "hit rate", "of the tokens"], cells))
