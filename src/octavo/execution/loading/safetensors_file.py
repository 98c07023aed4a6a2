"""Reading safetensors files, one or a sharded set, mapped; NumPy has no bf16, so tensors stay encoded bytes.

The format is eight bytes of header length, a JSON header, the data. It is parsed here because the ``safetensors``
package hands out bf16 only through a tensor library, and reports a damaged file without naming tensor or number.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from octavo.execution.loading.encodings import BF16, F16, F32, Bytes
from octavo.execution.loading.problems import model_error
from octavo.execution.loading.stored import StoredTensor

_ENCODINGS = {"F32": F32, "F16": F16, "BF16": BF16}
_NO_WEIGHTS = ("BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
"""Types of what some files carry beside their weights: positions, masks."""
_HEADER_BYTES_MAX = 100_000_000
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise model_error(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise model_error(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise model_error(f"{path} holds a {type(found).__name__}, not an object")
    return found


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name; those of types that no weight has (integers, say) are left out."""
    try:
        size = path.stat().st_size
        data: Bytes = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise model_error(f"{path} cannot be read: {error.strerror}") from error
    header, base = _header(path, data)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and (tensor := _tensor(path, name, entry, data, base)) is not None:
            tensors[name] = tensor
    return tensors


def _header(path: Path, data: Bytes) -> tuple[dict[str, Any], int]:
    """(header, offset of the data part)."""
    if len(data) < 8:
        raise model_error(f"{path} is truncated: {len(data)} bytes, fewer than the 8 of the header's length")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(len(data) - 8, _HEADER_BYTES_MAX):
        raise model_error(
            f"{path} is truncated or damaged: a header of {length} bytes in a file of {len(data)}"
        )
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise model_error(
            f"{path} is damaged: its header of {length} bytes is not valid JSON: {error}"
        ) from error
    if not isinstance(header, dict):
        raise model_error(f"{path} is damaged: its header holds a {type(header).__name__}, not an object")
    return header, 8 + length


def _tensor(path: Path, name: str, entry: Any, data: Bytes, base: int) -> StoredTensor | None:
    try:
        kind, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
        start, end = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise model_error(f"{path} is damaged: the header's entry for tensor {name} is {entry!r}") from error
    if base + end > len(data):
        raise model_error(
            f"{path} is truncated: tensor {name} ends at byte {base + end}, the file has {len(data)}"
        )
    if kind in _NO_WEIGHTS or not shape:
        return None
    if kind not in _ENCODINGS or min(shape) < 1:
        raise model_error(
            f"{path}: tensor {name} is {kind} {list(shape)}; weights of {', '.join(_ENCODINGS)} can be read"
        )
    encoding = _ENCODINGS[kind]
    nbytes = math.prod(shape) * encoding.nbytes
    if start < 0 or end - start != nbytes:
        raise model_error(
            f"{path} is damaged: tensor {name}, {kind} {list(shape)}, needs {nbytes} bytes, not {end - start}"
        )
    row_bytes = shape[-1] * encoding.nbytes
    raw = data[base + start : base + end].reshape(-1, row_bytes)
    return StoredTensor(path, name, shape, encoding, raw)


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder: of its index's shards, or of its one file."""
    if not (folder / INDEX_NAME).is_file():
        single = folder / SINGLE_NAME
        if not single.is_file():
            raise model_error(f"{folder} has no weights: neither {SINGLE_NAME} nor {INDEX_NAME} is there")
        return read_safetensors(single)
    index_path = folder / INDEX_NAME
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise model_error(f"{index_path} is damaged: it has no weight_map of tensor to file")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not (folder / shard).is_file():
            raise model_error(
                f"{folder / shard} is missing; {INDEX_NAME} names it for {_some(weight_map, shard)}"
            )
        found = read_safetensors(folder / shard)
        tensors.update(found)
    return tensors


def _some(weight_map: dict[str, str], shard: str) -> str:
    names = [name for name, file in weight_map.items() if file == shard]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
