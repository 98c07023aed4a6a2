"""Element encodings of stored tensors, and how their rows become float32 or bf16.

A quantised row is a run of blocks of ``elements`` numbers in ``nbytes`` bytes. The arithmetic of every quantised
encoding is that of the ``gguf`` package; what is ours is that it runs in cache-sized pieces on several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Target = Literal["f32", "bf16"]
"""Element type that a weight is wanted in."""

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How numbers are stored: ``elements`` of them in ``nbytes`` bytes."""

    name: str
    elements: int
    nbytes: int
    decode: Callable[[Bytes], Floats]
    """uint8 [n, nbytes] -> float32 [n, elements]."""


def widen_bf16(bits: NDArray[np.uint16]) -> Floats:
    """bf16 bit patterns -> the same numbers as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bf16(values: Floats) -> NDArray[np.uint16]:
    """float32 -> bf16 bit patterns, to nearest, ties to even. The values must be finite.

    Adding half of the last kept bit (less one where that bit is 0) and cutting is exactly that rounding; a NaN
    could carry into the sign, so callers refuse what is not finite first.
    """
    bits = values.view(np.uint32)
    carry = (bits >> np.uint32(16)) & np.uint32(1)
    carry += np.uint32(0x7FFF)
    carry += bits
    # The upper halves, as every second 16-bit number of a little-endian machine: one pass instead of two.
    return np.ascontiguousarray(carry.view(np.uint16)[..., 1::2])


def _decode_f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4")


def _decode_f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _decode_bf16(blocks: Bytes) -> Floats:
    return widen_bf16(blocks.view("<u2"))


F32 = Encoding("F32", 1, 4, _decode_f32)
F16 = Encoding("F16", 1, 2, _decode_f16)
BF16 = Encoding("BF16", 1, 2, _decode_bf16)

QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""Quantised encodings of GGUF files that Octavo reads."""


def quantised(name: str) -> Encoding:
    """The encoding of a GGUF type in ``QUANTISED``.

    ``gguf`` is imported here and not above: it costs a tenth of a second, which a safetensors model need not pay.
    """
    from gguf import quants
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks: Any = getattr(quants, name)
    return Encoding(name, elements, nbytes, blocks.dequantize_blocks)
