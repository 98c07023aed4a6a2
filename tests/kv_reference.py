"""What a pool of each element type holds of given keys and values: written from the format, not from the kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from native_helpers import F32, from_bf16, to_bf16

KV_DTYPES = ["f32", "bf16", "fp8", "int8"]
HEAD_BYTES = {
    "f32": lambda dim: 4 * dim,
    "bf16": lambda dim: 2 * dim,
    "fp8": lambda dim: dim + 4,
    "int8": lambda dim: dim + 4,
}
"""Bytes of one head's key, or value, of one token."""

E4M3: NDArray[np.float64] = np.array(
    [
        0.0,
        *[2.0 ** (exponent - 7) * (1 + mantissa / 8) for exponent in range(1, 16) for mantissa in range(8)][
            :-1
        ],
    ]
)
"""The magnitudes of e4m3 without its subnormals; the last code is its NaN."""


def _nearest_e4m3(x: F32) -> F32:
    """Ties to the even mantissa, as the index's parity tells: 0 is at 0, and 2^-6, whose mantissa is 0, at 1."""
    magnitude = np.abs(x).astype(np.float64)
    above = np.clip(np.searchsorted(E4M3, magnitude), 1, len(E4M3) - 1)
    low, high = E4M3[above - 1], E4M3[above]
    up = (magnitude - low > high - magnitude) | ((magnitude - low == high - magnitude) & (above % 2 == 1))
    up &= ~((above == 1) & (magnitude == high / 2))  # between 0 and the smallest, 0 is the even one
    return (np.sign(x) * np.where(up, high, low)).astype(np.float32)


def held(x: F32, dtype: str) -> F32:
    """``x`` [..., head_dim] as it is read back; each last axis has a scale of its own."""
    if dtype == "f32":
        return x
    if dtype == "bf16":
        return from_bf16(to_bf16(x))
    most = np.float32(448 if dtype == "fp8" else 127)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    scale = largest / most
    codes = x * np.divide(most, largest, out=np.zeros_like(largest), where=largest > 0)
    return (_nearest_e4m3(codes) if dtype == "fp8" else np.rint(codes)) * scale
