"""Times of a step's operators, beside what this machine could do at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo import _native

if TYPE_CHECKING:
    from octavo.execution.cpu_executor import CpuExecutor


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A recorded linear layer: what its time is judged by."""

    out_features: int
    in_features: int
    format: str
    nbytes: int
    """Of the packed weight."""

    @property
    def arithmetic(self) -> str:
        """What the kernels multiply it in: f32, bf16, int8 or int4."""
        if self.format in ("f32", "bf16"):
            return self.format
        return "int4" if self.format in ("q4_0", "q4_1") else "int8"


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Probed: bytes and operations a second of all threads."""

    bytes_per_s: float
    operations_per_s: dict[str, float]
    """Of f32, bf16, int8 and int4 multiply-adds."""

    def linear_s(self, layer: LinearLayer, rows: int) -> float:
        operations = 2.0 * rows * layer.out_features * layer.in_features
        return max(layer.nbytes / self.bytes_per_s, operations / self.operations_per_s[layer.arithmetic])

    def best_of(self, other: MachineLimits) -> MachineLimits:
        """The better of two probes: a neighbour of this machine can only have made one slower."""
        rates = {
            kind: max(rate, other.operations_per_s[kind]) for kind, rate in self.operations_per_s.items()
        }
        return MachineLimits(max(self.bytes_per_s, other.bytes_per_s), rates)


def probe_limits(runtime: _native.Runtime) -> MachineLimits:
    """Takes about half a second."""
    operations = {kind: 1e9 * _native.probe_flops(runtime, kind) for kind in ("f32", "bf16", "int8", "int4")}
    return MachineLimits(1e9 * _native.probe_bandwidth(runtime), operations)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All operators of one kind in a step."""

    name: str
    count: int
    seconds: float
    """Median of the steps."""
    best_s: float
    """Each call's best, summed. The limit is a best too, so that on a shared machine this is what the code reaches of
    it; the median is what the machine gave."""
    limit_s: float | None
    """What memory or arithmetic alone would take; None for those that should not be seen at all."""


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Seconds of decode steps of ``rows`` rows at about ``context`` tokens, operator by operator."""

    rows: int
    context: int
    names: list[str]
    operators: np.ndarray
    """f64 [steps, operators], in the order in which a step runs them."""
    rest: list[float]
    """What of each step no operator took: planning, sampling, telling."""


def time_steps(
    executor: CpuExecutor, run_step: Callable[[], object], steps: int, rows: int, context: int
) -> TimedSteps:
    """``steps`` calls of ``run_step``, each a decode step."""
    program, names = executor.program, [name for name, _ in executor.program.profile()]
    times, rest = [], []
    for _ in range(steps):
        program.enable_profile(True)
        begin = time.perf_counter()
        run_step()
        whole = time.perf_counter() - begin
        times.append([seconds for _, seconds in program.profile()])
        rest.append(whole - sum(times[-1]))
    program.enable_profile(False)
    return TimedSteps(rows, context, names, np.array(times), rest)


def judge(executor: CpuExecutor, timed: TimedSteps, limits: MachineLimits) -> list[OperatorTime]:
    """Operators of one kind as one, the slowest first; the last is what of a step no operator took."""
    median, best = np.median(timed.operators, axis=0).tolist(), timed.operators.min(axis=0).tolist()
    groups: dict[str, OperatorTime] = {}
    layers = iter(executor.linear_layers)
    read = timed.rows * timed.context * executor.kv_bytes_per_token
    kv_s = read / limits.bytes_per_s / timed.names.count("paged_attention")
    for operator, spent, least in zip(timed.names, median, best, strict=True):
        name, limit_s = operator, kv_s if operator == "paged_attention" else None
        if operator == "linear":
            layer = next(layers)
            name = f"linear {layer.in_features} to {layer.out_features}, {layer.format}"
            limit_s = limits.linear_s(layer, timed.rows)
        before = groups.get(name, OperatorTime(name, 0, 0.0, 0.0, None if limit_s is None else 0.0))
        total = None if limit_s is None or before.limit_s is None else before.limit_s + limit_s
        groups[name] = OperatorTime(
            name, before.count + 1, before.seconds + spent, before.best_s + least, total
        )
    rest = OperatorTime(
        "planning, sampling, telling", 1, statistics.median(timed.rest), min(timed.rest), None
    )
    return [*sorted(groups.values(), key=lambda one: -one.seconds), rest]
