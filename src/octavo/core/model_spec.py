"""``ModelSpec``: the sizes of a model. Every byte count in Octavo starts here."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"f32": 4, "bf16": 2}
"""Bytes of one element of each element type that weights and KV storage may have."""


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
        """Bytes of one slot: 2 x layers x kv_heads x head_dim x bytes per element."""
        return self.kv_elements_per_token * DTYPE_BYTES[self.kv_dtype]
