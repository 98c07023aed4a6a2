"""What the tests of the native part share: bf16 in NumPy, one runtime a path, and programs of one operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import _native

PATHS = _native.available_paths()
DTYPES = ["f32", "bf16"]

every_path = pytest.mark.parametrize("path", PATHS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)

F32 = NDArray[np.float32]


@functools.cache
def runtime(path: str, threads: int = 2) -> _native.Runtime:
    """A shared one: starting threads for every test costs more than the tests do."""
    return _native.Runtime(path, threads)


def to_bf16(x: NDArray[Any]) -> NDArray[np.uint16]:
    """Bit patterns, rounded to nearest even. NaN and infinities are not looked after."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> F32:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """``x`` as a native array of ``dtype`` (f32 or bf16)."""
    return to_bf16(x) if dtype == "bf16" else np.ascontiguousarray(x, dtype=np.float32)


def loaded(array: NDArray[Any]) -> F32:
    """The float32 values of a native array."""
    return from_bf16(array) if array.dtype == np.uint16 else array


def small_kv(rt: _native.Runtime) -> _native.KVStorage:
    """For programs that never touch it."""
    return _native.KVStorage(rt, 4, 16, 1, 1, 8, "f32")


@dataclass(frozen=True)
class Rows:
    """The rows of one step: ``run``'s arguments between the tokens and the logits."""

    computed: NDArray[np.int32]
    scheduled: NDArray[np.int32]
    block_table: NDArray[np.int32]
    rows: NDArray[np.int32]

    @classmethod
    def single(cls, tokens: int, blocks: int = 4) -> Rows:
        """One sequence without a past in blocks 0, 1, ... ."""
        count = np.array([tokens] if tokens else [], dtype=np.int32)
        table = np.arange(blocks, dtype=np.int32)[None, :]
        return cls(np.zeros_like(count), count, table, np.zeros_like(count))


Build = Callable[[_native.Program, int], int]
"""Records operators on a program whose input register is given; returns the width of the result."""


def run_program(
    rt: _native.Runtime,
    x: F32,
    build: Build,
    *,
    kv: _native.KVStorage | None = None,
    rows: Rows | None = None,
    logit_rows: NDArray[np.int32] | None = None,
) -> F32:
    """Feed ``x`` [T, width] through the operators that ``build`` records; the last register written, float32.

    ``x`` enters as an embedding table whose token ids are 0..T-1. Give ``rows`` when T exceeds the default pool or
    an operator looks at positions, and ``logit_rows`` exactly when ``build`` gathers rows.
    """
    tokens, width = x.shape
    table = np.ascontiguousarray(x if tokens else np.zeros((1, width)), dtype=np.float32)
    program = _native.Program(rt, kv or small_kv(rt))
    source = program.register(width)
    program.embed(source, table)
    out_width = build(program, source)
    # One sequence a token when nothing looks at positions: any number of tokens then fits the little pool.
    if rows is None:
        ones = np.ones(tokens, dtype=np.int32)
        zeros = np.zeros(tokens, dtype=np.int32)
        rows = Rows(zeros, ones, np.zeros((1, 1), dtype=np.int32), zeros)
    wanted = np.arange(tokens, dtype=np.int32) if logit_rows is None else logit_rows
    result = np.full((len(wanted), out_width), np.nan, dtype=np.float32)
    program.run(
        np.arange(tokens, dtype=np.int32),
        rows.computed,
        rows.scheduled,
        rows.block_table,
        rows.rows,
        wanted,
        result,
    )
    return result
