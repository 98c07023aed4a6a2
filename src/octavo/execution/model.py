"""The model, described once, on ``Operators``; the same lines run on every device."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.execution.loading import LoadedModel, Weights
from octavo.execution.loading.names import LINEAR_PARTS
from octavo.execution.operators import Operators, Value
from octavo.execution.rope import rope_tables


def describe(model: LoadedModel, ops: Operators, max_len: int) -> None:
    """Call ``ops`` in execution order; positions go up to ``max_len`` - 1. Raises ModelError for a damaged weight.

    Queries, keys and values come from one linear layer, side by side, and so do gate and up: fewer, larger products
    read the activations once. Only the rows whose logits are wanted go through the last norm and the vocabulary.
    """
    a, weights = model.architecture, model.weights
    _, _, gate_up, down = LINEAR_PARTS
    rope = rope_tables(a, max_len, weights.rope_factors)
    table = weights.matrix("embed")
    x = ops.embed(table)
    for layer in range(a.num_layers):
        normed = ops.rms_norm(x, weights.vector(f"{layer}.attention_norm"), a.rms_norm_eps)
        ops.add(x, _attention(model, ops, layer, normed, rope))
        normed = ops.rms_norm(x, weights.vector(f"{layer}.mlp_norm"), a.rms_norm_eps)
        gated = ops.silu_mul(_linear(ops, weights, normed, layer, gate_up))
        ops.add(x, _linear(ops, weights, gated, layer, down))
    wanted = ops.rms_norm(ops.gather_rows(x), weights.vector("norm"), a.rms_norm_eps)
    ops.logits(wanted, table if a.tied else weights.matrix("logits"))


def _attention(
    model: LoadedModel,
    ops: Operators,
    layer: int,
    x: Value,
    rope: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> Value:
    """Columns of ``qkv``: every query head, every key head, every value head."""
    a, weights = model.architecture, model.weights
    qkv_parts, output, *_ = LINEAR_PARTS
    key_column, value_column = a.query_columns, a.query_columns + a.kv_columns
    qkv = _linear(ops, weights, x, layer, qkv_parts)
    if a.qk_norm:
        ops.head_norm(qkv, 0, a.num_heads, weights.vector(f"{layer}.q_norm"), a.rms_norm_eps)
        ops.head_norm(qkv, key_column, a.num_kv_heads, weights.vector(f"{layer}.k_norm"), a.rms_norm_eps)
    ops.rope(
        qkv, 0, a.num_heads + a.num_kv_heads, a.head_dim, *rope
    )  # queries and keys are neighbours: one pass
    ops.store_kv(layer, qkv, key_column, value_column)
    attended = ops.paged_attention(layer, qkv, 0, a.num_heads, a.head_dim, 1.0 / math.sqrt(a.head_dim))
    return _linear(ops, weights, attended, layer, output)


def _linear(ops: Operators, weights: Weights, x: Value, layer: int, parts: tuple[str, ...]) -> Value:
    """The layers ``parts`` as one, output columns side by side."""
    names = [f"{layer}.{part}" for part in parts]
    biases = [f"{name}_bias" for name in names]
    bias = weights.vector(*biases) if biases[0] in weights else None
    return ops.linear(x, weights.matrix(*names), bias)
