"""The workload that flags name: synthetic requests, conversations, a trace, or lengths drawn from one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from math import inf
from pathlib import Path
from typing import Any

from octavo.core.errors import ConfigError
from octavo.simulation.arrivals import parse_arrivals, rate_curve
from octavo.simulation.conversations import Conversations, synthetic_conversations
from octavo.simulation.lengths import Empirical, independent, parse_length
from octavo.simulation.random_numbers import Uniform, stream
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.trace_workloads import TraceOptions, open_workload
from octavo.simulation.traces import open_trace, read_rate_curve
from octavo.simulation.workloads import NO_PREFIX, OpenLoop, Saturated, SharedPrefix, Workload, synthetic

NUM_REQUESTS = 1_000


def build_workload(flags: dict[str, Any], backlog: int, vocabulary: int) -> Workload:
    """``backlog``: requests that wait in a saturated queue. Raises ConfigError."""
    for name in ("num_requests", "concurrency", "max_tokens"):
        if flags[name] is not None and flags[name] < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {flags[name]}; it must be at least 1", param=flag)
    if flags["turns"] is not None:
        return _conversations(flags, vocabulary)
    if flags["trace"] is not None and flags["mean_lengths"] is None:
        return _trace(flags, backlog, vocabulary)
    if flags["concurrency"] is not None:
        raise ConfigError(
            "only conversations have a --concurrency; give --turns or a trace of them", param="--concurrency"
        )
    return _synthetic(flags, backlog, vocabulary)


def _seed(flags: dict[str, Any]) -> int:
    return 0 if flags["seed"] is None else int(flags["seed"])


def _times(arrivals: str, rng: Uniform) -> Iterator[float]:
    kind, *parts = arrivals.split(":")
    if kind == "curve" and len(parts) in (2, 3):
        try:
            scale = float(parts[2]) if len(parts) == 3 else 1.0
        except ValueError:
            scale = 0.0
        if not 0 < scale < inf:
            raise ConfigError(f"the curve's scale is {parts[2]!r}; it must be above 0", param="--arrivals")
        rates, window_s = read_rate_curve(Path(parts[0]), parts[1])
        return rate_curve([rate * scale for rate in rates], window_s, rng)
    if kind not in ("all", "fixed", "poisson", "gamma"):
        raise ConfigError(
            f"arrivals {arrivals!r} are not known; use saturated, all, fixed:RATE, poisson:RATE, "
            "gamma:RATE:BURSTINESS or curve:FILE:COLUMN[:SCALE]",
            param="--arrivals",
        )
    return parse_arrivals(arrivals, rng)


def _prefix(flags: dict[str, Any]) -> SharedPrefix:
    text = flags["shared_prefix"]
    if text is None:
        return NO_PREFIX
    tokens, _, groups = text.partition(":")
    try:
        return SharedPrefix(int(tokens), int(groups or 1))
    except ValueError:
        raise ConfigError(
            f"--shared-prefix is {text!r}; write tokens, as 500, or tokens and groups, as 500:4",
            param="--shared-prefix",
        ) from None


def _synthetic(flags: dict[str, Any], backlog: int, vocabulary: int) -> Workload:
    seed, arrivals = _seed(flags), flags["arrivals"] or "saturated"
    rng = stream(seed, "lengths")
    if flags["trace"] is not None:
        lengths = _drawn_from_trace(flags).endless(rng)
    else:
        lengths = independent(parse_length(flags["prompt_tokens"]), parse_length(flags["output_tokens"]), rng)
    saturated = arrivals == "saturated"
    requests = synthetic(
        repeat(0.0) if saturated else _times(arrivals, stream(seed, "arrivals")),
        lengths,
        limit=flags["num_requests"] or NUM_REQUESTS,
        prefix=_prefix(flags),
        groups_rng=stream(seed, "groups"),
        max_tokens=flags["max_tokens"],
        vocabulary=vocabulary,
    )
    return Saturated(requests, backlog) if saturated else OpenLoop(requests)


def _drawn_from_trace(flags: dict[str, Any]) -> Empirical:
    text = flags["mean_lengths"]
    try:
        prompt, output = map(float, text.split(":"))
    except ValueError:
        raise ConfigError(
            f"--mean-lengths is {text!r}; write PROMPT:OUTPUT, as 161.31:337.99", param="--mean-lengths"
        ) from None
    return Empirical(open_trace(flags["trace"], flags["trace_kind"]).lengths(), (prompt, output))


def _conversations(flags: dict[str, Any], vocabulary: int) -> Conversations:
    seed, arrivals = _seed(flags), flags["arrivals"] or "saturated"
    if arrivals == "saturated" and flags["concurrency"] is None:
        raise ConfigError(
            "conversations without --arrivals start when there is room; say by --concurrency how many go on at once",
            param="--concurrency",
        )
    if not 0 <= flags["think_time"] < inf:
        raise ConfigError(
            f"--think-time is {flags['think_time']}; it must be at least 0", param="--think-time"
        )
    starts = repeat(0.0) if arrivals == "saturated" else _times(arrivals, stream(seed, "arrivals"))
    conversations = synthetic_conversations(
        starts,
        parse_length(flags["turns"]),
        parse_length(flags["prompt_tokens"]),
        parse_length(flags["output_tokens"]),
        stream(seed, "lengths"),
        think_s=flags["think_time"],
        prefix=_prefix(flags),
        limit=flags["num_requests"] or NUM_REQUESTS,
    )
    return Conversations(
        conversations, concurrency=flags["concurrency"], max_tokens=flags["max_tokens"], vocabulary=vocabulary
    )


def _trace(flags: dict[str, Any], backlog: int, vocabulary: int) -> Workload:
    arrivals = flags["arrivals"]
    times: Iterator[float] | None = None
    if arrivals is not None:
        times = repeat(0.0) if arrivals == "saturated" else _times(arrivals, stream(_seed(flags), "arrivals"))
    options = TraceOptions(
        arrivals=times,
        speed=flags["speed"],
        spread_s=flags["trace_spread"],
        limit=flags["num_requests"],
        max_tokens=flags["max_tokens"],
        concurrency=flags["concurrency"],
        vocabulary=vocabulary,
    )
    workload = open_workload(flags["trace"], flags["trace_kind"], options)
    if isinstance(workload, Conversations):
        if arrivals == "saturated" and flags["concurrency"] is None:
            raise ConfigError("saturated conversations need a --concurrency", param="--concurrency")
        return workload
    if flags["concurrency"] is not None:
        raise ConfigError(
            f"{flags['trace']} holds no conversations, so --concurrency says nothing", param="--concurrency"
        )
    return Saturated(_rest(workload), backlog) if arrivals == "saturated" else workload


def _rest(loop: OpenLoop) -> Iterator[SimulatedRequest]:
    while (request := loop.take(inf, 0)) is not None:
        yield request
