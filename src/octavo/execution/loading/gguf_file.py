"""The tensors of a GGUF file, mapped and still encoded. The header is read by ``octavo.text.gguf_header``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.execution.loading.encodings import BF16, F16, F32, QUANTISED, Bytes, Encoding, quantised
from octavo.execution.loading.problems import model_error
from octavo.execution.loading.stored import StoredTensor
from octavo.text.gguf_header import GGUFTensorInfo, read_gguf_header

_FLOATS: dict[int, Encoding] = {0: F32, 1: F16, 30: BF16}
_QUANTISED_NUMBERS = {
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
}
"""GGUF's numbers of tensor types."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Raises ModelError, naming tensor and number, for a damaged header, a tensor beyond the file's end, or a type
    that is not supported."""
    header = read_gguf_header(path)
    parts = header.metadata.get("split.count", 1)
    if parts != 1:
        raise model_error(f"{path} is one of {parts} parts; merge the parts into one file first")
    data: Bytes = np.memmap(path, np.uint8, "r")
    return GGUFFile(header.metadata, {info.name: _tensor(path, data, info) for info in header.tensors})


def _tensor(path: Path, data: Bytes, info: GGUFTensorInfo) -> StoredTensor:
    encoding = _encoding(path, info)
    if not info.shape or min(info.shape) < 1 or info.shape[-1] % encoding.elements:
        raise model_error(
            f"{path} is damaged: tensor {info.name} has shape {list(info.shape)}; a row of {encoding.name} holds a "
            f"positive multiple of {encoding.elements} elements"
        )
    rows = math.prod(info.shape[:-1])
    row_bytes = info.shape[-1] // encoding.elements * encoding.nbytes
    end = info.offset + rows * row_bytes
    if end > len(data):
        raise model_error(
            f"{path} is truncated: tensor {info.name} ends at byte {end:,}, the file has {len(data):,}"
        )
    return StoredTensor(
        path, info.name, info.shape, encoding, data[info.offset : end].reshape(rows, row_bytes)
    )


def _encoding(path: Path, info: GGUFTensorInfo) -> Encoding:
    if info.ggml_type in _FLOATS:
        return _FLOATS[info.ggml_type]
    if info.ggml_type in _QUANTISED_NUMBERS:
        return quantised(_QUANTISED_NUMBERS[info.ggml_type])
    raise model_error(
        f"{path}: tensor {info.name} has the unsupported type {_type_name(info.ggml_type)}; "
        f"supported are F32, F16, BF16, {', '.join(QUANTISED)}"
    )


def _type_name(number: int) -> str:
    from gguf.constants import GGMLQuantizationType

    try:
        return f"{GGMLQuantizationType(number).name} (number {number})"
    except ValueError:
        return f"number {number}"
