"""Memory for logits, laid out so that writing them is fast."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LINE_FLOATS = 16
"""float32 of a cache line."""


def logit_memory(rows: int, vocab_size: int) -> NDArray[np.float32]:
    """Uninitialised float32 [rows, vocab_size]: rows that start on a cache line, an odd number of lines apart.

    A kernel writes a few columns of every row at a time. Rows of SmolLM2's 49,152 logits side by side lie a multiple of
    64 KiB apart, so that all of them compete for the same few lines of the caches: 64 rows took twice as long.
    """
    lines = -(-vocab_size // LINE_FLOATS)
    stride = (lines + 1 - lines % 2) * LINE_FLOATS
    memory = np.empty(rows * stride + LINE_FLOATS, np.float32)
    first = -memory.ctypes.data // memory.itemsize % LINE_FLOATS
    return memory[first : first + rows * stride].reshape(rows, stride)[:, :vocab_size]
