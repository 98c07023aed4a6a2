"""How long a step takes: a roofline from published numbers, or coefficients fitted to measured steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo.core.errors import ConfigError
from octavo.core.model_spec import DTYPE_BYTES, ModelSpec
from octavo.core.plan import StepPlan
from octavo.simulation.executor import CostModel
from octavo.simulation.features import PlanFeatures, features

Overlap = Literal["operators", "whole", "none"]

ROOFLINE_NOTE = "a lower bound on time: peak numbers, which no real program reaches throughout"


@dataclass(frozen=True, slots=True)
class RooflineProfile:
    """A device by its published peaks, each times the share of it that is assumed to be reached."""

    name: str
    source: str
    """Where the numbers were published."""
    memory_bytes: float
    """Device memory."""
    memory_bytes_per_s: float
    flops_per_s: dict[str, float]
    """Dense floating-point operations a second by the weights' element type."""
    memory_efficiency: float = 1.0
    compute_efficiency: float = 1.0
    host_bytes_per_s: float = 25e9
    """Between the pool and the second tier, one way: about what PCIe 4.0 x16 carries, where nothing else is said."""
    step_overhead_s: float = 0.0
    """Launch and host time that every step pays."""
    overlap: Overlap = "operators"
    """What hides behind what. operators: linear layers take the longer of their reading and computing, attention takes
    the longer of its own, and the two follow each other, as kernels do. whole: all reading behind all computing (a
    tighter bound). none: everything in turn."""

    def __post_init__(self) -> None:
        positive = {
            "memory_bytes": self.memory_bytes,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "host_bytes_per_s": self.host_bytes_per_s,
            "memory_efficiency": self.memory_efficiency,
            "compute_efficiency": self.compute_efficiency,
            **{f"flops_per_s.{dtype}": value for dtype, value in self.flops_per_s.items()},
        }
        for key, value in positive.items():
            if not 0 < value < 1e30:
                raise ConfigError(
                    f"profile {self.name}: {key} is {value}; it must be above 0", param="--profile"
                )
        if self.step_overhead_s < 0:
            raise ConfigError(
                f"profile {self.name}: step_overhead_s is {self.step_overhead_s}; it must be at least 0",
                param="--profile",
            )
        if self.overlap not in ("operators", "whole", "none"):
            raise ConfigError(
                f"profile {self.name}: overlap is {self.overlap!r}; it must be operators, whole or none",
                param="--profile",
            )

    def cost_model(self, spec: ModelSpec, block_size: int = 16) -> CostModel:
        """Raises ConfigError if nothing is known about the element type of the model's weights."""
        if spec.weight_dtype not in self.flops_per_s:
            known = ", ".join(self.flops_per_s)
            raise ConfigError(
                f"profile {self.name} has no flops_per_s for {spec.weight_dtype} weights; it has {known}",
                param="--profile",
            )
        return Roofline(self, spec, block_size)


def body_parameters(spec: ModelSpec) -> int:
    """Parameters of the linear layers without the output head.

    ``ModelSpec`` does not say whether the MLP is gated (three matrices, not two) or the head tied to the embedding; the
    combination that comes nearest to ``num_parameters`` decides, and a gated MLP where that is not known.
    """
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    matrix = spec.hidden_size * spec.intermediate_size
    bodies = [spec.num_layers * (attention + matrices * matrix) for matrices in (3, 2)]
    if not spec.num_parameters:
        return bodies[0]
    table = spec.vocab_size * spec.hidden_size
    return min(bodies, key=lambda body: min(abs(body + n * table - spec.num_parameters) for n in (1, 2)))


