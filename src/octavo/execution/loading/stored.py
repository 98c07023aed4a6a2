"""``StoredTensor``: one tensor as it lies in a file, and its rows in the element type that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.core.machine import usable_cores
from octavo.execution.loading.encodings import BF16, F32, Bytes, Encoding, Target
from octavo.execution.loading.problems import model_error

Array = NDArray[Any]

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


def encoded(tensors: Sequence[StoredTensor]) -> _native.EncodedMatrix:
    """The rows of ``tensors``, one below another, for the native part; refers to their bytes."""
    parts = tuple((tensor.encoding.name, tensor.raw) for tensor in tensors)
    return _native.EncodedMatrix(parts, tensors[0].columns)


@contextmanager
def damage_named(tensors: Sequence[StoredTensor]) -> Iterator[None]:
    """Turns what the native part says about a damaged number into a ModelError that names file and tensor."""
    try:
        yield
    except _native.NotFiniteError as error:
        row, column, value = error.args
        for tensor in tensors:
            if row < tensor.rows:
                break
            row -= tensor.rows
        raise model_error(
            f"{tensor.file}: tensor {tensor.name} holds {value} at row {row}, column {column}; the file is damaged"
        ) from None


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

    A single tensor stored in the wanted type is a view of its file. Raises ModelError for NaN or infinity.
    """
    if len(tensors) == 1 and (view := _stored_as(tensors[0], target)) is not None:
        return view
    with damage_named(tensors):
        return encoded(tensors).decode(target, min(usable_cores(), _THREADS_MAX))
