"""``Recorder``: implements ``Operators`` by recording a native program. The CPU's half of ``model.py``.

Weights are packed as they are named, straight from their file; an embedding's rows stay there. Registers are chosen
when everything is known (``finish``): a value's register is taken over by a later value of the same width once nothing
reads it any more, which keeps the activations of a step to a few registers, small enough for the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.execution.loading import WeightMatrix
from octavo.execution.operator_times import LinearLayer
from octavo.execution.operators import Array, Value

Emit = Callable[[_native.Program, list[int]], None]
"""Adds one operator to a program; the list maps a value's id to its register."""


@dataclass(slots=True)
class _Step:
    """One operator to come: the values it reads (or updates in place), the one it makes, and how to record it."""

    reads: tuple[Value, ...]
    makes: Value | None
    emit: Emit


@dataclass(slots=True)
class Recorder:
    runtime: _native.Runtime
    linear_layers: list[LinearLayer] = field(default_factory=list)
    """In the order of their recording."""
    _steps: list[_Step] = field(default_factory=list)
    _widths: list[int] = field(default_factory=list)
    _per_logit_row: set[int] = field(default_factory=set)
    """Ids of values with one row a wanted token; their registers are kept apart from those with one a token."""

    def finish(self, kv: _native.KVStorage) -> _native.Program:
        """The program, over ``kv``'s blocks."""
        program = _native.Program(self.runtime, kv)
        last_use = {
            value.id: i for i, step in enumerate(self._steps) for value in (*step.reads, step.makes) if value
        }
        registers = [-1] * len(self._widths)
        idle: dict[tuple[int, bool], list[int]] = {}
        for i, step in enumerate(self._steps):
            if step.makes is not None:
                free = idle.get(self._kind(step.makes))
                registers[step.makes.id] = free.pop() if free else program.register(step.makes.width)
            step.emit(program, registers)
            for value in {*step.reads, step.makes}:
                if value is not None and last_use[value.id] == i:
                    idle.setdefault(self._kind(value), []).append(registers[value.id])
        return program

    def _kind(self, value: Value) -> tuple[int, bool]:
        return value.width, value.id in self._per_logit_row

    def _value(
        self, width: int, reads: tuple[Value, ...], emit: Callable[[_native.Program, list[int], int], None]
    ) -> Value:
        """Record an operator that makes a value of ``width`` columns, with as many rows as what it reads."""
        made = Value(len(self._widths), width)
        self._widths.append(width)
        if any(value.id in self._per_logit_row for value in reads):
            self._per_logit_row.add(made.id)
        self._steps.append(_Step(reads, made, lambda program, at: emit(program, at, at[made.id])))
        return made

    def _update(self, reads: tuple[Value, ...], emit: Emit) -> None:
        self._steps.append(_Step(reads, None, emit))

    def embed(self, table: WeightMatrix) -> Value:
        encoded = table.encoded()

        def emit(program: _native.Program, at: list[int], out: int) -> None:
            with table.damage_named():
                program.embed(out, encoded, table.dtype)

        return self._value(table.shape[1], (), emit)

    def rms_norm(self, x: Value, weight: Array, eps: float) -> Value:
        return self._value(
            x.width, (x,), lambda program, at, out: program.rms_norm(out, at[x.id], weight, eps)
        )

    def head_norm(self, x: Value, column: int, heads: int, weight: Array, eps: float) -> None:
        self._update(
            (x,), lambda program, at: program.rms_norm(at[x.id], at[x.id], weight, eps, column, heads)
        )

    def linear(self, x: Value, weight: WeightMatrix, bias: NDArray[np.float32] | None = None) -> Value:
        with weight.damage_named():
            packed = _native.Weight(self.runtime, weight.encoded(), weight.format, bias)
        self.linear_layers.append(LinearLayer(*weight.shape, packed.format, packed.nbytes))
        return self._value(
            packed.out_features, (x,), lambda program, at, out: program.linear(out, at[x.id], packed)
        )

    def rope(self, x: Value, column: int, heads: int, head_dim: int, cos: Array, sin: Array) -> None:
        self._update((x,), lambda program, at: program.rope(at[x.id], column, heads, head_dim, cos, sin))

    def store_kv(self, layer: int, x: Value, key_column: int, value_column: int) -> None:
        self._update((x,), lambda program, at: program.store_kv(layer, at[x.id], key_column, value_column))

    def paged_attention(
        self, layer: int, x: Value, query_column: int, heads: int, head_dim: int, scale: float
    ) -> Value:
        def emit(program: _native.Program, at: list[int], out: int) -> None:
            program.paged_attention(out, at[x.id], query_column, heads, layer, scale)

        return self._value(heads * head_dim, (x,), emit)

    def silu_mul(self, x: Value) -> Value:
        assert x.width % 2 == 0, "gate and up are equally wide"
        return self._value(x.width // 2, (x,), lambda program, at, out: program.silu_mul(out, at[x.id]))

    def add(self, x: Value, y: Value) -> None:
        self._update((x, y), lambda program, at: program.add(at[x.id], at[y.id]))

    def gather_rows(self, x: Value) -> Value:
        made = self._value(x.width, (x,), lambda program, at, out: program.gather_rows(out, at[x.id]))
        self._per_logit_row.add(made.id)
        return made

    def logits(self, x: Value, weight: WeightMatrix) -> None:
        """The last value made is where ``Program.run`` takes the logits from."""
        self.linear(x, weight)
