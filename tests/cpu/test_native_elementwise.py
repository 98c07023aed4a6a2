"""The operators between the matrix products against float64."""

from __future__ import annotations

import numpy as np
import pytest

from native_helpers import F32, Rows, every_dtype, every_path, loaded, run_program, runtime, small_kv, stored
from octavo import _native

WIDTHS = [1, 3, 16, 31, 64, 576]
EPS32 = 2.0**-24


def inputs(rows: int, width: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, rows, width]).standard_normal((rows, width)).astype(np.float32)


def rms_reference(x: np.ndarray, weight: F32, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * weight


@every_path
@every_dtype
def test_embed_copies_the_tokens_rows(path: str, dtype: str) -> None:
    rt = runtime(path)
    table = stored(inputs(50, 37), dtype)
    program = _native.Program(rt, small_kv(rt))
    out = program.register(37)
    program.embed(out, table)
    tokens = np.array([49, 0, 7, 7], dtype=np.int32)
    rows = Rows.single(4)
    result = np.empty((4, 37), dtype=np.float32)
    program.run(
        tokens,
        rows.computed,
        rows.scheduled,
        rows.block_table,
        rows.rows,
        np.arange(4, dtype=np.int32),
        result,
    )
    assert np.array_equal(result, loaded(table)[tokens])


@every_path
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(path: str, width: int) -> None:
    x, weight = inputs(9, width), inputs(1, width, 1)[0]

    def build(program: _native.Program, source: int) -> int:
        out = program.register(width)
        program.rms_norm(out, source, weight, 1e-5)
        return width

    # Lanes of a sum lose at most width / 16 + 4 roundings, relative, halved by the root; a few follow.
    np.testing.assert_allclose(
        run_program(runtime(path), x, build),
        rms_reference(x, weight, 1e-5),
        rtol=(width / 16 + 12) * EPS32,
        atol=1e-30,
    )


@every_path
def test_rms_norm_of_heads_in_place_leaves_the_rest(path: str) -> None:
    x, weight = inputs(5, 10 + 3 * 24 + 7), inputs(1, 24, 1)[0]

    def build(program: _native.Program, source: int) -> int:
        program.rms_norm(source, source, weight, 1e-6, column=10, groups=3)
        return x.shape[1]

    out = run_program(runtime(path), x, build)
    heads = rms_reference(x[:, 10:82].reshape(5, 3, 24), weight, 1e-6).reshape(5, 72)
    np.testing.assert_allclose(out[:, 10:82], heads, rtol=14 * EPS32)
    assert np.array_equal(out[:, :10], x[:, :10])
    assert np.array_equal(out[:, 82:], x[:, 82:])


@every_path
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 80), (96, 24), (8, 2)])
def test_rope_turns_by_each_tokens_position(path: str, head_dim: int, rotary: int) -> None:
    rng = np.random.default_rng(head_dim)
    half, heads, column = rotary // 2, 3, 5
    cos, sin = (rng.standard_normal((60, half)).astype(np.float32) for _ in range(2))
    x = inputs(7, column + heads * head_dim + 2)
    rt = runtime(path)
    computed, scheduled = np.array([50, 0, 9], dtype=np.int32), np.array([4, 1, 2], dtype=np.int32)
    rows = Rows(computed, scheduled, np.zeros((3, 4), dtype=np.int32), np.arange(3, dtype=np.int32))

    def build(program: _native.Program, source: int) -> int:
        program.rope(source, column, heads, head_dim, cos, sin)
        return x.shape[1]

    out = run_program(rt, x, build, rows=rows)
    positions = np.array([50, 51, 52, 53, 0, 9, 10])
    expected = x.astype(np.float64)
    view = expected[:, column : column + heads * head_dim].reshape(7, heads, head_dim)
    first, second = view[..., :half].copy(), view[..., half:rotary].copy()
    c, s = cos[positions, None].astype(np.float64), sin[positions, None].astype(np.float64)
    view[..., :half] = first * c - second * s
    view[..., half:rotary] = second * c + first * s
    expected[:, column : column + heads * head_dim] = view.reshape(7, -1)
    np.testing.assert_allclose(out, expected, rtol=0, atol=4 * EPS32 * 20)
    untouched = np.ones(x.shape[1], dtype=bool)
    for head in range(heads):
        untouched[column + head * head_dim : column + head * head_dim + rotary] = False
    assert np.array_equal(out[:, untouched], x[:, untouched])


@every_path
def test_silu_mul_is_accurate_from_end_to_end(path: str) -> None:
    gate = np.concatenate([np.linspace(-80, 80, 4001), [0.0, -0.0, 1e-30, -1e-30]]).astype(np.float32)
    up = np.full_like(gate, 1.5)
    x = np.concatenate([gate, up])[None]

    def build(program: _native.Program, source: int) -> int:
        out = program.register(len(gate))
        program.silu_mul(out, source)
        return len(gate)

    wide = gate.astype(np.float64)
    np.testing.assert_allclose(
        run_program(runtime(path), x, build)[0], wide / (1 + np.exp(-wide)) * 1.5, rtol=1e-6
    )


@every_path
def test_silu_mul_at_the_extremes(path: str) -> None:
    """In every place of a vector, and in the rest behind the last one."""
    extremes = np.array([-np.inf, -1e30, -200, 200, 1e30, np.nan, 1.0], dtype=np.float32)
    gate = np.tile(extremes, 23)
    x = np.concatenate([gate, np.ones_like(gate)])[None]

    def build(program: _native.Program, source: int) -> int:
        out = program.register(len(gate))
        program.silu_mul(out, source)
        return len(gate)

    out = run_program(runtime(path), x, build)[0].reshape(23, 7)
    assert np.isnan(out[:, 5]).all()
    assert (np.abs(out[:, 2]) < 1e-30).all()
    assert (out[:, 3] == 200).all() and (out[:, 4] == np.float32(1e30)).all()
    np.testing.assert_allclose(out[:, 6], 1 / (1 + np.exp(-1.0)), rtol=1e-6)


@every_path
def test_add_and_gather_rows(path: str) -> None:
    x = inputs(11, 45)
    wanted = np.array([10, 0, 3], dtype=np.int32)
    weight = np.ones(45, dtype=np.float32)

    def build(program: _native.Program, source: int) -> int:
        normed, out = program.register(45), program.register(45)
        program.rms_norm(normed, source, weight, 1e-5)
        program.add(source, normed)
        program.gather_rows(out, source)
        return 45

    rt = runtime(path)
    out = run_program(rt, x, build, logit_rows=wanted)
    np.testing.assert_allclose(out, (x + rms_reference(x, weight, 1e-5))[wanted], rtol=0, atol=20 * EPS32 * 5)


def test_every_path_gives_the_same_bits() -> None:
    """Elementwise operators use no path's own arithmetic, whatever the vectors; so nothing depends on a row's place."""
    x, weight = inputs(300, 2 * 77), inputs(1, 154, 1)[0]

    def build(program: _native.Program, source: int) -> int:
        normed, out = program.register(154), program.register(77)
        program.rms_norm(normed, source, weight, 1e-5)
        program.silu_mul(out, normed)
        return 77

    first = run_program(runtime("portable", 1), x, build)
    for path in _native.available_paths():
        assert np.array_equal(run_program(runtime(path), x, build), first)
        assert np.array_equal(run_program(runtime(path), x[7:8], build), first[7:8])
