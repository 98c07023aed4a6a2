"""The dozen operators in which a model is described, once, for every device.

``execution/model.py`` calls these; the CPU implementation records them into a native program when the model
loads. A test implements them in NumPy float64 and so checks description and kernels separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.execution.loading import WeightMatrix

Array = NDArray[Any]
"""float32, but for what ``WeightMatrix.array`` gives: that may be bf16, as uint16 bit patterns."""


@dataclass(frozen=True, slots=True)
class Value:
    """A handle to activations: float32, ``width`` columns, one row a token (after gather_rows, one a sampled row)."""

    id: int
    width: int


class Operators(Protocol):
    def embed(self, table: WeightMatrix) -> Value:
        """table [vocab, hidden] -> rows of this step's tokens."""

    def rms_norm(self, x: Value, weight: Array, eps: float) -> Value: ...

    def head_norm(self, x: Value, column: int, heads: int, weight: Array, eps: float) -> None:
        """RMSNorm of each of ``heads`` heads of len(weight) columns from ``column`` on, in place (Qwen3's qk-norm)."""

    def linear(self, x: Value, weight: WeightMatrix, bias: NDArray[np.float32] | None = None) -> Value:
        """weight [N, K], kept in its format; x [., K] -> [., N]."""

    def rope(self, x: Value, column: int, heads: int, head_dim: int, cos: Array, sin: Array) -> None:
        """Rotate ``heads`` heads from ``column`` on, in place; cos and sin [max_len, rotary / 2]."""

    def store_kv(self, layer: int, x: Value, key_column: int, value_column: int) -> None: ...

    def paged_attention(
        self, layer: int, x: Value, query_column: int, heads: int, head_dim: int, scale: float
    ) -> Value:
        """-> [T, heads x head_dim]."""

    def silu_mul(self, x: Value) -> Value:
        """gate | up [., 2F] -> silu(gate) x up [., F]."""

    def add(self, x: Value, y: Value) -> None:
        """x += y."""

    def gather_rows(self, x: Value) -> Value:
        """Keep the rows whose logits are wanted."""

    def logits(self, x: Value, weight: WeightMatrix) -> None:
        """The last operator: logits of the kept rows, from weight [vocab, hidden]."""
