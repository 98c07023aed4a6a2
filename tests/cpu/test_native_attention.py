"""Paged attention on every path: against float64, and bit for bit against itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from kv_reference import HEAD_BYTES, KV_DTYPES, held
from native_helpers import F32, Rows, every_path, from_bf16, run_program, runtime, to_bf16
from octavo import _native

BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
LAYERS, LAYER = 2, 1

every_dtype = pytest.mark.parametrize("dtype", KV_DTYPES)


@dataclass(frozen=True)
class Shape:
    """Heads of a model, and how its pool is cut."""

    head_dim: int = 64
    group: int = 3
    kv_heads: int = 2
    block_size: int = 16
    dtype: str = "bf16"

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))

    def tokens(self, count: int, seed: int, spread: float = 1.0) -> F32:
        """Activations [count, q | k | v]; ``spread`` widens the scores."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((count, (self.heads + 2 * self.kv_heads) * self.head_dim), dtype=np.float32)
        x[:, : self.heads * self.head_dim] *= spread
        return x


@dataclass
class Server:
    """A poisoned pool and sequences in it, whose blocks lie in random order."""

    path: str
    shape: Shape
    lengths: Sequence[int]
    threads: int = 2
    poison: float = np.nan
    seed: int = 0
    blocks: int = field(init=False)
    computed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        blocks = [-(-length // shape.block_size) for length in self.lengths]
        order = np.random.default_rng(self.seed).permutation(sum(blocks) + 3).astype(np.int32)
        self.table = np.full((len(blocks), max(blocks)), -1, dtype=np.int32)
        for row, end in enumerate(np.cumsum(blocks)):
            self.table[row, : blocks[row]] = order[end - blocks[row] : end]
        self.blocks = len(order)
        self.runtime = runtime(self.path, self.threads)
        self.kv = _native.KVStorage(
            self.runtime,
            self.blocks,
            shape.block_size,
            LAYERS,
            shape.kv_heads,
            shape.head_dim,
            shape.dtype,
        )
        self.kv.fill(self.poison)
        self.computed = [0] * len(blocks)

    def step(self, chunks: dict[int, F32], attend: bool = True) -> list[F32]:
        """Store the tokens of each row and attend; outputs [tokens, heads, head_dim] of each row, in order."""
        shape, rows = self.shape, list(chunks)
        counts = [len(x) for x in chunks.values()]
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def build(program: _native.Program, source: int) -> int:
            program.store_kv(LAYER, source, queries, queries + keys)
            if not attend:
                return queries + 2 * keys
            out = program.register(queries)
            program.paged_attention(out, source, 0, shape.heads, LAYER, shape.scale)
            return queries

        arrays = [np.array(x, dtype=np.int32) for x in ([self.computed[r] for r in rows], counts, rows)]
        plan = Rows(computed=arrays[0], scheduled=arrays[1], rows=arrays[2], block_table=self.table)
        out = run_program(self.runtime, np.concatenate(list(chunks.values())), build, kv=self.kv, rows=plan)
        for row, count in zip(rows, counts, strict=True):
            self.computed[row] += count
        if not attend:
            return []
        return np.split(out.reshape(len(out), shape.heads, shape.head_dim), np.cumsum(counts)[:-1])

    def serve(self, sequences: Sequence[F32], chunk: int | None = None) -> list[F32]:
        """Prefill all sequences together, in chunks of so many tokens (None: whole)."""
        outputs: list[list[F32]] = [[] for _ in sequences]
        size = chunk or max(len(x) for x in sequences)
        for begin in range(0, max(len(x) for x in sequences), size):
            chunks = {row: x[begin : begin + size] for row, x in enumerate(sequences) if begin < len(x)}
            for row, out in zip(chunks, self.step(chunks), strict=True):
                outputs[row].append(out)
        return [np.concatenate(parts) for parts in outputs]


def check(path: str, shape: Shape, sequence: F32, begin: int, out: F32) -> None:
    """Compare ``out``, of the tokens from ``begin`` on, with float64 on the numbers that the path multiplies."""
    end, d = begin + len(out), shape.head_dim
    native_bf16 = shape.dtype != "f32" and path.startswith("avx512")
    heads = sequence[:end].reshape(end, -1, d)
    q = heads[begin:, : shape.heads] * np.float32(shape.scale)
    kv = held(heads[:, shape.heads :], shape.dtype)
    q = (from_bf16(to_bf16(q)) if native_bf16 else q).astype(np.float64)
    k, v = np.split(kv.astype(np.float64), 2, axis=1)
    future = np.arange(end)[None, :] > np.arange(begin, end)[:, None]
    for head in range(shape.heads):
        score = np.where(future, -np.inf, q[:, head] @ k[:, head // shape.group].T)
        p = np.exp(score - score.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        # Scores carry float32 rounding; where p is rounded to bf16 (half an ulp: 2^-9), in sum and product alike, an
        # output may be off by twice that share of the mean magnitude of what it averages.
        bound = (2.0**-8 if native_bf16 else 0) + 4e-6 * (1 + np.abs(np.where(future, 0, score)).max())
        error = np.abs(out[:, head] - p @ v[:, head // shape.group])
        assert np.all(error <= bound * (p @ np.abs(v[:, head // shape.group])) + 1e-6)


def assert_same_bits(left: Iterable[F32], right: Iterable[F32]) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@every_dtype
@every_path
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_ragged_batches_agree_with_float64(path: str, dtype: str, head_dim: int, group: int) -> None:
    rng = np.random.default_rng(head_dim + group)
    shape = Shape(head_dim, group, 2, int(rng.choice(BLOCK_SIZES)), dtype)
    lengths = [1, 2, 17, *rng.integers(3, 250, 4)]
    sequences = [shape.tokens(int(length), row) for row, length in enumerate(lengths)]
    server = Server(path, shape, [int(length) for length in lengths])
    # A past of any length, then one batch of decode rows (odd) and prefill chunks (even).
    past = [len(x) - 1 if row % 2 else int(rng.integers(0, len(x))) for row, x in enumerate(sequences)]
    server.step(
        {row: x[:n] for row, (x, n) in enumerate(zip(sequences, past, strict=True)) if n}, attend=False
    )
    outs = server.step({row: x[n:] for row, (x, n) in enumerate(zip(sequences, past, strict=True))})
    for x, n, out in zip(sequences, past, outs, strict=True):
        check(path, shape, x, n, out)


@every_dtype
@every_path
@pytest.mark.parametrize("head_dim", [8, 16, 32, 48, 72, 256])
def test_other_head_dims_agree_with_float64(path: str, dtype: str, head_dim: int) -> None:
    shape = Shape(head_dim, 2, 1, 16, dtype)
    sequences = [shape.tokens(150, 1), shape.tokens(31, 2)]
    for x, out in zip(sequences, Server(path, shape, [150, 31]).serve(sequences), strict=True):
        check(path, shape, x, 0, out)


@every_dtype
@every_path
@pytest.mark.parametrize("group", [2, 5, 6, 7, 16])
def test_other_group_sizes_agree_with_float64(path: str, dtype: str, group: int) -> None:
    shape = Shape(64, group, 1, 16, dtype)
    x = shape.tokens(140, group)
    check(path, shape, x, 0, Server(path, shape, [140]).serve([x])[0])


@every_dtype
@every_path
@pytest.mark.parametrize("context", [1023, 1024, 1025, 5000])
def test_long_contexts_agree_with_float64(path: str, dtype: str, context: int) -> None:
    shape = Shape(64, 3, 1, 16, dtype)
    x = shape.tokens(context + 40, context)
    server = Server(path, shape, [len(x)])
    server.step({0: x[:context]}, attend=False)
    [decoded] = server.step({0: x[context : context + 1]})
    [chunk] = server.step({0: x[context + 1 :]})
    check(path, shape, x, context, np.concatenate([decoded, chunk]))


@every_dtype
@every_path
def test_scores_of_any_size_agree_with_float64(path: str, dtype: str) -> None:
    shape = Shape(64, 2, 1, 16, dtype)
    for spread in (0.0, 20.0, 300.0):
        x = shape.tokens(300, 5, spread)
        check(path, shape, x, 0, Server(path, shape, [300]).serve([x])[0])


@every_dtype
@every_path
def test_block_size_chunks_threads_and_batch_change_no_bit(path: str, dtype: str) -> None:
    lengths = [1, 16, 130, 1100]  # the last one has two segments

    def outputs(block_size: int, chunk: int | None, threads: int = 2, alone: bool = False) -> list[F32]:
        shape = Shape(64, 3, 2, block_size, dtype)
        sequences = [shape.tokens(length, row) for row, length in enumerate(lengths)]
        groups = [[x] for x in sequences] if alone else [sequences]
        return [
            out
            for group in groups
            for out in Server(path, shape, [len(x) for x in group], threads, seed=block_size).serve(
                group, chunk
            )
        ]

    expected = outputs(16, None, threads=1)
    for variant in [
        outputs(1, None),
        outputs(8, 64),
        outputs(128, 7),
        outputs(16, 64, threads=1, alone=True),
        outputs(256, None, alone=True),
    ]:
        assert_same_bits(variant, expected)


@every_dtype
@every_path
@pytest.mark.parametrize("head_dim", [8, 72, 128])
def test_blocks_narrower_than_a_tile_change_no_bit(path: str, dtype: str, head_dim: int) -> None:
    lengths = [1, 7, 31, 160, 300]  # their last tiles end within a block, at its end and one token after

    def outputs(block_size: int) -> list[F32]:
        shape = Shape(head_dim, 2, 2, block_size, dtype)
        sequences = [shape.tokens(length, length) for length in lengths]
        server = Server(path, shape, [length + 3 for length in lengths], seed=block_size)
        prefilled = server.serve(sequences)
        decoded = [
            out for seed in range(3) for out in server.step({r: shape.tokens(1, seed) for r in range(5)})
        ]
        return prefilled + decoded

    expected = outputs(16)
    for block_size in (1, 2, 4, 8):
        assert_same_bits(outputs(block_size), expected)


@every_dtype
@every_path
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_decode_has_the_bits_of_prefill(path: str, dtype: str, block_size: int) -> None:
    shape = Shape(80, 4, 1, block_size, dtype)
    sequences = [shape.tokens(150, 1), shape.tokens(37, 2)]
    prefilled = Server(path, shape, [150, 37]).serve(sequences)
    assert_same_bits(Server(path, shape, [150, 37]).serve(sequences, chunk=1), prefilled)


@every_dtype
@every_path
# With two threads, items of two heads and one are merged: of 3,501 tokens in short segments, of 11,500 in long ones.
@pytest.mark.parametrize(("context", "kv_heads"), [(3501, 1), (3501, 3), (11500, 3), (500, 3)])
def test_the_split_of_a_long_context_changes_no_bit(
    path: str, dtype: str, context: int, kv_heads: int
) -> None:
    shape = Shape(64, 2, kv_heads, 16, dtype)
    x = shape.tokens(context, 3)

    def decode(threads: int, mates: int) -> F32:
        server = Server(path, shape, [len(x)] + [40] * mates, threads)
        past = {0: x[:-1]} | {1 + row: shape.tokens(39, row) for row in range(mates)}
        server.step(past, attend=False)
        return server.step({0: x[-1:]} | {1 + row: shape.tokens(1, row) for row in range(mates)})[0]

    expected = decode(1, 0)
    check(path, shape, x, context - 1, expected)
    for threads, mates in [(2, 0), (5, 0), (2, 30)]:
        assert_same_bits([decode(threads, mates)], [expected])


@every_dtype
@every_path
@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_what_unwritten_slots_hold_changes_no_bit(path: str, dtype: str, block_size: int) -> None:
    shape = Shape(64, 3, 1, block_size, dtype)
    sequences = [shape.tokens(length, length) for length in (1, 15, 16, 33, 129)]

    def outputs(poison: float) -> list[F32]:
        server = Server(path, shape, [len(x) for x in sequences], poison=poison)
        return server.serve(sequences, chunk=9)

    clean = outputs(0.0)
    assert all(np.isfinite(out).all() for out in clean)
    for poison in (np.nan, np.inf, -3e38):
        assert_same_bits(outputs(poison), clean)


@every_dtype
@every_path
def test_later_tokens_change_no_bit(path: str, dtype: str) -> None:
    shape = Shape(64, 3, 1, 16, dtype)
    x, y = shape.tokens(200, 1), shape.tokens(200, 2, spread=50.0)
    for kept in (1, 5, 16, 127, 199):
        mixed = np.concatenate([x[:kept], y[kept:]])
        [whole], [changed] = (Server(path, shape, [200]).serve([z]) for z in (x, mixed))
        assert_same_bits([changed[:kept]], [whole[:kept]])


@every_dtype
@every_path
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_slot_keeps_its_keys_and_values(path: str, dtype: str, block_size: int) -> None:
    shape = Shape(24, 1, 3, block_size, dtype)
    length = 2 * block_size + 3
    x = shape.tokens(length, block_size)
    server = Server(path, shape, [length])
    server.step({0: x}, attend=False)
    slot_bytes = 2 * LAYERS * 3 * HEAD_BYTES[dtype](24)
    assert server.kv.nbytes == server.blocks * block_size * slot_bytes
    expected = held(x.reshape(length, -1, 24)[:, 3:], dtype)
    for position in range(length):
        block = int(server.table[0, position // block_size])
        keys, values = server.kv.read(LAYER, block, position % block_size)
        np.testing.assert_array_equal(np.concatenate([keys, values]), expected[position])
    # The rest, and the other layer, still hold the poison.
    assert np.isnan(server.kv.read(LAYER, block, block_size - 1)).all() or length % block_size == 0
    assert np.isnan(server.kv.read(0, block, 0)).all()


@every_dtype
@every_path
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
def test_a_copied_block_is_read_and_written_apart(path: str, dtype: str, block_size: int) -> None:
    shape = Shape(64, 3, 1, block_size, dtype)
    length = 3 * block_size + 1
    x = shape.tokens(length + 1, 7)
    server = Server(path, shape, [length + 1, length + 1])
    server.step({0: x[:length]}, attend=False)
    used = -(-length // block_size)
    server.kv.copy_blocks(np.stack([server.table[0, :used], server.table[1, :used]], axis=1))
    server.computed[1] = length
    first, second = server.step({0: x[length:], 1: x[length:]})
    assert_same_bits([second], [first])
    # Rewriting the copy leaves the original alone.
    server.computed = [length, 0]
    server.step({1: shape.tokens(length, 8)}, attend=False)
    assert_same_bits(server.step({0: x[length:]}), [first])
