"""``ModelSpec``: the sizes of a model. Every byte count in Octavo starts here."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of one element of each element type: weights may have the first two, keys and values in the pool all."""

KV_SCALE_BYTES = {"f32": 0, "bf16": 0, "fp8": 4, "int8": 4}
"""Bytes of the scale that each head's key, and each head's value, of each token has beside its elements."""

KV_CACHE_DTYPES = {"f32": "f32", "bf16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "int8": "int8"}
"""What a user may call the pool's element types (and auto: that of the weights), and our word for it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes that memory, planner, simulator and page need; nothing about weights.

    ``memory/sizing.py`` is the only place that turns these into bytes and blocks.
    """

    name: str
    num_layers: int
    num_heads: int
    """Query heads of a layer."""
    num_kv_heads: int
    head_dim: int
    """Elements of one head's key (or value)."""
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    """Tokens: the longest context the model was made for."""
    kv_dtype: str = "bf16"
    """Element type of keys and values in the pool: a key of ``DTYPE_BYTES``."""
    weight_dtype: str = "bf16"
    num_parameters: int = 0

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of one slot: keys and values of every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one slot: 2 x layers x kv_heads x (head_dim x bytes per element + bytes of a scale)."""
        head = self.head_dim * DTYPE_BYTES[self.kv_dtype] + KV_SCALE_BYTES[self.kv_dtype]
        return 2 * self.num_layers * self.num_kv_heads * head
