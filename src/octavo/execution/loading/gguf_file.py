"""The tensors of a GGUF file, mapped and still encoded. The header is read by ``octavo.text.gguf_header``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.execution.loading.encodings import BF16, F16, F32, QUANTISED, Bytes, Encoding
from octavo.execution.loading.problems import model_error
from octavo.execution.loading.stored import StoredTensor
from octavo.text.gguf_header import GGUFTensorInfo, read_gguf_header

_ENCODINGS: dict[int, Encoding] = {
    0: F32,
    1: F16,
    2: QUANTISED["Q4_0"],
    3: QUANTISED["Q4_1"],
    6: QUANTISED["Q5_0"],
    7: QUANTISED["Q5_1"],
    8: QUANTISED["Q8_0"],
    12: QUANTISED["Q4_K"],
    13: QUANTISED["Q5_K"],
    14: QUANTISED["Q6_K"],
    30: BF16,
}
_UNSUPPORTED = {
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""GGUF's numbers of tensor types, for the message that refuses one."""


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
    if (encoding := _ENCODINGS.get(info.ggml_type)) is not None:
        return encoding
    name = _UNSUPPORTED.get(info.ggml_type)
    kind = f"number {info.ggml_type}" if name is None else f"{name} (number {info.ggml_type})"
    raise model_error(
        f"{path}: tensor {info.name} has the unsupported type {kind}; "
        f"supported are F32, F16, BF16, {', '.join(QUANTISED)}"
    )
