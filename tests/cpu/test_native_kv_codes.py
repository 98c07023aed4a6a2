"""Keys and values as bytes: what is kept of any float32, and that nothing else of the pool changes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kv_reference import E4M3, held
from native_helpers import F32, Rows, every_path, run_program, runtime
from octavo import _native

every_byte_dtype = pytest.mark.parametrize("dtype", ["fp8", "int8"])

DIM = 64


def kept(path: str, dtype: str, heads: F32, block_size: int = 16) -> F32:
    """``heads`` [tokens, DIM] as a pool of one head gives them back, stored as keys and as values."""
    tokens = len(heads)
    blocks = -(-tokens // block_size)
    kv = _native.KVStorage(runtime(path), blocks, block_size, 1, 1, DIM, dtype)

    def build(program: _native.Program, source: int) -> int:
        program.store_kv(0, source, 0, DIM)
        return 2 * DIM

    run_program(
        runtime(path), np.concatenate([heads, heads], axis=1), build, kv=kv, rows=Rows.single(tokens, blocks)
    )
    read = [kv.read(0, token // block_size, token % block_size) for token in range(tokens)]
    keys, values = (np.concatenate(part) for part in zip(*read, strict=True))
    np.testing.assert_array_equal(keys, values)
    return keys


def heads(scale: float, seed: int = 0) -> F32:
    x = np.random.default_rng(seed).standard_normal((20, DIM)).astype(np.float32)
    return (x * np.float32(scale)).astype(np.float32)


@every_byte_dtype
@every_path
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 300.0, 1e30])
def test_it_is_the_nearest_that_the_format_has(path: str, dtype: str, scale: float) -> None:
    x = heads(scale)
    x[0] *= np.exp2(-np.arange(DIM) / 2)  # down to where a code rounds to 0
    found = kept(path, dtype, x)
    np.testing.assert_array_equal(found, held(x, dtype))
    step = np.abs(x).max(axis=1, keepdims=True) / (448 if dtype == "fp8" else 127)
    bound = step / 2 if dtype == "int8" else np.maximum(np.abs(x) / 16, step * 2.0**-7)
    assert np.all(np.abs(found - x) <= bound * 1.0001)


@every_path
def test_ties_go_to_the_even_code(path: str) -> None:
    between = (E4M3[:-1] + E4M3[1:]) / 2
    ties: NDArray[np.float32] = np.resize(np.concatenate([between, E4M3]), (4, DIM)).astype(np.float32)
    ties[:, 0] = 448  # so that the scale is exactly 1
    for x in (ties, -ties):
        np.testing.assert_array_equal(kept(path, "fp8", x), held(x, "fp8"))
    halves: NDArray[np.float32] = np.arange(DIM, dtype=np.float32)[None] - np.float32(31.5)
    halves[:, 0] = 127
    np.testing.assert_array_equal(kept(path, "int8", halves), np.rint(halves))


@every_byte_dtype
@every_path
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_head_without_a_number_reads_as_nan_and_harms_no_other(path: str, dtype: str, wrong: float) -> None:
    x = heads(1.0)
    whole = kept(path, dtype, x)
    x[7, 3] = wrong
    found = kept(path, dtype, x)
    assert np.isnan(found[7]).all()
    others = np.arange(len(x)) != 7
    np.testing.assert_array_equal(found[others], whole[others])


@every_byte_dtype
@every_path
def test_heads_of_zeros_and_of_next_to_nothing_read_as_zeros(path: str, dtype: str) -> None:
    x = heads(1.0)
    x[3] = 0
    x[4] *= np.float32(1e-42)
    found = kept(path, dtype, x)
    assert not found[3:5].any()
    assert found[5].any()


@every_byte_dtype
@every_path
def test_huge_numbers_are_kept(path: str, dtype: str) -> None:
    x = heads(1.0)
    x[0, 0] = 3e38
    found = kept(path, dtype, x)
    assert np.isfinite(found[0]).all()
    assert found[0, 0] == pytest.approx(x[0, 0], rel=1e-6)


@every_byte_dtype
@every_path
@pytest.mark.parametrize("block_size", [1, 2, 16, 64])
def test_a_slot_depends_on_its_token_alone(path: str, dtype: str, block_size: int) -> None:
    x = heads(1.0)
    np.testing.assert_array_equal(kept(path, dtype, x, block_size), kept(path, dtype, x))
    for token in (0, 13, 19):
        np.testing.assert_array_equal(
            kept(path, dtype, x[token : token + 1]), kept(path, dtype, x)[token : token + 1]
        )


@every_byte_dtype
def test_paths_store_the_same_bytes(dtype: str) -> None:
    x = heads(1.0)
    first, *others = (kept(path, dtype, x) for path in _native.available_paths())
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match=r"'fp4'.*f32, bf16, fp8 or int8"):
        _native.KVStorage(runtime("portable"), 4, 16, 1, 1, 8, "fp4")
