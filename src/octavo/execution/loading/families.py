"""The registry of model families, and how each describes itself in config.json and in GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from octavo.execution.loading.architecture import Architecture, RopeScaling
from octavo.execution.loading.fields import Fields
from octavo.execution.loading.problems import model_error


@dataclass(frozen=True, slots=True)
class Family:
    """What tells one family from the others; everything else is read from the model's own settings."""

    name: str
    hf_architecture: str
    gguf_architecture: str | None
    """None: GGUF files of this family call themselves by another's name."""
    gguf_permuted: bool
    """Whether GGUF files interleave the two halves of each query and key head (llama's rotary order)."""
    qkv_bias: bool | None = None
    """Whether queries, keys and values have biases; None: the field attention_bias says so."""
    qk_norm: bool = False
    sliding_window_switch: bool = False
    """Whether sliding_window counts only where use_sliding_window is true."""


FAMILIES = (
    Family("llama", "LlamaForCausalLM", "llama", gguf_permuted=True),
    Family("mistral", "MistralForCausalLM", None, gguf_permuted=True, qkv_bias=False),
    Family(
        "qwen2", "Qwen2ForCausalLM", "qwen2", gguf_permuted=False, qkv_bias=True, sliding_window_switch=True
    ),
    Family(
        "qwen3", "Qwen3ForCausalLM", "qwen3", gguf_permuted=False, qk_norm=True, sliding_window_switch=True
    ),
)
"""GGUF files of Mistral models call themselves llama, which describes them as well."""


def from_hf_config(config: Fields) -> tuple[Family, Architecture]:
    """From a config.json. Raises ModelError for a family that is not in the registry, or a setting that is wrong."""
    family = _hf_family(config)
    if config.get("quantization_config") is not None:
        raise model_error(f"{config.source}: quantised safetensors are not supported; use a GGUF file")
    if config.text("hidden_act", "silu") != "silu":
        raise config.error("hidden_act", "'silu'")
    num_heads, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    head_dim = config.integer("head_dim", max(1, hidden_size // num_heads))
    rope = config.inner("rope_parameters") or config
    max_len = config.integer("max_position_embeddings")
    scaling = _hf_scaling(config, max_len)
    if scaling.kind == "yarn":  # configs give the original length here, and the factor is meant to stretch it
        max_len = max(max_len, int(scaling.original_max_len * scaling.factor))
    attention_bias = config.flag("attention_bias")
    partial = rope.optional_number("partial_rotary_factor") or config.number("partial_rotary_factor", 1.0)
    architecture = Architecture(
        family=family.name,
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        max_position_embeddings=max_len,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", config.number("rope_theta", 10_000.0)),
        rotary_dim=int(head_dim * partial),
        rope_scaling=scaling,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=config.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        tied=config.flag("tie_word_embeddings"),
        sliding_window=_sliding_window(config, family),
    )
    return family, _consistent(config.source, architecture)


def _hf_family(config: Fields) -> Family:
    found = config.get("architectures")
    names = found if isinstance(found, list) else []
    for family in FAMILIES:
        if family.hf_architecture in names or (not names and config.get("model_type") == family.name):
            return family
    what = ", ".join(map(str, names)) or f"model_type {config.get('model_type')!r}"
    known = ", ".join(family.hf_architecture for family in FAMILIES)
    raise model_error(f"{config.source}: the architecture {what} is not supported; supported are {known}")


def _sliding_window(config: Fields, family: Family) -> int | None:
    if family.sliding_window_switch and not config.flag("use_sliding_window"):
        return None
    return None if config.get("sliding_window") is None else config.integer("sliding_window")


def _hf_scaling(config: Fields, max_len: int) -> RopeScaling:
    """From rope_scaling, or from rope_parameters, its newer name."""
    rope = config.inner("rope_scaling") or config.inner("rope_parameters")
    kind = "default" if rope is None else rope.text("rope_type", rope.text("type", "default"))
    if rope is None or kind == "default":
        return RopeScaling()
    if kind not in ("linear", "llama3", "yarn"):
        raise model_error(
            f"{rope.source}: rope type {kind!r} is not supported; supported are default, linear, llama3, yarn"
        )
    factor, original = rope.number("factor"), rope.integer("original_max_position_embeddings", max_len)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise rope.error("high_freq_factor", f"above low_freq_factor ({low})")
        return RopeScaling("llama3", factor, original, low_freq_factor=low, high_freq_factor=high)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.optional_number("attention_factor"),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        truncate=rope.flag("truncate", True),
    )


def from_gguf(
    source: str, metadata: Mapping[str, object], tensors: Container[str], vocab_size: int
) -> tuple[Family, Architecture]:
    """From GGUF metadata; whether there are biases or separate logits is seen from the tensors' names."""
    name = Fields(source, metadata).text("general.architecture")
    family = next((f for f in FAMILIES if f.gguf_architecture == name), None)
    if family is None:
        known = ", ".join(f.gguf_architecture for f in FAMILIES if f.gguf_architecture)
        raise model_error(f"{source}: the architecture {name!r} is not supported; supported are {known}")
    fields = Fields(source, metadata, f"{name}.")
    if fields.integer("expert_count", 0, at_least=0):
        raise model_error(f"{source}: a mixture of {fields.get('expert_count')} experts is not supported")
    num_heads, hidden_size = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", max(1, hidden_size // num_heads))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.error("attention.value_length", f"attention.key_length ({head_dim})")
    max_len = fields.integer("context_length")
    architecture = Architecture(
        family=family.name,
        num_layers=fields.integer("block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=max_len,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10_000.0),
        rotary_dim=fields.integer("rope.dimension_count", head_dim),
        rope_scaling=_gguf_scaling(fields, max_len),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=family.qk_norm,
        tied="output.weight" not in tensors,
        sliding_window=None
        if fields.get("attention.sliding_window") is None
        else fields.integer("attention.sliding_window", at_least=0) or None,
    )
    return family, _consistent(source, architecture)


def _gguf_scaling(fields: Fields, max_len: int) -> RopeScaling:
    """llama3's scaling has no metadata: it lies in the tensor rope_freqs, which the tables divide by."""
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return RopeScaling()
    factor = fields.number("rope.scaling.factor")
    original = fields.integer("rope.scaling.original_context_length", max_len)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "yarn":
        # Unlike in config.json, the file's factor multiplies the derived one.
        attention = fields.number("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(max(factor, 1.0)) + 1.0)
        return RopeScaling(
            "yarn",
            factor,
            original,
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=attention,
        )
    raise fields.error("rope.scaling.type", "none, linear or yarn")


def _consistent(source: str, a: Architecture) -> Architecture:
    """Sizes that must go together. Raises ModelError."""
    if a.num_heads % a.num_kv_heads:
        raise model_error(
            f"{source}: {a.num_heads} query heads do not divide among {a.num_kv_heads} kv heads"
        )
    if a.rotary_dim % 2 or not 2 <= a.rotary_dim <= a.head_dim:
        raise model_error(
            f"{source}: {a.rotary_dim} rotary dimensions of a head of {a.head_dim}; an even number from 2 to "
            f"{a.head_dim} is needed"
        )
    if a.rope_theta <= 1:
        raise model_error(f"{source}: the rotary base is {a.rope_theta}; it must be above 1")
    return a
