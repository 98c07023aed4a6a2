"""Decoding of stored numbers: the gguf package's bits, NaN and infinities found, bf16 to nearest even."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from native_helpers import every_path, from_bf16, runtime, small_kv, to_bf16
from octavo import _native
from octavo.execution.loading.encodings import BF16, F16, F32, QUANTISED
from octavo.execution.loading.gguf_file import _ENCODINGS, _UNSUPPORTED

ENCODINGS = [F16, *QUANTISED.values()]
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: e.name)


def expected(name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        if name == "F16":
            return raw.view(np.float16).astype(np.float32)
        return quants.dequantize(raw, GGMLQuantizationType[name])


def matrix(name: str, raw: NDArray[np.uint8], columns: int) -> _native.EncodedMatrix:
    return _native.EncodedMatrix(((name, raw),), columns)


def through_a_program(path: str, name: str, raw: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
    """The rows as an embedding gives them: decoded by the kernels of ``path``."""
    program = _native.Program(runtime(path), small_kv(runtime(path)))
    out = program.register(columns)
    program.embed(out, matrix(name, raw, columns), "f32")
    rows = len(raw)
    zeros, ids = np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32)
    values = np.empty((rows, columns), np.float32)
    program.run(ids, zeros, np.ones(rows, np.int32), np.zeros((1, 1), np.int32), zeros, ids, values)
    return values


def test_our_table_of_encodings_is_the_gguf_packages() -> None:
    for encoding in (F32, F16, BF16, *QUANTISED.values()):
        assert GGML_QUANT_SIZES[GGMLQuantizationType[encoding.name]] == (encoding.elements, encoding.nbytes)
    names = {number: encoding.name for number, encoding in _ENCODINGS.items()} | _UNSUPPORTED
    assert {number: GGMLQuantizationType(number).name for number in names} == names


@every_path
@every_encoding
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 3))
def test_finite_blocks_are_the_gguf_packages_bits(
    path: str, encoding: object, seed: int, rows: int, blocks: int
) -> None:
    """Random bytes: every code, and scales from subnormal to 65,504."""
    name, nbytes = encoding.name, encoding.nbytes  # type: ignore[attr-defined]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks * nbytes), np.uint8)
    exact = expected(name, raw)
    if not np.isfinite(exact).all():
        raw.reshape(rows * blocks, nbytes)[~np.isfinite(exact.reshape(rows * blocks, -1)).all(axis=1)] = 1
        exact = expected(name, raw)
    found = through_a_program(path, name, raw, exact.shape[1])
    assert np.array_equal(found.view(np.uint32), exact.view(np.uint32))
    assert np.array_equal(matrix(name, raw, exact.shape[1]).decode("bf16", 2), to_bf16(exact))


@every_encoding
@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E01, 0x7C01])
def test_a_scale_that_is_not_finite_is_found(encoding: object, scale: int) -> None:
    """Infinities and NaN of both kinds, as the first 16-bit number of a block; Q6_K has its scale at the end."""
    name, nbytes, elements = encoding.name, encoding.nbytes, encoding.elements  # type: ignore[attr-defined]
    raw = np.full((7, 2 * nbytes), 1, np.uint8)
    at = 2 * nbytes - 2 if name == "Q6_K" else nbytes
    raw[4, at : at + 2] = np.array([scale], np.uint16).view(np.uint8)
    exact = expected(name, raw)
    first = int(np.flatnonzero(~np.isfinite(exact[4]))[0])
    with pytest.raises(_native.NotFiniteError) as caught:
        matrix(name, raw, 2 * elements).decode("f32", 2)
    row, column, value = caught.value.args
    assert (row, column) == (4, first)
    assert np.array_equal(value, exact[4, first], equal_nan=True)


@pytest.mark.parametrize("path", _native.available_paths())
@pytest.mark.parametrize("form", ["bf16", "int8", "q4_1"])
def test_packing_and_embedding_find_it_too(path: str, form: str) -> None:
    raw = np.full((70, 20), 1, np.uint8)
    raw[33, 2:4] = np.array([0x7C00], np.uint16).view(np.uint8)
    damaged = matrix("Q4_1", raw, 32)
    with pytest.raises(_native.NotFiniteError) as caught:
        _native.Weight(runtime(path), damaged, form)
    assert caught.value.args == (33, 0, np.inf)
    program = _native.Program(runtime(path), small_kv(runtime(path)))
    with pytest.raises(_native.NotFiniteError):
        program.embed(program.register(32), damaged, "bf16")


@every_path
def test_rounding_to_bf16_is_to_nearest_even(path: str) -> None:
    ties = np.array([0x3F808000, 0x3F818000, 0x3F80FFFF, 0xBF808001, 0x00000000, 0x80000000], np.uint32)
    raw = ties.view(np.uint8).reshape(1, -1)
    assert matrix("F32", raw, 6).decode("bf16").tolist() == [[0x3F80, 0x3F82, 0x3F81, 0xBF81, 0x0000, 0x8000]]
    every = np.arange(0x7F80, dtype=np.uint16)
    raw = from_bf16(every).view(np.uint8).reshape(1, -1)
    assert np.array_equal(matrix("F32", raw, len(every)).decode("bf16")[0], every)
    program = _native.Program(runtime(path), small_kv(runtime(path)))
    out = program.register(len(every))
    program.embed(out, matrix("F32", raw, len(every)), "bf16")


def test_parts_lie_one_below_another_at_any_alignment() -> None:
    memory = np.random.default_rng(1).integers(0, 200, 3 * 34 + 1, np.uint8)
    odd = memory[1:].reshape(3, 34)
    odd[:, :2] = np.array([0.5], np.float16).view(np.uint8)
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    joined = _native.EncodedMatrix((("Q8_0", odd), ("F32", values.view(np.uint8))), 32)
    assert np.array_equal(joined.decode("f32", 2), np.concatenate([expected("Q8_0", odd), values]))


@pytest.mark.parametrize(
    ("name", "shape", "columns", "message"),
    [
        ("Q8_0", (3, 34), 33, "a multiple of 32"),
        ("Q8_0", (3, 35), 32, "a row has 35 entries and the encoding 34"),
        ("Q8_0", (0, 34), 32, "empty"),
        ("Q2_K", (1, 84), 256, "'Q2_K' is not known"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, int], columns: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        matrix(name, np.zeros(shape, np.uint8), columns)
