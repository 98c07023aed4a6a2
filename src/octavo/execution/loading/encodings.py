"""Element encodings of stored tensors. What decodes them is native (``native/decode_kernels.cpp``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Target = Literal["f32", "bf16"]
"""Element type that a weight is wanted in."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How numbers are stored: a row is a run of blocks of ``elements`` numbers in ``nbytes`` bytes."""

    name: str
    elements: int
    nbytes: int


F32 = Encoding("F32", 1, 4)
F16 = Encoding("F16", 1, 2)
BF16 = Encoding("BF16", 1, 2)

QUANTISED = {
    encoding.name: encoding
    for encoding in (
        Encoding("Q4_0", 32, 18),
        Encoding("Q4_1", 32, 20),
        Encoding("Q5_0", 32, 22),
        Encoding("Q5_1", 32, 24),
        Encoding("Q8_0", 32, 34),
        Encoding("Q4_K", 256, 144),
        Encoding("Q5_K", 256, 176),
        Encoding("Q6_K", 256, 210),
    )
}
"""Quantised encodings of GGUF files that Octavo reads, by GGUF's names."""
