"""``octavo profile``: times this machine's engine and writes what ``octavo simulate --profile`` reads."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import engine_flags, engine_options
from octavo.core.errors import ConfigError

if TYPE_CHECKING:
    from octavo.llm.profiling import Measurement, StepTimer
    from octavo.llm.session import Session
    from octavo.simulation.cost_model import FittedProfile


@click.command("profile")
@click.option("--name", help="The profile's name. Default: model, element type and threads.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write. Default: profiles/NAME.json in the current folder.",
)
@click.option(
    "--seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="Measure for about so long; at least one round over the grid, which takes long with a large model.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object with profile, errors and every measurement."
)
@engine_flags
def command(name: str | None, output: Path | None, seconds: float, as_json: bool, **flags: Any) -> None:
    """Time this machine's engine, for octavo simulate --profile."""
    from octavo.core.machine import usable_cores
    from octavo.llm import profiling  # not at the top: --help loads no model code
    from octavo.llm.build import build_session, machine

    if not 0 < seconds < 1e6:
        raise ConfigError(f"--seconds is {seconds:g}; it must be above 0", param="--seconds")
    options = engine_options(**flags)
    timer = profiling.StepTimer()
    session = build_session(options, sinks=[timer])
    spec, threads = session.spec, options.threads or usable_cores()
    name = name or f"{_slug(spec.name)}-{spec.weight_dtype}-{threads}-threads"
    output = output or Path("profiles") / f"{_slug(name)}.json"
    _check_writable(output)
    source = (
        f"measured by octavo profile: {machine()}, {threads} threads, path {options.path or 'best'}; {spec.name}, "
        f"{spec.weight_dtype} weights, {spec.kv_dtype} KV, blocks of {options.block_size}, "
        f"{options.max_num_batched_tokens or 'unlimited'} tokens a step"
    )
    measured = _measure(session, timer, seconds)
    profile = profiling.fit_measurements(name, source, measured)
    _write(profile, output)
    errors = profiling.errors_by_kind(profile, measured)
    if as_json:
        click.echo(json.dumps(_facts(profile, errors, measured, output)))
        return
    click.echo(f"{name}: {source}")
    click.echo(f"{'kind of step':14}{'shapes':>8}{'mean error':>13}{'largest':>10}")
    for kind, (count, mean, largest) in errors.items():
        click.echo(f"{kind:14}{count:>8}{100 * mean:>11.1f} %{100 * largest:>8.1f} %")
    click.echo(f"{'all':14}{profile.steps:>8}{100 * profile.mean_error:>11.1f} %")
    blocks = session.engine.scheduler.allocator.num_blocks
    click.echo(
        f"Written to {output}. A run with it: octavo simulate --profile {output} --num-gpu-blocks-override {blocks}"
    )


def _slug(text: str) -> str:
    """Lower-case words and hyphens: a name that every file system takes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "profile"


def _check_writable(path: Path) -> None:
    """Before minutes of measuring, not after. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="--output") from error


def _measure(session: Session, timer: StepTimer, seconds: float) -> list[Measurement]:
    from tqdm import tqdm

    from octavo.llm.profiling import measure

    with tqdm(desc="Shapes measured", unit="") as bar:

        def tell(gone: float) -> None:
            bar.update()

        return measure(session, timer, seconds, tell)


def _write(profile: FittedProfile, path: Path) -> None:
    from octavo.simulation.profile_files import save_profile

    save_profile(profile, path)


def _facts(
    profile: FittedProfile,
    errors: dict[str, tuple[int, float, float]],
    measured: list[Measurement],
    output: Path,
) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "output": str(output),
        "profile": asdict(profile),
        "errors": {
            kind: {"shapes": count, "mean": mean, "largest": largest}
            for kind, (count, mean, largest) in errors.items()
        },
        "measurements": [
            {"cell": list(one.cell), **one.step._asdict(), "seconds": one.seconds, "steps": one.steps}
            for one in measured
        ],
    }
