"""``StoredTensor``: one tensor as it lies in a file, and its rows in the element type that is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.execution.loading.encodings import BF16, F32, Bytes, Encoding, Target, round_to_bf16
from octavo.execution.loading.problems import model_error

Array = NDArray[Any]

_CHUNK_ELEMENTS = 1 << 16
"""Elements decoded at a time: the float32 intermediates of a chunk stay in a core's second-level cache."""

_THREADS_MAX = 8
"""Decoding is bound by memory beyond a few threads."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """One tensor of a file, still encoded; ``raw`` is a view of the mapped file, so that nothing is read yet."""

    file: Path
    name: str
    shape: tuple[int, ...]
    """As the model sees it: [rows, columns] or [columns]."""
    encoding: Encoding
    raw: Bytes
    """uint8 [rows, bytes of a row]."""

    @property
    def rows(self) -> int:
        return len(self.raw)

    @property
    def columns(self) -> int:
        return self.shape[-1]

    def reordered(self, order: NDArray[np.intp]) -> StoredTensor:
        """The same tensor with its rows (or, of a vector, its elements) in another order; copies encoded bytes."""
        if len(self.shape) == 1:
            element = self.raw.reshape(len(order), -1)
            return replace(self, raw=np.ascontiguousarray(element[order]).reshape(1, -1))
        return replace(self, raw=np.ascontiguousarray(self.raw[order]))


def _decode_rows(tensor: StoredTensor, first: int, last: int, target: Target, out: Array) -> None:
    """Decode rows ``first`` to ``last`` into ``out`` [last - first, columns]. Raises ModelError for NaN or infinity.

    Every number of a quantised block is a sum of products with the block's scales: where a scale is not finite, none of
    them is, and the first tells.
    """
    encoding = tensor.encoding
    blocks = tensor.raw[first:last].reshape(-1, encoding.nbytes)
    with np.errstate(all="ignore"):  # a damaged scale is reported below, by name
        values = encoding.decode(blocks).reshape(last - first, tensor.columns)
    if not np.isfinite(
        values if encoding.elements == 1 else values.reshape(-1, encoding.elements)[:, 0]
    ).all():
        row, column = (int(i[0]) for i in np.nonzero(~np.isfinite(values)))
        raise model_error(
            f"{tensor.file}: tensor {tensor.name} holds {values[row, column]} at row {first + row}, column {column}; "
            "the file is damaged"
        )
    out[...] = round_to_bf16(np.ascontiguousarray(values)) if target == "bf16" else values


def _stored_as(tensor: StoredTensor, target: Target) -> Array | None:
    """The tensor as a view of its file, if it is stored in ``target`` already."""
    if tensor.encoding is F32 and target == "f32":
        view = tensor.raw.view("<f4")
    elif tensor.encoding is BF16 and target == "bf16":
        view = tensor.raw.view("<u2")
    else:
        return None
    return np.require(view, requirements=["C", "A"])  # copies only where the file does not align it


def decode(tensors: Sequence[StoredTensor], target: Target) -> Array:
    """The rows of ``tensors``, one below another: float32 or uint16 (bf16) [sum of rows, columns].

    A single tensor stored in the wanted type is a view of its file. Decoding releases the GIL in NumPy, so chunks
    run on threads of their own; they end with the call. Raises ModelError for NaN or infinity.
    """
    if len(tensors) == 1 and (view := _stored_as(tensors[0], target)) is not None:
        return view
    columns = tensors[0].columns
    out = np.empty((sum(t.rows for t in tensors), columns), np.float32 if target == "f32" else np.uint16)
    step = max(1, _CHUNK_ELEMENTS // columns)
    work: list[tuple[StoredTensor, int, int, Array]] = []
    base = 0
    for tensor in tensors:
        if (view := _stored_as(tensor, target)) is not None:
            out[base : base + tensor.rows] = view
        else:
            for first in range(0, tensor.rows, step):
                last = min(first + step, tensor.rows)
                work.append((tensor, first, last, out[base + first : base + last]))
        base += tensor.rows
    _run(work, target)
    return out


def _run(work: Sequence[tuple[StoredTensor, int, int, Array]], target: Target) -> None:
    workers = min(len(work), os.cpu_count() or 1, _THREADS_MAX)

    def share(pieces: Iterable[tuple[StoredTensor, int, int, Array]]) -> None:
        for tensor, first, last, out in pieces:
            _decode_rows(tensor, first, last, target, out)

    if workers <= 1:
        share(work)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(share, [work[i::workers] for i in range(workers)]))
