"""Flags of ``octavo simulate`` and which of them go together. Pool and scheduler flags are the engine's own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from octavo.cli.options import Flags
from octavo.core.errors import ConfigError

FILE = click.Path(path_type=Path)

PRESET_FLAGS: Flags = (
    click.option(
        "--preset",
        metavar="NAME",
        help="article: the article's experiment; orca: the paper's baselines; sharing: blocks that several answers to "
        "a prompt share. Default: what the other flags name.",
    ),
    click.option(
        "--spread", type=int, default=70, show_default=True, help="article: spread of the output lengths, %."
    ),
    click.option("--round-up", is_flag=True, help="article: round contiguous chunks up to a power of two."),
    click.option("--share", is_flag=True, help="article: requests share the system prompt's blocks."),
    click.option(
        "--kernel-penalty",
        type=float,
        default=23.0,
        show_default=True,
        help="article: how much slower a paged attention kernel is, %.",
    ),
    click.option("--sharegpt", type=FILE, help="orca, sharing: ShareGPT's lengths, a CSV file."),
    click.option("--alpaca", type=FILE, help="orca, sharing: Alpaca's lengths, a CSV file."),
    click.option(
        "--traces",
        type=FILE,
        help="orca, sharing: folder with sharegpt_single_turn.csv and alpaca_5k_lengths.csv. Default: traces, "
        "shared/traces or ../shared/traces, whichever is there.",
    ),
    click.option(
        "--as-measured",
        is_flag=True,
        help="orca, sharing: draw the files' lengths as they are, not with the paper's means.",
    ),
)

WORKLOAD_FLAGS: Flags = (
    click.option(
        "--arrivals",
        metavar="PROCESS",
        help="saturated (the queue is never empty), all (at once), fixed:RATE, poisson:RATE, gamma:RATE:BURSTINESS or "
        "curve:FILE:COLUMN[:SCALE] (a CSV with time_s and rates). Rates are requests a second. "
        "Default: the trace's own times, else saturated.",
    ),
    click.option(
        "--num-requests",
        type=int,
        help="Requests to play (with --turns: conversations; of a trace: rows). Default: 1000, or the whole trace.",
    ),
    click.option(
        "--prompt-tokens",
        default="512",
        show_default=True,
        metavar="LENGTH",
        help="N, uniform:LOW:HIGH, loguniform:LOW:HIGH or lognormal:MEDIAN:SIGMA; with --turns, of each new message.",
    ),
    click.option(
        "--output-tokens", default="128", show_default=True, metavar="LENGTH", help="The same for answers."
    ),
    click.option(
        "--max-tokens", type=int, help="What every client declares. Default: nothing (article: 2048)."
    ),
    click.option(
        "--shared-prefix",
        metavar="N[:GROUPS]",
        help="N tokens in front of every prompt that all (or the requests of one group) share.",
    ),
    click.option("--turns", metavar="LENGTH", help="Conversations of this many turns, as LENGTH above."),
    click.option(
        "--think-time",
        type=float,
        default=0.0,
        show_default=True,
        help="Mean seconds between an answer and the next turn.",
    ),
    click.option("--concurrency", type=int, help="Most conversations that go on at once. Default: no limit."),
    click.option("--trace", type=FILE, help="A trace or one of our recordings, plain or .gz."),
    click.option(
        "--trace-kind",
        metavar="KIND",
        help="azure, azure-original, mooncake, conversations, coding-agent, lengths or recording. "
        "Default: told by its fields.",
    ),
    click.option(
        "--speed",
        type=float,
        default=1.0,
        show_default=True,
        help="How many times faster a trace's requests arrive.",
    ),
    click.option(
        "--trace-spread",
        type=float,
        default=0.0,
        show_default=True,
        help="Seconds over which a trace's requests with equal times are spread (Mooncake: 3).",
    ),
    click.option(
        "--mean-lengths",
        metavar="PROMPT:OUTPUT",
        help="Draw the trace's lengths at random, reweighted to these means, instead of playing its rows.",
    ),
    click.option(
        "--cache-blocks",
        metavar="N[,N...]",
        help="Only replay a trace's own block ids through a cache of so many blocks, and print the hit rates.",
    ),
    click.option(
        "--replay", type=FILE, help="Only replay a recording, and print the first decision that differs."
    ),
    click.option(
        "--seed",
        type=int,
        help="Seed of the workload. Default: 0 (article: the one of the published figures).",
    ),
)

MODEL_SPEC_FLAGS: Flags = (
    click.option(
        "--model-spec",
        metavar="NAME|FILE",
        help="Sizes of a known model, or of a config.json or a folder with one. Default: llama-3.1-8b.",
    ),
    click.option("--layers", type=int, help="Layers; this and the next six replace the model's."),
    click.option("--heads", type=int, help="Query heads."),
    click.option("--kv-heads", type=int, help="Key-value heads."),
    click.option("--head-dim", type=int, help="Elements of a head."),
    click.option("--hidden-size", type=int, help="Elements between layers."),
    click.option("--intermediate-size", type=int, help="Elements inside the MLP."),
    click.option("--vocab-size", type=int, help="Tokens of the vocabulary."),
)

SIMULATED_POOL_FLAGS: Flags = (
    click.option(
        "--gpu-memory-utilization",
        "memory_share",
        type=float,
        default=0.9,
        show_default=True,
        help="Share of the profile's device memory for weights and pool, where no size is given (the name is vLLM's).",
    ),
    click.option(
        "--allocator",
        type=click.Choice(["paged", "reserved", "pow2", "oracle"]),
        default="paged",
        show_default=True,
        help="As for the engine; or oracle: contiguous, the true length known.",
    ),
    click.option(
        "--order",
        type=click.Choice(["decode_first", "admission_first"]),
        default="decode_first",
        show_default=True,
        help="Whether a step serves running requests or the queue first.",
    ),
)

RUN_FLAGS: Flags = (
    click.option(
        "--profile",
        metavar="NAME|FILE",
        help="How long steps take: h100, h200, a100, a100-40gb, l4, mi300x or a measured profile. Default: h100 "
        "(orca: a100-40gb).",
    ),
    click.option(
        "--clock",
        type=click.Choice(["time", "steps"]),
        default="time",
        show_default=True,
        help="steps: every step takes 1, and all times and rates are in steps.",
    ),
    click.option("--steps", type=int, help="Stop after so many steps (article: 3000)."),
    click.option("--duration", type=float, help="Stop after so many seconds of the virtual clock."),
    click.option(
        "--warmup-steps",
        type=int,
        help="Steps that are not measured. Default: 0 (article: 1000, or a third of --steps).",
    ),
    click.option(
        "--slo-ttft", type=float, help="Goodput counts answers whose first token took at most this, seconds."
    ),
    click.option(
        "--slo-tpot", type=float, help="... whose later tokens took at most this each on average, seconds."
    ),
    click.option("--slo-e2e", type=float, help="... which took at most this as a whole, seconds."),
)

OUTPUT_FLAGS: Flags = (
    click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text."),
    click.option(
        "--log",
        is_flag=False,
        flag_value="first",
        type=click.Choice(["first", "all"]),
        metavar="[all]",
        help="The decision log: admissions, preemptions, refusals, the first external-fragmentation block and "
        "how many there were; --log=all: every event.",
    ),
    click.option("--csv", type=FILE, help="Write the time series (with --sweep: the table) as CSV."),
    click.option("--plot", type=FILE, help="Draw the time series (needs the extra octavo[plot])."),
    click.option(
        "--record", type=FILE, help="Write every decision as JSON lines, which --replay and --trace read."
    ),
    click.option(
        "--sweep",
        multiple=True,
        metavar="FLAG=A,B...",
        help="Run every combination of these values, over all cores; more FLAG=A,B... may follow.",
    ),
    click.option("--jobs", type=int, help="Processes of a sweep. Default: one a usable core."),
)

ARTICLE = frozenset(
    {
        "spread",
        "round_up",
        "share",
        "kernel_penalty",
        "allocator",
        "max_tokens",
        "block_size",
        "seed",
        "steps",
    }
    | {"warmup_steps", "as_json", "log", "csv", "plot", "sweep", "jobs"}
)
ORCA = frozenset(
    {"sharegpt", "alpaca", "traces", "as_measured", "seed", "num_requests", "profile", "as_json", "jobs"}
)
CACHE = frozenset({"cache_blocks", "trace", "trace_kind", "num_requests", "as_json"})
REPLAY = frozenset({"replay", "as_json"})
PRESET_ONLY = frozenset(
    {"spread", "round_up", "share", "kernel_penalty", "sharegpt", "alpaca", "traces", "as_measured"}
)
UNSWEEPABLE = frozenset(
    {"preset", "as_json", "log", "csv", "plot", "record", "sweep", "jobs", "replay", "cache_blocks"}
)

NEEDS = {
    "think_time": "turns",
    "trace_kind": "trace",
    "speed": "trace",
    "trace_spread": "trace",
    "mean_lengths": "trace",
    "cache_blocks": "trace",
    "jobs": "sweep",
}
"""The first makes no sense without the second."""

CONTRADICTIONS = (
    ("trace", "prompt_tokens"),
    ("trace", "output_tokens"),
    ("trace", "shared_prefix"),
    ("trace", "turns"),
    ("arrivals", "speed"),
    ("arrivals", "trace_spread"),
    ("mean_lengths", "speed"),
    ("mean_lengths", "trace_spread"),
    ("num_blocks", "kv_cache_memory_bytes"),
    ("num_blocks", "memory_share"),
    ("kv_cache_memory_bytes", "memory_share"),
    ("sweep", "plot"),
    ("sweep", "record"),
    ("sweep", "log"),
)


def check_together(given: Collection[str], flags: dict[str, Any], names: dict[str, str]) -> None:
    """Raise ConfigError for flags that contradict each other or do nothing together.

    ``given``: parameters that the user named; ``names``: each parameter's flag.
    """
    mode, allowed = _mode(flags)
    for name in (name for name in names if name in given):
        if allowed is not None and name not in allowed | {"preset"}:
            raise ConfigError(f"{names[name]} does not go with {mode}", param=names[name])
        if allowed is None and name in PRESET_ONLY:
            raise ConfigError(
                f"{names[name]} is a setting of --preset article, orca or sharing", param=names[name]
            )
        needed = NEEDS.get(name)
        if needed is not None and needed not in given and flags["preset"] is None:
            raise ConfigError(f"{names[name]} does nothing without {names[needed]}", param=names[name])
    for one, other in CONTRADICTIONS:
        if one in given and other in given:
            raise ConfigError(f"{names[one]} and {names[other]} contradict each other", param=names[other])
    if flags["clock"] == "steps" and "profile" in given:
        raise ConfigError("--clock steps counts steps, so --profile has nothing to say", param="--clock")


def _mode(flags: dict[str, Any]) -> tuple[str, frozenset[str] | None]:
    """What is run, and the parameters that it looks at; None is every one that belongs to no preset."""
    preset = flags["preset"]
    if preset == "article":
        return "--preset article", ARTICLE
    if preset == "orca":
        return "--preset orca", ORCA
    if preset == "sharing":
        return "--preset sharing", ORCA
    if preset is not None:
        known = "article, orca and sharing"
        raise ConfigError(f"preset {preset!r} is not known; known are {known}", param="--preset")
    if flags["replay"] is not None:
        return "--replay", REPLAY
    return ("--cache-blocks", CACHE) if flags["cache_blocks"] is not None else ("a workload", None)
