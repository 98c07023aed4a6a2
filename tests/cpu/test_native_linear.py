"""Packed linear layers of every path against float64, and their independence of rows and threads."""

from __future__ import annotations

import numpy as np
import pytest

from native_helpers import F32, Rows, every_dtype, loaded, run_program, runtime, stored
from octavo import _native

every_path = pytest.mark.parametrize("path", _native.available_paths(variants=True))

ROUNDED = ("avx512_amx", "avx512_bf16", "avx512_bf16_dot")
"""Paths that may round x to bf16 before it is multiplied with bf16 weights."""

SHAPES = [
    (1, 1),
    (1, 7),
    (5, 1),
    (33, 63),
    (31, 65),
    (100, 33),
    (576, 576),
    (960, 576),
    (576, 1536),
    (49152, 64),
]
"""[N, K]: single outputs and inputs, ragged panels and groups, the embedded model's layers, a tall vocabulary."""


def linear(rt: _native.Runtime, x: F32, weight: _native.Weight) -> F32:
    def build(program: _native.Program, source: int) -> int:
        out = program.register(weight.out_features)
        program.linear(out, source, weight)
        return weight.out_features

    return run_program(rt, x, build)


def tolerance(path: str, dtype: str, x: F32, matrix: F32) -> np.ndarray:
    """Bound of |error| [M, N]: rounding of x to bf16 where the path does so, and of the float32 additions.

    Additions in sequence lose at most K units in the last place of the sum of absolute products; on average far less.
    """
    unit = 2.0**-8 if dtype == "bf16" and path in ROUNDED else 0.0
    return (unit + x.shape[1] * 2.0**-24) * (
        np.abs(x).astype(np.float64) @ np.abs(matrix).astype(np.float64).T
    ) + 1e-30


@every_path
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_output_is_near_float64(path: str, dtype: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[0] * 10007 + shape[1])
    rt = runtime(path)
    matrix = stored(rng.standard_normal(shape), dtype)
    bias = rng.standard_normal(shape[0]).astype(np.float32)
    plain, biased = _native.Weight(rt, matrix), _native.Weight(rt, matrix, bias)
    for rows in (1, 3, 5, 17):
        x = rng.standard_normal((rows, shape[1])).astype(np.float32)
        exact = x.astype(np.float64) @ loaded(matrix).astype(np.float64).T
        bound = tolerance(path, dtype, x, loaded(matrix))
        assert (np.abs(linear(rt, x, plain) - exact) <= bound).all()
        with_bias = exact + bias
        assert (np.abs(linear(rt, x, biased) - with_bias) <= bound + 2.0**-23 * np.abs(with_bias)).all()


@every_path
@every_dtype
def test_integers_are_exact(path: str, dtype: str) -> None:
    """Every product and sum is a small integer, so that a wrong index anywhere shows as a difference, not as noise."""
    rng = np.random.default_rng(2)
    rt = runtime(path)
    matrix = rng.integers(-8, 9, (77, 131)).astype(np.float32)
    x = rng.integers(-8, 9, (23, 131)).astype(np.float32)
    assert np.array_equal(linear(rt, x, _native.Weight(rt, stored(matrix, dtype))), x @ matrix.T)


@every_path
@every_dtype
@pytest.mark.parametrize("shape", [(100, 33), (576, 576)], ids=str)
def test_a_row_has_the_same_bits_in_any_company(path: str, dtype: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, shape[1])).astype(np.float32)
    matrix = stored(rng.standard_normal(shape), dtype)
    bias = rng.standard_normal(shape[0]).astype(np.float32)
    one, two = runtime(path, 1), runtime(path, 2)
    weight = _native.Weight(one, matrix, bias)
    alone = np.concatenate([linear(one, x[i : i + 1], weight) for i in range(len(x))])
    for rows in range(1, len(x) + 1):
        assert np.array_equal(linear(two, x[:rows], _native.Weight(two, matrix, bias)), alone[:rows]), rows
    order = rng.permutation(len(x))
    assert np.array_equal(linear(two, x[order], weight), alone[order])
    assert np.array_equal(linear(one, x[order], weight), alone[order])


@every_path
@every_dtype
@pytest.mark.parametrize("rows", [43, 128, 301])
def test_more_rows_than_a_cache_holds(path: str, dtype: str, rows: int) -> None:
    """Row blocks multiplied in several passes over the panels: none left out, none moved, the same bits as alone."""
    rng = np.random.default_rng(rows)
    matrix = rng.integers(-8, 9, (77, 1536)).astype(np.float32)
    x = rng.integers(-8, 9, (rows, 1536)).astype(np.float32)
    two = runtime(path, 2)
    assert np.array_equal(linear(two, x, _native.Weight(two, stored(matrix, dtype))), x @ matrix.T)
    x, weight = rng.standard_normal(x.shape, dtype=np.float32), _native.Weight(two, stored(matrix, dtype))
    together = linear(two, x, weight)
    for row in (0, 5, 6, rows // 2, rows - 1):
        assert np.array_equal(together[row], linear(two, x[row : row + 1], weight)[0]), row


@every_path
def test_padding_and_other_rows_do_not_leak(path: str) -> None:
    """A NaN in one row stays there, and neighbouring memory of a weight is never multiplied in."""
    rt = runtime(path)
    x = np.ones((6, 33), dtype=np.float32)
    x[2] = np.nan
    out = linear(rt, x, _native.Weight(rt, np.ones((35, 33), dtype=np.float32)))
    assert np.isnan(out[2]).all()
    assert (np.delete(out, 2, axis=0) == 33).all()


@every_path
def test_a_weight_tells_its_shape(path: str) -> None:
    rt = runtime(path)
    weight = _native.Weight(rt, np.zeros((35, 33), dtype=np.uint16))
    assert (weight.out_features, weight.in_features, weight.format) == (35, 33, "bf16")
    assert weight.nbytes >= 35 * 33 * 2
    assert _native.Weight(rt, np.zeros((2, 2), dtype=np.float32)).format == "f32"


def test_an_empty_step_computes_nothing() -> None:
    rt = runtime("portable")
    weight = _native.Weight(rt, np.ones((3, 5), dtype=np.float32))
    assert linear(rt, np.empty((0, 5), dtype=np.float32), weight).shape == (0, 3)


@pytest.mark.parametrize(
    ("matrix", "bias", "message"),
    [
        (np.zeros((3, 4), dtype=np.float64), None, "float32, or bf16"),
        (np.zeros((0, 4), dtype=np.float32), None, "empty"),
        (np.zeros((3, 0), dtype=np.float32), None, "empty"),
        (np.zeros((3, 4), dtype=np.float32), np.zeros(4, dtype=np.float32), "bias has 4"),
    ],
)
def test_a_wrong_matrix_is_refused(matrix: np.ndarray, bias: F32 | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Weight(runtime("portable"), matrix, bias)


def test_a_weight_outlives_its_sources() -> None:
    rt = runtime("portable")

    def build(program: _native.Program, source: int) -> int:
        out = program.register(2)
        program.linear(out, source, _native.Weight(rt, np.full((2, 3), 2.0, dtype=np.float32)))
        return 2

    out = run_program(rt, np.ones((4, 3), dtype=np.float32), build, rows=Rows.single(4))
    assert (out == 6).all()
