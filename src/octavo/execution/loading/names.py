"""Canonical names of weights, their shapes, and what Hugging Face folders and GGUF files call them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.execution.loading.architecture import Architecture

_MODEL = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm": ("model.norm.weight", "output_norm.weight"),
    "logits": ("lm_head.weight", "output.weight"),
}
_LAYER = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "o_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
    "gate_bias": ("mlp.gate_proj.bias", "ffn_gate.bias"),
    "up_bias": ("mlp.up_proj.bias", "ffn_up.bias"),
    "down_bias": ("mlp.down_proj.bias", "ffn_down.bias"),
}


LINEAR_PARTS = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""Linear layers of a layer: the weights of each lie one below another and are multiplied as one."""


@dataclass(frozen=True, slots=True)
class WeightName:
    """One weight that a model must have."""

    canonical: str
    """``embed``, ``norm``, ``logits``, or ``<layer>.<part>``."""
    hugging_face: str
    gguf: str
    shape: tuple[int, ...]


def _layer_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    q, kv, hidden, inner = a.query_columns, a.kv_columns, a.hidden_size, a.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if a.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if a.output_bias:
        shapes |= {"o_bias": (hidden,)}
    if a.mlp_bias:
        shapes |= {"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)}
    if a.qk_norm:
        shapes |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    return shapes


def weight_names(a: Architecture) -> Iterator[WeightName]:
    """Every weight that a model of this architecture has; without ``logits`` where it is tied."""
    shapes = {
        "embed": (a.vocab_size, a.hidden_size),
        "norm": (a.hidden_size,),
        "logits": (a.vocab_size, a.hidden_size),
    }
    for part, (hugging_face, gguf) in _MODEL.items():
        if part != "logits" or not a.tied:
            yield WeightName(part, hugging_face, gguf, shapes[part])
    for layer in range(a.num_layers):
        for part, shape in _layer_shapes(a).items():
            hugging_face, gguf = _LAYER[part]
            yield WeightName(
                f"{layer}.{part}", f"model.layers.{layer}.{hugging_face}", f"blk.{layer}.{gguf}", shape
            )
