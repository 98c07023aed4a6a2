"""``Weights``: a model's weights by canonical name, decoded when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.execution.loading.architecture import Architecture
from octavo.execution.loading.encodings import Target
from octavo.execution.loading.names import weight_names
from octavo.execution.loading.problems import model_error
from octavo.execution.loading.stored import Array, StoredTensor, damage_named, decode, encoded

Quantization = Literal["int8", "gguf"]
"""How linear layers are kept where not in full: as bytes with a scale an output, or in the file's own blocks."""

KEPT_BLOCKS = ("Q4_0", "Q4_1", "Q8_0")
"""Encodings of GGUF files that the kernels multiply as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightMatrix:
    """One matrix of a model, still encoded: the rows of its tensors, one below another."""

    tensors: tuple[StoredTensor, ...]
    dtype: Target
    """Element type that its numbers are wanted in."""
    format: str
    """How a linear layer keeps it: ``dtype``, int8, or q4_0, q4_1, q8_0 for the file's own blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        return sum(tensor.rows for tensor in self.tensors), self.tensors[0].columns

    def array(self) -> Array:
        """Its numbers, float32 or uint16 (bf16). Raises ModelError where one is NaN or infinite."""
        return decode(self.tensors, self.dtype)

    def encoded(self) -> _native.EncodedMatrix:
        """For the native part, which decodes while it packs; refers to the file."""
        return encoded(self.tensors)

    def damage_named(self) -> AbstractContextManager[None]:
        """In it, what the native part says about a damaged number is a ModelError that names file and tensor."""
        return damage_named(self.tensors)


class Weights:
    """Nothing is kept: an array belongs to whoever asked for it, so that a model is never twice in memory."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        dtype: Target,
        rope_factors: NDArray[np.float32] | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        self._tensors = tensors
        self.dtype: Target = dtype
        self.quantization = quantization
        self.rope_factors = rope_factors
        """float32 [rotary / 2]: divides each rotary frequency (GGUF's rope_freqs), or None."""

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self._tensors.values())

    def matrix(self, *names: str) -> WeightMatrix:
        """The rows of the named matrices, one below another."""
        tensors = tuple(self._tensors[name] for name in names)
        return WeightMatrix(tensors, self.dtype, self._format(tensors))

    def _format(self, tensors: tuple[StoredTensor, ...]) -> str:
        if self.quantization == "int8":
            return "int8"
        [encoding, *others] = {tensor.encoding.name for tensor in tensors}
        if self.quantization == "gguf" and not others and encoding in KEPT_BLOCKS:
            return encoding.lower()
        return self.dtype

    def vector(self, *names: str) -> NDArray[np.float32]:
        """The elements of the named vectors, one after another; float32 in every dtype: norms and biases are small."""
        parts: list[NDArray[np.float32]] = [
            decode([self._tensors[name]], "f32").reshape(-1) for name in names
        ]
        return np.ascontiguousarray(np.concatenate(parts))


def choose(
    source: Path, architecture: Architecture, tensors: Mapping[str, StoredTensor], *, gguf: bool
) -> dict[str, StoredTensor]:
    """The tensors that ``architecture`` needs, by canonical name.

    Raises ModelError naming the tensor that is missing or has another shape.
    """
    chosen = {}
    for wanted in weight_names(architecture):
        name = wanted.gguf if gguf else wanted.hugging_face
        tensor = tensors.get(name)
        if tensor is None:
            raise model_error(
                f"{source}: tensor {name} is missing; {architecture.family} of {architecture.num_layers} layers has it"
            )
        if tensor.shape != wanted.shape:
            raise model_error(
                f"{tensor.file}: tensor {name} has shape {list(tensor.shape)}, "
                f"the model's settings say {list(wanted.shape)}"
            )
        chosen[wanted.canonical] = tensor
    return chosen


def rotate_half_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Row order that takes GGUF's llama layout to Hugging Face's: out[i] = stored[order[i]].

    llama's rotary pairs are neighbours (0 1) (2 3) ..., rotate-half pairs are half a head apart; the converter stored
    the rows of each query and key head as first of each half, second of each half, and so on.
    """
    stored = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return np.ascontiguousarray(stored.transpose(0, 2, 1)).reshape(-1)


def unpermute(architecture: Architecture, tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Queries and keys (and their biases) of a permuted GGUF file, in rotate-half order."""
    orders = {
        "q": rotate_half_order(architecture.num_heads, architecture.head_dim),
        "k": rotate_half_order(architecture.num_kv_heads, architecture.head_dim),
    }
    ordered = {}
    for name, tensor in tensors.items():
        part = name.rpartition(".")[2].removesuffix("_bias")
        ordered[name] = tensor.reordered(orders[part]) if part in orders else tensor
    return ordered
