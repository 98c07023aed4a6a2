"""Quantised linear layers of every path against the exact products of their codes, and their independence of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from native_helpers import F32, run_program, runtime
from octavo import _native

every_path = pytest.mark.parametrize("path", _native.available_paths(variants=True))
every_form = pytest.mark.parametrize("form", ["int8", "q4_0", "q4_1", "q8_0"])
every_block_form = pytest.mark.parametrize("form", ["q4_0", "q4_1", "q8_0"])

INT8_SHAPES = [(1, 1), (5, 7), (33, 63), (31, 65), (100, 129), (960, 576), (576, 1536), (3000, 64)]
BLOCK_SHAPES = [(1, 32), (5, 64), (33, 96), (31, 160), (100, 32), (960, 576), (576, 1536), (3000, 64)]
"""[N, K]: ragged panels and groups, and the embedded model's layers."""

Doubles = NDArray[np.float64]


@dataclass
class Layer:
    """A weight, and the exact numbers that its codes stand for."""

    weight: _native.Weight
    codes: NDArray[np.int64]
    """[N, K]"""
    scales: Doubles
    """[N, K / group]"""
    minima: Doubles
    group: int


def linear(rt: _native.Runtime, x: F32, weight: _native.Weight) -> F32:
    def build(program: _native.Program, source: int) -> int:
        out = program.register(weight.out_features)
        program.linear(out, source, weight)
        return weight.out_features

    return run_program(rt, x, build)


def round_to_codes(x: F32) -> tuple[NDArray[np.int64], F32]:
    """Each row to codes of -127 to 127 and a scale, as the kernels do it: in float32, ties to even."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        factor = np.where(largest < 2.0**-100, np.float32(0), np.float32(127) / largest)
    return np.rint(x * factor).astype(np.int64), largest / np.float32(127)


def round_weights(path: str, values: F32) -> tuple[NDArray[np.int64], F32]:
    """Each row to int8 codes and a scale. On avx2 four codes meet at 16 bits: 254 in all at most."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    if path.startswith("avx2"):
        padded = np.pad(np.abs(values), ((0, 0), (0, -values.shape[1] % 8)))
        lanes = padded.reshape(len(values), -1, 2, 2, 2)  # run of 8, quad, lane, element
        sums = lanes[:, :, 0, :, 0] + lanes[:, :, 0, :, 1] + lanes[:, :, 1, :, 0] + lanes[:, :, 1, :, 1]
        largest = np.maximum(largest, sums.max(axis=(1, 2))[:, None] * (np.float32(127) / np.float32(252)))
    with np.errstate(divide="ignore"):
        factor = np.where(largest < 2.0**-100, np.float32(0), np.float32(127) / largest)
    return np.rint(values * factor).astype(np.int64), largest / np.float32(127)


