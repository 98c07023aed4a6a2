"""Rotary tables: cos and sin of every position, with the stretching that a model was trained for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.execution.loading.architecture import Architecture, RopeScaling

Doubles = NDArray[np.float64]

_POSITIONS_AT_A_TIME = 4096
"""Keeps the float64 intermediates of a context of 128 Ki tokens in the caches."""


def rope_tables(
    architecture: Architecture, max_len: int, factors: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin, float32 [max_len, rotary / 2]; ``factors`` [rotary / 2] divides the frequencies (GGUF's rope_freqs).

    Frequencies, and their products with the positions, are rounded to float32, because the models were trained with
    angles rounded so; at position 8,000 that differs from exact angles by more than everything else here.
    """
    exact, attention_factor = inverse_frequencies(architecture)
    frequencies = (exact if factors is None else exact / factors).astype(np.float32)
    cos = np.empty((max_len, len(frequencies)), np.float32)
    sin = np.empty_like(cos)
    for first in range(0, max_len, _POSITIONS_AT_A_TIME):
        part = slice(first, min(first + _POSITIONS_AT_A_TIME, max_len))
        angles = np.arange(part.start, part.stop, dtype=np.float32)[:, None] * frequencies
        cos[part] = np.cos(angles.astype(np.float64)) * attention_factor
        sin[part] = np.sin(angles.astype(np.float64)) * attention_factor
    return cos, sin


def inverse_frequencies(architecture: Architecture) -> tuple[Doubles, float]:
    """(radians a position, float64 [rotary / 2]; the factor on cos and sin)."""
    dim, scaling = architecture.rotary_dim, architecture.rope_scaling
    plain = architecture.rope_theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    match scaling.kind:
        case "none":
            return plain, 1.0
        case "linear":
            return plain / scaling.factor, 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(plain, scaling, dim, architecture.rope_theta), _yarn_attention_factor(scaling)


def _llama3(plain: Doubles, scaling: RopeScaling) -> Doubles:
    """Short waves stay, long waves stretch by the factor, and those between blend by how often they fit the context."""
    turns = scaling.original_max_len * plain / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return keep * plain + (1.0 - keep) * plain / scaling.factor


def _yarn(plain: Doubles, scaling: RopeScaling, dim: int, theta: float) -> Doubles:
    """Dimensions that turn often stay, those that turn rarely stretch by the factor; a ramp between (Peng 2023)."""

    def dimension_of(turns: float) -> float:
        """The (fractional) dimension that turns so often over the original context."""
        return dim * math.log(scaling.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001  # a step, not a division by zero
    stretch = np.clip((np.arange(dim // 2) - low) / width, 0.0, 1.0)
    blended: Doubles = stretch * plain / scaling.factor + (1.0 - stretch) * plain
    return blended


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
