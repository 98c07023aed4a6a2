"""``Operators`` in NumPy float64, with its own paged KV: checks a model's description without the native part.

Weights keep the values that they are stored with (bf16 included); every sum and product is float64, and keys and
values are stored as float64, so that what it says is exact but for the weights' own rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from native_helpers import loaded
from octavo.execution.loading import LoadedModel, WeightMatrix
from octavo.execution.model import describe
from octavo.execution.operators import Array, Value

Doubles = NDArray[np.float64]


def as_float64(weight: WeightMatrix) -> Doubles:
    """What is stored as float32 or bf16 bits, as float64, exactly."""
    return loaded(weight.array()).astype(np.float64)


@dataclass
class Step:
    """The arrays of one step, named as in ``StepPlan``; ``wanted`` are token indices whose logits are asked for."""

    token_ids: NDArray[np.int32]
    rows: NDArray[np.int32]
    computed: NDArray[np.int32]
    scheduled: NDArray[np.int32]
    block_table: NDArray[np.int32]
    wanted: NDArray[np.int32]
    row_of: NDArray[np.int64] = field(init=False)
    """Block-table row of each token."""
    positions: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.row_of = np.repeat(self.rows.astype(np.int64), self.scheduled)
        offsets = [
            np.arange(first, first + n) for first, n in zip(self.computed, self.scheduled, strict=True)
        ]
        self.positions = np.concatenate(offsets) if offsets else np.empty(0, np.int64)


class NumpyOperators:
    """Records closures; ``run`` calls them for one step. Unwritten slots are NaN."""

    def __init__(
        self, num_blocks: int, block_size: int, num_layers: int, num_kv_heads: int, head_dim: int
    ) -> None:
        self.block_size = block_size
        self.kv_heads, self.head_dim = num_kv_heads, head_dim
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_dim)
        self.keys, self.values = np.full(shape, np.nan), np.full(shape, np.nan)
        self._program: list[Callable[[], None]] = []
        self._registers: list[Doubles] = []
        self._step: Step
        self._logits: Doubles

    def run(self, step: Step) -> Doubles:
        """Logits, float64 [len(wanted), vocab]."""
        self._step = step
        for operator in self._program:
            operator()
        return self._logits

    def _value(self, width: int, compute: Callable[[], Doubles]) -> Value:
        index = len(self._registers)
        self._registers.append(np.empty((0, width)))

        def operator() -> None:
            self._registers[index] = compute()
            assert self._registers[index].shape[1] == width

        self._program.append(operator)
        return Value(index, width)

    def _of(self, x: Value) -> Doubles:
        return self._registers[x.id]

    def embed(self, table: WeightMatrix) -> Value:
        rows = as_float64(table)
        return self._value(table.shape[1], lambda: rows[self._step.token_ids].copy())

    def rms_norm(self, x: Value, weight: Array, eps: float) -> Value:
        return self._value(x.width, lambda: _rms_norm(self._of(x), weight, eps))

    def head_norm(self, x: Value, column: int, heads: int, weight: Array, eps: float) -> None:
        def operator() -> None:
            view = self._of(x)[:, column : column + heads * len(weight)]
            view[...] = _rms_norm(view.reshape(len(view), heads, -1), weight, eps).reshape(view.shape)

        self._program.append(operator)

    def linear(self, x: Value, weight: WeightMatrix, bias: NDArray[np.float32] | None = None) -> Value:
        transposed = as_float64(weight).T
        added = 0.0 if bias is None else bias.astype(np.float64)
        return self._value(weight.shape[0], lambda: self._of(x) @ transposed + added)

    def rope(self, x: Value, column: int, heads: int, head_dim: int, cos: Array, sin: Array) -> None:
        half = cos.shape[1]

        def operator() -> None:
            c = cos[self._step.positions].astype(np.float64)[:, None]
            s = sin[self._step.positions].astype(np.float64)[:, None]
            view = self._of(x)[:, column : column + heads * head_dim]
            turned = view.reshape(len(view), heads, head_dim).copy()
            first, second = turned[..., :half].copy(), turned[..., half : 2 * half].copy()
            turned[..., :half] = first * c - second * s
            turned[..., half : 2 * half] = second * c + first * s
            view[...] = turned.reshape(view.shape)

        self._program.append(operator)

    def _slots(self, row: NDArray[np.int64] | int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        blocks = self._step.block_table[row, positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size

    def store_kv(self, layer: int, x: Value, key_column: int, value_column: int) -> None:
        width = self.kv_heads * self.head_dim

        def operator() -> None:
            slots, heads = (
                self._slots(self._step.row_of, self._step.positions),
                (-1, self.kv_heads, self.head_dim),
            )
            self.keys[layer, slots] = self._of(x)[:, key_column : key_column + width].reshape(heads)
            self.values[layer, slots] = self._of(x)[:, value_column : value_column + width].reshape(heads)

        self._program.append(operator)

    def paged_attention(
        self, layer: int, x: Value, query_column: int, heads: int, head_dim: int, scale: float
    ) -> Value:
        width, group = heads * head_dim, heads // self.kv_heads

        def compute() -> Doubles:
            step = self._step
            queries = self._of(x)[:, query_column : query_column + width].reshape(-1, heads, head_dim)
            out = np.empty_like(queries)
            for row in np.unique(step.row_of).tolist():
                mine = step.row_of == row
                own = step.positions[mine]
                context = np.arange(own.max() + 1)
                slots = self._slots(row, context)
                keys = np.repeat(self.keys[layer, slots], group, axis=1)
                values = np.repeat(self.values[layer, slots], group, axis=1)
                scores = np.einsum("thd,chd->htc", queries[mine], keys) * scale
                scores[:, context > own[:, None]] = -np.inf
                weights = np.exp(scores - scores.max(axis=2, keepdims=True))
                weights /= weights.sum(axis=2, keepdims=True)
                out[mine] = np.einsum("htc,chd->thd", weights, values)
            return out.reshape(-1, width)

        return self._value(width, compute)

    def silu_mul(self, x: Value) -> Value:
        half = x.width // 2

        def compute() -> Doubles:
            gate, up = self._of(x)[:, :half], self._of(x)[:, half:]
            return gate / (1.0 + np.exp(-gate)) * up

        return self._value(half, compute)

    def add(self, x: Value, y: Value) -> None:
        def operator() -> None:
            self._of(x)[...] += self._of(y)

        self._program.append(operator)

    def gather_rows(self, x: Value) -> Value:
        return self._value(x.width, lambda: self._of(x)[self._step.wanted].copy())

    def logits(self, x: Value, weight: WeightMatrix) -> None:
        transposed = as_float64(weight).T

        def operator() -> None:
            self._logits = self._of(x) @ transposed

        self._program.append(operator)


def _rms_norm(x: Doubles, weight: Array, eps: float) -> Any:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight.astype(np.float64)


def float64_logits(
    model: LoadedModel, token_ids: NDArray[np.int32], chunks: tuple[int, ...] = (), block_size: int = 4
) -> Doubles:
    """Logits at every position of one sequence, float64 [len(token_ids), vocab].

    ``chunks`` are prefill chunk lengths (the rest is one chunk); blocks are handed out in a scrambled order.
    """
    a, length = model.architecture, len(token_ids)
    num_blocks = -(-length // block_size)
    ops = NumpyOperators(num_blocks, block_size, a.num_layers, a.num_kv_heads, a.head_dim)
    describe(model, ops, length)
    table = np.random.default_rng(length).permutation(num_blocks).astype(np.int32)[None]
    logits, done = [], 0
    for chunk in (*chunks, length - sum(chunks)):
        one = np.array([chunk], np.int32)
        step = Step(
            token_ids[done : done + chunk],
            np.zeros(1, np.int32),
            np.array([done], np.int32),
            one,
            table,
            np.arange(chunk, dtype=np.int32),
        )
        logits.append(ops.run(step))
        done += chunk
    return np.concatenate(logits)
