"""Recording and replaying: registers, rows, results, refusals, profile, lifetime."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from native_helpers import F32, Rows, every_path, runtime, small_kv
from octavo import _native

HIDDEN, FEATURES, VOCAB, LAYERS = 24, 40, 50, 6


class Model:
    """Residual blocks of norm, linear, gate and linear, with a tall head: more registers than may be alive at once."""

    def __init__(self, rt: _native.Runtime, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)

        def matrix(*shape: int) -> F32:
            return (rng.standard_normal(shape) * 0.3).astype(np.float32)

        self.table, self.norm = matrix(VOCAB, HIDDEN), 1 + matrix(HIDDEN)
        self.blocks = [(matrix(2 * FEATURES, HIDDEN), matrix(HIDDEN, FEATURES)) for _ in range(LAYERS)]
        self.program = p = _native.Program(rt, small_kv(rt))
        x = p.register(HIDDEN)
        p.embed(x, self.table)
        for wide, narrow in self.blocks:
            normed, gated = p.register(HIDDEN), p.register(2 * FEATURES)
            hidden, out = p.register(FEATURES), p.register(HIDDEN)
            p.rms_norm(normed, x, self.norm, 1e-5)
            p.linear(gated, normed, _native.Weight(rt, wide))
            p.silu_mul(hidden, gated)
            p.linear(out, hidden, _native.Weight(rt, narrow))
            p.add(x, out)
        kept, logits = p.register(HIDDEN), p.register(VOCAB)
        p.gather_rows(kept, x)
        p.linear(logits, kept, _native.Weight(rt, self.table))

    def run(self, tokens: list[int], wanted: list[int]) -> F32:
        logits = np.full((len(wanted), VOCAB), np.nan, dtype=np.float32)
        rows = Rows.single(len(tokens))
        self.program.run(
            np.array(tokens, dtype=np.int32),
            rows.computed,
            rows.scheduled,
            rows.block_table,
            rows.rows,
            np.array(wanted, dtype=np.int32),
            logits,
        )
        return logits

    def reference(self, tokens: list[int], wanted: list[int]) -> np.ndarray:
        x = self.table[tokens].astype(np.float64)
        for wide, narrow in self.blocks:
            normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * self.norm
            gate, up = np.split(normed @ wide.T.astype(np.float64), 2, axis=1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ narrow.T
        return x[wanted] @ self.table.T


@every_path
def test_a_whole_model_agrees_with_float64(path: str) -> None:
    model = Model(runtime(path))
    for tokens, wanted in [
        ([3], [0]),
        ([1, 2, 3, 49, 0], [4]),
        ([7, 7, 8], [2, 0, 2, 1]),
        (list(range(50)), [49, 3]),
    ]:
        np.testing.assert_allclose(
            model.run(tokens, wanted), model.reference(tokens, wanted), rtol=1e-4, atol=2e-5
        )


@every_path
def test_a_token_has_the_same_bits_in_any_batch(path: str) -> None:
    one, two = Model(runtime(path, 1)), Model(runtime(path, 2))
    alone = np.concatenate([one.run([token], [0]) for token in range(50)])
    assert np.array_equal(two.run(list(range(50)), list(range(50))), alone)
    backwards = list(range(49, -1, -1))
    assert np.array_equal(one.run(backwards, list(range(50))), alone[::-1])


def test_a_step_may_want_no_logits_or_have_no_tokens() -> None:
    model = Model(runtime("portable"))
    assert model.run([1, 2, 3], []).shape == (0, VOCAB)
    assert model.run([], []).shape == (0, VOCAB)


def test_the_last_register_is_the_result_even_if_updated_in_place() -> None:
    rt = runtime("portable")
    program = _native.Program(rt, small_kv(rt))
    x, y = program.register(3), program.register(3)
    program.embed(x, np.arange(12, dtype=np.float32).reshape(4, 3))
    program.embed(y, np.ones((4, 3), dtype=np.float32))
    program.add(x, y)
    assert np.array_equal(run(program, tokens=[2, 0], width=3), [[7, 8, 9], [1, 2, 3]])


def run(program: _native.Program, tokens: list[int], width: int, **changes: Any) -> F32:
    """Every token its own row; ``changes`` replace arguments."""
    count = len(tokens)
    arguments: dict[str, Any] = {
        "token_ids": np.array(tokens, dtype=np.int32),
        "computed": np.zeros(count, dtype=np.int32),
        "scheduled": np.ones(count, dtype=np.int32),
        "block_table": np.arange(4, dtype=np.int32)[:, None],
        "rows": np.arange(count, dtype=np.int32),
        "logit_rows": np.arange(count, dtype=np.int32),
        "logits": np.empty((count, width), dtype=np.float32),
    } | changes
    program.run(**arguments)
    return arguments["logits"]


def kv_program() -> _native.Program:
    """Embedding of 5 tokens as keys and values of the small pool (4 blocks of 16 slots), rotary table of 40."""
    rt = runtime("portable")
    program = _native.Program(rt, small_kv(rt))
    x = program.register(16)
    program.embed(x, np.ones((5, 16), dtype=np.float32))
    angles = np.ones((40, 4), dtype=np.float32)
    program.rope(x, 0, 1, 8, angles, angles)
    program.store_kv(0, x, 0, 8)
    return program


def i32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": i32(0, 5)}, r"token_ids\[1\] is 5; the vocabulary has 5"),
        ({"token_ids": i32(-1, 0)}, r"token_ids\[0\] is -1"),
        ({"token_ids": i32(0, 0, 0)}, "3 tokens; scheduled adds up to 2"),
        ({"scheduled": i32(2, 0)}, "scheduled 0"),
        ({"computed": i32(0, -1)}, "computed -1"),
        (
            {"computed": i32(0, 40), "block_table": np.zeros((4, 3), dtype=np.int32)},
            "position 40; the rotary table has 40",
        ),
        ({"computed": i32(0)}, "computed has 1 entries and rows 2"),
        ({"rows": i32(0, 4)}, r"rows\[1\] is 4; the block table has 4"),
        ({"computed": i32(16, 0)}, "needs 2 blocks; the block table has 1"),
        ({"block_table": i32(0, 4)[:, None]}, "row 1 names block 4; the pool has 4"),
        ({"block_table": i32(-2, 0)[:, None]}, "row 0 names block -2"),
        ({"logit_rows": i32(0, 2)}, r"logit_rows\[1\] is 2; the step has 2"),
        (
            {"logits": np.empty((2, 15), dtype=np.float32)},
            r"logits is \[2, 15\]; the last register is \[2, 16\]",
        ),
        ({"logits": np.empty((1, 16), dtype=np.float32)}, r"logits is \[1, 16\]"),
        ({"block_table": np.zeros((4, 8), dtype=np.int32)[:, ::2]}, "not contiguous"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_step_that_does_not_fit_together_is_refused(changes: dict[str, np.ndarray], message: str) -> None:
    program = kv_program()
    run(program, [0, 4], 16)
    with pytest.raises(ValueError, match=message):
        run(program, [0, 4], 16, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": np.zeros(2, dtype=np.int64)},
        {"logits": np.zeros((2, 16), dtype=np.float64)},
        {"logits": np.zeros((16, 2), dtype=np.float32).T},
        {"rows": np.zeros((2, 1), dtype=np.int32)},
    ],
    ids=str,
)
def test_an_array_of_another_type_is_never_converted(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(TypeError):
        run(kv_program(), [0, 4], 16, **changes)


def test_a_slice_of_a_wider_table_is_read_in_place() -> None:
    wide = np.full((4, 9), 99, dtype=np.int32)
    wide[:, 2] = 3
    assert (run(kv_program(), [0, 4], 16, block_table=wide[:, 2:3])[:, 8:] == 1).all()


@every_path
def test_rows_of_logits_may_lie_apart(path: str) -> None:
    """Straight from the last linear layer, and copied there from any other operator; nothing between is touched."""
    model, wanted = Model(runtime(path)), [0, 2, 3]
    wide = np.full((3, VOCAB + 9), 7.0, dtype=np.float32)
    tokens, rows = np.array([5, 6, 7, 8], dtype=np.int32), Rows.single(4)
    arguments = (
        tokens,
        rows.computed,
        rows.scheduled,
        rows.block_table,
        rows.rows,
        np.array(wanted, dtype=np.int32),
    )
    model.program.run(*arguments, wide[:, :VOCAB])
    assert np.array_equal(wide[:, :VOCAB], model.run([5, 6, 7, 8], wanted))
    assert (wide[:, VOCAB:] == 7).all()
    apart = np.full((2, 20), 7.0, dtype=np.float32)
    found = run(kv_program(), [0, 4], 16, logits=apart[:, 2:18])
    assert np.array_equal(found, run(kv_program(), [0, 4], 16))
    assert (apart[:, :2] == 7).all() and (apart[:, 18:] == 7).all()


def test_recording_refuses_what_does_not_fit() -> None:
    rt = runtime("portable")
    p = _native.Program(rt, small_kv(rt))
    x, y = p.register(16), p.register(24)
    ones = np.ones(16, dtype=np.float32)
    with pytest.raises(ValueError, match="width is 0"):
        p.register(0)
    with pytest.raises(ValueError, match="embed: out has width 16; it must be 5"):
        p.embed(x, np.ones((3, 5), dtype=np.float32))
    with pytest.raises(ValueError, match="rms_norm: register 0 is read before"):
        p.rms_norm(x, x, ones, 1e-5)
    p.embed(x, np.ones((3, 16), dtype=np.float32))
    with pytest.raises(ValueError, match="register 7 does not exist"):
        p.add(x, 7)
    with pytest.raises(ValueError, match="linear: source has width 16; it must be 8"):
        p.linear(y, x, _native.Weight(rt, np.ones((24, 8), dtype=np.float32)))
    with pytest.raises(ValueError, match=r"rms_norm: .*columns 8 to 24 of a register of width 16"):
        p.rms_norm(x, x, ones[:8], 1e-5, column=8, groups=2)
    with pytest.raises(ValueError, match="store_kv: the values are columns 9 to 17"):
        p.store_kv(0, x, 0, 9)
    with pytest.raises(ValueError, match="layer: 1 does not exist"):
        p.store_kv(1, x, 0, 8)
    with pytest.raises(ValueError, match="silu_mul: source has width 16; it must be 48"):
        p.silu_mul(y, x)
    with pytest.raises(ValueError, match="rope: cos and sin turn 16 columns of heads of 8"):
        p.rope(x, 0, 2, 8, np.ones((4, 8), dtype=np.float32), np.ones((4, 8), dtype=np.float32))
    kept = p.register(16)
    p.gather_rows(kept, x)
    with pytest.raises(ValueError, match="holds logit rows, not tokens"):
        p.store_kv(0, kept, 0, 8)


def test_profile_counts_each_operator_while_it_is_on() -> None:
    model = Model(runtime("portable"))
    model.run([1, 2], [1])
    names = [name for name, _ in model.program.profile()]
    assert names == [
        "embed",
        *["rms_norm", "linear", "silu_mul", "linear", "add"] * LAYERS,
        "gather_rows",
        "linear",
    ]
    assert all(seconds == 0 for _, seconds in model.program.profile())
    model.program.enable_profile(True)
    model.run([1, 2], [1])
    once = [seconds for _, seconds in model.program.profile()]
    model.run([1, 2], [1])
    twice = [seconds for _, seconds in model.program.profile()]
    assert all(0 < first < both < 10 for first, both in zip(once, twice, strict=True))
    model.program.enable_profile(False)
    model.run([1, 2], [1])
    assert [seconds for _, seconds in model.program.profile()] == twice


def test_a_program_keeps_what_it_refers_to() -> None:
    model = Model(runtime("portable"))
    expected = model.run([1, 2, 3], [2])
    program = model.program
    reference = model.table.copy()
    del model.table, model.norm, model.blocks
    gc.collect()
    ballast = [np.full((VOCAB, HIDDEN), np.nan, dtype=np.float32) for _ in range(200)]
    assert np.array_equal(model.run([1, 2, 3], [2]), expected)
    assert len(ballast) == 200 and reference.shape == (VOCAB, HIDDEN) and program is model.program


@every_path
def test_kv_storage_copies_whole_blocks_in_order(path: str) -> None:
    rt = runtime(path)
    kv = _native.KVStorage(rt, 4, 16, 2, 1, 8, "bf16")
    assert kv.nbytes == 2 * 2 * 4 * 16 * 8 * 2
    kv.fill(1.0)
    program = _native.Program(rt, kv)
    x = program.register(16)
    program.embed(x, np.arange(16, dtype=np.float32)[None])
    program.store_kv(1, x, 0, 8)
    run(program, [0], 16, block_table=np.array([[2]], dtype=np.int32))
    kv.copy_blocks(np.array([[2, 0], [0, 3]], dtype=np.int32))
    for block in (2, 0, 3):
        keys, values = kv.read(1, block, 0)
        assert np.array_equal(keys, [np.arange(8)]) and np.array_equal(values, [np.arange(8, 16)])
        assert (kv.read(1, block, 1)[0] == 1).all() and (kv.read(0, block, 0)[1] == 1).all()
    assert (kv.read(1, 1, 0)[0] == 1).all()
    with pytest.raises(ValueError, match="block is 4; there are 4"):
        kv.copy_blocks(np.array([[0, 4]], dtype=np.int32))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 16, 1, 1, 8), "num_blocks is 0"),
        ((1, 12, 1, 1, 8), "block_size is 12; it must be a power of two"),
        ((1, 512, 1, 1, 8), "block_size is 512"),
        ((1, 16, 1, 1, 12), "head_dim is 12; it must be a multiple of 8"),
        ((1, 16, 0, 1, 8), "num_layers is 0"),
    ],
)
def test_a_pool_that_kernels_cannot_read_is_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.KVStorage(runtime("portable"), *sizes, "f32")
    with pytest.raises(ValueError, match="dtype is 'f16'"):
        _native.KVStorage(runtime("portable"), 1, 16, 1, 1, 8, "f16")
