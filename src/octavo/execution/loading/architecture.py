"""``Architecture``: what the description of a model needs to know besides its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a model stretches its rotary positions; fields beyond ``factor`` belong to the kinds named."""

    kind: RopeKind = "none"
    factor: float = 1.0
    original_max_len: int = 0
    """Tokens of context before stretching (llama3, yarn)."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than original_max_len / this are stretched by the whole factor."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than original_max_len / this are left alone."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this over the original context are left alone."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often than this are stretched by the whole factor."""
    attention_factor: float | None = None
    """yarn: multiplies cos and sin; None derives it from factor (and the two below)."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """yarn: whether the borders between the dimensions are rounded to whole ones."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of the Llama kind: pre-norm RMSNorm, rotary positions, grouped queries, gated SiLU."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    """Tokens of the longest context, after any stretching."""
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    """Leading columns of a head that turn; even."""
    rope_scaling: RopeScaling
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head before they turn (Qwen3)."""
    tied: bool = False
    """Whether the logits use the embedding's weights."""
    sliding_window: int | None = None
    """Tokens that a position sees, itself included; None is all before it."""

    @property
    def query_columns(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_columns(self) -> int:
        return self.num_kv_heads * self.head_dim