class Roofline:
    """Weights are read once a step, keys and values of a row once, and activations not at all (they stay in caches)."""

    def __init__(self, profile: RooflineProfile, spec: ModelSpec, block_size: int = 16) -> None:
        """``block_size`` prices copied and transferred blocks alone."""
        self._seconds_per_byte = 1 / (profile.memory_bytes_per_s * profile.memory_efficiency)
        self._seconds_per_flop = 1 / (profile.flops_per_s[spec.weight_dtype] * profile.compute_efficiency)
        self._overhead = profile.step_overhead_s
        self._overlap = profile.overlap
        weight_bytes = DTYPE_BYTES[spec.weight_dtype]
        self._body = body_parameters(spec)
        self._head = spec.vocab_size * spec.hidden_size
        self._weight_bytes = weight_bytes
        self._kv_bytes = spec.kv_bytes_per_token
        self._slots_per_copy = 2 * block_size
        self._transfer_seconds = block_size * spec.kv_bytes_per_token / profile.host_bytes_per_s
        self._flops_per_pair = 4 * spec.num_layers * spec.num_heads * spec.head_dim

    def price(self, plan: StepPlan) -> float:
        return self.seconds(features(plan))

    def seconds(self, step: PlanFeatures) -> float:
        """A step without tokens only tells of events, or waits for transfers; nothing hides those of any step."""
        transfers = step.transferred_blocks * self._transfer_seconds
        if not step.tokens:
            return transfers
        weights = self._body + (self._head if step.sampled else 0)
        linear_read = weights * self._weight_bytes * self._seconds_per_byte
        linear_compute = 2 * (self._body * step.tokens + self._head * step.sampled) * self._seconds_per_flop
        moved = step.kv_tokens + step.tokens + step.copied_blocks * self._slots_per_copy
        attention_read = moved * self._kv_bytes * self._seconds_per_byte
        attention_compute = self._flops_per_pair * step.pairs * self._seconds_per_flop
        if self._overlap == "operators":
            spent = max(linear_read, linear_compute) + max(attention_read, attention_compute)
        elif self._overlap == "whole":
            spent = max(linear_read + attention_read, linear_compute + attention_compute)
        else:
            spent = linear_read + linear_compute + attention_read + attention_compute
        return self._overhead + transfers + spent


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """Seconds a step as a sum of non-negative coefficients times features, from steps that were measured."""

    name: str
    source: str
    """Machine, model and settings that were measured."""
    coefficients: dict[str, float]
    """Seconds for each unit of each term (``fit.TERMS`` and ``tokens_over_N``); absent terms cost nothing."""
    steps: int = 0
    """Measured steps behind it."""
    mean_error: float = 0.0
    """Mean of |predicted - measured| / measured over these steps."""
    knots: tuple[int, ...] = field(default=())
    """N of each ``tokens_over_N``: tokens above N cost this much more each (where a step turns compute-bound)."""

    def __post_init__(self) -> None:
        known = ("constant", *PlanFeatures._fields, *(f"tokens_over_{knot}" for knot in self.knots))
        for term, value in self.coefficients.items():
            if term not in known:
                raise ConfigError(
                    f"profile {self.name}: coefficient {term!r} is not known; known are {', '.join(known)}",
                    param="--profile",
                )
            if not 0 <= value < 1e30:
                raise ConfigError(
                    f"profile {self.name}: coefficient {term} is {value}; it must be at least 0",
                    param="--profile",
                )
        if not any(self.coefficients.values()):
            raise ConfigError(f"profile {self.name}: every step would take no time", param="--profile")

    def cost_model(self, spec: ModelSpec, block_size: int = 16) -> CostModel:
        """The model was measured with the machine; ``spec`` and ``block_size`` are not looked at."""
        return Fitted(self)


class Fitted:
    def __init__(self, profile: FittedProfile) -> None:
        found = profile.coefficients
        self._constant = found.get("constant", 0.0)
        self._terms = tuple(found.get(name, 0.0) for name in PlanFeatures._fields)
        self._transfer = found.get("transferred_blocks", 0.0)
        self._over = tuple((knot, found.get(f"tokens_over_{knot}", 0.0)) for knot in profile.knots)

    def price(self, plan: StepPlan) -> float:
        return self.seconds(features(plan))

    def seconds(self, step: PlanFeatures) -> float:
        """A step without tokens only tells of events, or waits for transfers."""
        if not step.tokens:
            return step.transferred_blocks * self._transfer
        spent = self._constant
        for cost, amount in zip(self._terms, step, strict=True):
            spent += cost * amount
        for knot, cost in self._over:
            spent += cost * max(step.tokens - knot, 0)
        return spent


Profile = RooflineProfile | FittedProfile
