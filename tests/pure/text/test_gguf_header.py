"""The GGUF header: equal to what the gguf package wrote, and no damage that is not named."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import ModelError
from octavo.text.gguf_header import MAGIC, read_gguf_header


def written(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("u", 7)
    writer.add_int64("i", -3)
    writer.add_float32("f", 0.5)
    writer.add_bool("b", True)
    writer.add_string("s", "naïve ▁")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("strings", ["a", "", "é"])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("gguf") / "small.gguf")


def test_metadata_as_written(file: Path) -> None:
    metadata = read_gguf_header(file).metadata
    wanted = {"general.architecture": "llama", "u": 7, "i": -3, "f": 0.5, "b": True, "s": "naïve ▁"}
    assert {key: metadata[key] for key in wanted} == wanted
    assert (metadata["numbers"], metadata["strings"]) == ([1, 2, 3], ["a", "", "é"])


def test_tensors_lie_where_the_header_says(file: Path) -> None:
    first, second = read_gguf_header(file).tensors
    assert (first.name, first.shape, first.ggml_type) == ("first", (2, 3), gguf.GGMLQuantizationType.F32)
    assert (second.name, second.shape, second.ggml_type) == ("second", (5,), gguf.GGMLQuantizationType.F16)
    data = file.read_bytes()
    assert np.frombuffer(data, np.float32, 6, first.offset).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.frombuffer(data, np.float16, 5, second.offset).tolist() == [1] * 5


@given(st.data())
def test_a_cut_file_is_named(file: Path, data: st.DataObject) -> None:
    header = read_gguf_header(file)
    cut = data.draw(
        st.integers(0, header.data_offset - 32)
    )  # up to 31 bytes of padding may be missing unnoticed
    short = file.with_name("short.gguf")
    short.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"damaged or cut short|not a GGUF file"):
        read_gguf_header(short)


@given(st.data())
def test_a_changed_byte_never_escapes(file: Path, data: st.DataObject) -> None:
    """It may go unnoticed, or be named; it may not hang, take all memory or raise anything else."""
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    changed = file.with_name("changed.gguf")
    changed.write_bytes(bytes(content))
    try:
        read_gguf_header(changed)
    except ModelError as error:
        assert str(changed) in error.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 not a model", "is not a GGUF file"),
        (MAGIC + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (MAGIC + struct.pack("<IQQ", 3, 0, 2**62), "metadata keys cannot follow"),
        (MAGIC + struct.pack("<IQQ", 3, 2**62, 0), "tensors cannot follow"),
        (MAGIC + struct.pack("<IQQQsIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**61), "array elements cannot follow"),
        (MAGIC + struct.pack("<IQQQsI8x", 3, 0, 1, 1, b"k", 77), "unknown value type 77"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_gguf_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_gguf_header(tmp_path / "absent.gguf")