def make(rt: _native.Runtime, form: str, shape: tuple[int, int], bias: F32 | None = None) -> Layer:
    rng = np.random.default_rng(shape[0] * 10007 + shape[1])
    values = rng.standard_normal(shape).astype(np.float32)
    values[shape[0] // 2] = 0
    if form == "int8":
        codes, scales = round_weights(rt.path, values)
        stored = _native.EncodedMatrix((("F32", values.view(np.uint8)),), shape[1])
        weight = _native.Weight(rt, stored, form, bias)
        groups = -(-shape[1] // 64)
        padded = np.pad(codes, ((0, 0), (0, groups * 64 - shape[1])))
        each = np.repeat(scales.astype(np.float64), groups, axis=1)
        return Layer(weight, padded, each, np.zeros_like(each), 64)
    raw = quants.quantize(values, GGMLQuantizationType[form.upper()])
    if form == "q8_0":
        raw[0, 2:34] = 0x80  # -128, which rounding never gives but a file may hold
    blocks = raw.reshape(shape[0], shape[1] // 32, -1)
    halves = 2 if form == "q4_1" else 1
    scales = np.ascontiguousarray(blocks[..., : 2 * halves]).view(np.float16).astype(np.float64)
    stored_codes = blocks[..., 2 * halves :]
    if form == "q8_0":
        codes = stored_codes.view(np.int8).astype(np.int64)
    else:
        codes = np.concatenate([stored_codes & 15, stored_codes >> 4], axis=-1).astype(np.int64)
        codes -= 8 if form == "q4_0" else 0
    minima = scales[..., 1] if form == "q4_1" else np.zeros(scales.shape[:2])
    stored = _native.EncodedMatrix(((form.upper(), raw),), shape[1])
    return Layer(_native.Weight(rt, stored, form, bias), codes.reshape(shape), scales[..., 0], minima, 32)


def exact(layer: Layer, x: F32) -> tuple[Doubles, Doubles]:
    """The product of the codes in integers, scaled in float64; and the sum of the terms' magnitudes."""
    rows, columns = len(x), layer.codes.shape[1]
    groups = columns // layer.group
    x = np.pad(x, ((0, 0), (0, columns - x.shape[1])))
    codes, scales = round_to_codes(x.reshape(rows * groups, layer.group))
    codes = codes.reshape(rows, groups, layer.group)
    row_scales = scales.reshape(rows, groups).astype(np.float64)
    weights = layer.codes.reshape(len(layer.codes), groups, layer.group)
    total, size = np.zeros((rows, len(weights))), np.zeros((rows, len(weights)))
    for group in range(groups):
        dots = (
            (codes[:, group] @ weights[:, group].T)
            * row_scales[:, group, None]
            * layer.scales[None, :, group]
        )
        moved = (
            codes[:, group].sum(axis=1, keepdims=True)
            * row_scales[:, group, None]
            * layer.minima[None, :, group]
        )
        total += dots + moved
        size += np.abs(dots) + np.abs(moved)
    return total, size


@every_path
@every_form
def test_every_output_is_the_exact_product_of_codes(path: str, form: str) -> None:
    """But for the few float32 roundings that follow the integer sums."""
    rt = runtime(path)
    for shape in INT8_SHAPES if form == "int8" else BLOCK_SHAPES:
        rng = np.random.default_rng(shape[0])
        bias = rng.standard_normal(shape[0]).astype(np.float32)
        plain, biased = make(rt, form, shape), make(rt, form, shape, bias)
        for rows in (1, 2, 3, 5, 17):
            x = (rng.standard_normal((rows, shape[1])) * 10.0 ** rng.integers(-3, 4, (rows, 1))).astype(
                np.float32
            )
            x[-1] *= rows % 2  # now and then a row of zeros
            total, size = exact(plain, x)
            bound = (6 + 2 * shape[1] / plain.group) * 2.0**-24 * size + 1e-30
            assert (np.abs(linear(rt, x, plain.weight) - total) <= bound).all(), (shape, rows)
            error = np.abs(linear(rt, x, biased.weight) - (total + bias))
            assert (error <= bound + 2.0**-23 * np.abs(total + bias)).all(), (shape, rows)


@every_path
@every_form
def test_the_largest_sums_neither_saturate_nor_overflow(path: str, form: str) -> None:
    """Codes at their limits, all of one sign: pairs of products reach 32,512."""
    rt, columns = runtime(path), 4096
    stored_and_meant = {
        "int8": [(0, 1), (0, -1)],
        "q4_0": [(0xFF, 7), (0x00, -8)],
        "q4_1": [(0xFF, 16)],
        "q8_0": [(0x80, -128), (0x7F, 127)],
    }
    for stored, value in stored_and_meant[form]:
        if form == "int8":
            raw, name = np.full((9, columns), value, np.float32).view(np.uint8), "F32"
        else:
            scales, nbytes = {"q4_0": (1, 18), "q4_1": (2, 20), "q8_0": (1, 34)}[form]
            blocks = np.full((9, columns // 32, nbytes), stored, np.uint8)
            blocks[..., : 2 * scales] = np.ones(scales, np.float16).view(np.uint8)
            raw, name = blocks.reshape(9, -1), form.upper()
        weight = _native.Weight(rt, _native.EncodedMatrix(((name, raw),), columns), form)
        for sign in (1, -1):
            x = np.full((5, columns), sign, np.float32)
            np.testing.assert_allclose(linear(rt, x, weight), value * sign * columns, rtol=1e-6)


@every_path
def test_rounded_weights_stay_within_what_their_path_sums(path: str) -> None:
    """Rows of weights whose codes meet at their largest, times rows of 127 with their signs and with the others."""
    rt, columns = runtime(path), 128
    rng = np.random.default_rng(6)
    patterns = [
        [1] * 8,
        [1, 1, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 1, 1],
        [1, 1, 0.01, 0.01] * 2,
        [1] + [0] * 7,
    ]
    patterns += [[1, 1, 1, 1, 0.016, 0.016, 0.99, 0.99], [0.5, 1, 0.3, 0.7, 1, 0.5, 0.7, 0.3]]
    patterns += [[63.5, 63.5, 1, 1, 61.5, 63.5, 1, 1]]  # 252 before rounding, 254 after
    values = np.array([row * (columns // 8) for row in patterns], np.float32)
    values = np.concatenate([values, rng.uniform(0.2, 1, (40, columns)).astype(np.float32)])
    signs = rng.choice(np.array([-1, 1], np.float32), values.shape)
    values = np.concatenate([values, -values, values * signs])
    codes, scales = round_weights(path, values)
    if path.startswith("avx2"):
        assert np.abs(codes).reshape(len(codes), -1, 2, 2, 2).sum(axis=(2, 4)).max() == 254
    weight = _native.Weight(rt, _native.EncodedMatrix((("F32", values.view(np.uint8)),), columns), "int8")
    for sign in (1, -1):
        x = (np.sign(values) * np.float32(sign)).astype(np.float32)
        expected = (codes @ np.sign(x).astype(np.int64).T) * 127 * scales.astype(np.float64) / 127
        np.testing.assert_allclose(linear(rt, x, weight).T, expected, rtol=1e-5, atol=1e-4)


@every_path
@every_form
def test_a_row_has_the_same_bits_in_any_company(path: str, form: str) -> None:
    rng = np.random.default_rng(3)
    one, two = runtime(path, 1), runtime(path, 2)
    bias = rng.standard_normal(100).astype(np.float32)
    x = rng.standard_normal((130, 96)).astype(np.float32)
    layer, again = make(one, form, (100, 96), bias), make(two, form, (100, 96), bias)
    alone = np.concatenate([linear(one, x[i : i + 1], layer.weight) for i in range(len(x))])
    for rows in range(1, len(x) + 1):
        assert np.array_equal(linear(two, x[:rows], again.weight), alone[:rows]), rows
    order = rng.permutation(len(x))
    assert np.array_equal(linear(one, x[order], layer.weight), alone[order])


@every_form
def test_instructions_change_no_bit_of_a_path(form: str) -> None:
    """avx2 is one path, with AVX-VNNI or without."""
    x = np.random.default_rng(4).standard_normal((7, 192)).astype(np.float32)
    paths = [path for path in _native.available_paths(variants=True) if path.startswith("avx2")]
    results = [linear(runtime(path), x, make(runtime(path), form, (70, 192)).weight) for path in paths]
    assert all(np.array_equal(result, results[0]) for result in results)


@every_path
@every_form
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(path: str, form: str, bad: float) -> None:
    rt = runtime(path)
    layer = make(rt, form, (33, 64))
    x = np.random.default_rng(5).standard_normal((6, 64)).astype(np.float32)
    expected = linear(rt, x, layer.weight)
    x[2, 40] = bad
    found = linear(rt, x, layer.weight)
    assert np.isnan(found[2]).all()
    assert np.array_equal(np.delete(found, 2, axis=0), np.delete(expected, 2, axis=0))


@every_path
@every_form
def test_tiny_rows_are_zero_and_not_nan(path: str, form: str) -> None:
    rt = runtime(path)
    x = np.array([[1e-38], [1e-42], [0.0]], np.float32) * np.ones((1, 64), np.float32)
    assert np.array_equal(linear(rt, x, make(rt, form, (9, 64)).weight), np.zeros((3, 9)))


@every_block_form
def test_blocks_keep_their_size(form: str) -> None:
    """Packed for whole panels and nothing else: bytes an element as in the file."""
    layer = make(runtime("portable"), form, (960, 576))
    assert layer.weight.format == form
    assert layer.weight.nbytes == 960 * 576 // 32 * {"q4_0": 18, "q4_1": 20, "q8_0": 34}[form]


def test_what_cannot_be_kept_is_refused() -> None:
    rt = runtime("portable")
    stored = _native.EncodedMatrix((("Q8_0", np.zeros((4, 34), np.uint8)),), 32)
    with pytest.raises(ValueError, match="stored as Q8_0 cannot be kept in blocks of Q4_1"):
        _native.Weight(rt, stored, "q4_1")
    with pytest.raises(ValueError, match="format is 'q5_0'"):
        _native.Weight(rt, stored, "q5_0")
