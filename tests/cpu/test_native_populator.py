"""The pool's memory is taken ahead of the rows, as far as they will soon need it, and never changed by that."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from native_helpers import runtime
from octavo import _native

LAYERS, BLOCK_SIZE, HEADS, HEAD_DIM = 3, 16, 8, 64
COLUMNS = HEADS * HEAD_DIM
BLOCKS = 1500  # 64 KiB each, and 94 MiB a layer
SMALL_PAGE = 4096
HUGE_PAGE = 2 << 20

needs_mincore = pytest.mark.skipif(sys.platform != "linux", reason="tells which pages exist")


def new_pool() -> _native.KVStorage:
    return _native.KVStorage(runtime("portable"), BLOCKS, BLOCK_SIZE, LAYERS, HEADS, HEAD_DIM, "f32")


def program_on(kv: _native.KVStorage, tokens: int) -> _native.Program:
    """Stores row t of a table as key and value of token t, in every layer."""
    program = _native.Program(runtime("portable"), kv)
    x = program.register(2 * COLUMNS)
    keys = np.arange(1, tokens + 1, dtype=np.float32)[:, None]
    program.embed(x, np.repeat(np.hstack((keys, -keys)), COLUMNS, axis=1))
    for layer in range(LAYERS):
        program.store_kv(layer, x, 0, COLUMNS)
    return program


def decode(program: _native.Program, table: NDArray[np.int32], computed: int) -> None:
    """One token of each row of the table, all with so many before it."""
    count = len(table)
    number = np.arange(count, dtype=np.int32)
    ones = np.ones(count, np.int32)
    logits = np.empty((count, 2 * COLUMNS), np.float32)
    program.run(number, computed * ones, ones, table, number, number, logits)


def resident(kv: _native.KVStorage) -> NDArray[np.bool_]:
    """bool [pages]: which small pages of the pool exist."""
    memory = kv.memory
    found = np.zeros(-(-memory.nbytes // SMALL_PAGE), np.uint8)
    arguments = memory.ctypes.data, memory.nbytes, found.ctypes.data
    assert ctypes.CDLL(None).mincore(*map(ctypes.c_void_p, arguments)) == 0
    return (found & 1).astype(np.bool_)


def pages_of(kv: _native.KVStorage, blocks: int, around: int) -> NDArray[np.bool_]:
    """bool [pages]: those of the first ``blocks`` of each layer, and of ``around`` bytes on both sides."""
    layers, each, block_bytes = kv.memory.shape
    wanted = np.zeros(-(-kv.memory.nbytes // SMALL_PAGE), np.bool_)
    for layer in range(layers):
        begin = layer * each * block_bytes - around
        end = (layer * each + blocks) * block_bytes + around
        wanted[max(0, begin) // SMALL_PAGE : -(-end // SMALL_PAGE)] = True
    return wanted


def settled(kv: _native.KVStorage, blocks: int) -> bool:
    """Whether all memory of the first ``blocks`` exists; waits for it, and then a little for what should not come."""
    wanted = pages_of(kv, blocks, 0)
    deadline = time.monotonic() + 60
    while not resident(kv)[wanted].all():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    time.sleep(0.05)
    return True


@needs_mincore
@pytest.mark.parametrize(
    ("run", "computed", "blocks"),
    [
        (1, 20, 392 + 2 * 2),  # two rows, the highest block is 391; 32 tokens more are two blocks for each
        (1, 16, 392 + 2 * 2),
        (8, 20, 392),  # within their runs
        (8, 100, 392 + 2 * 8),  # one run more for each
    ],
)
def test_as_many_blocks_as_the_rows_will_soon_take(run: int, computed: int, blocks: int) -> None:
    kv = new_pool()
    table = np.zeros((2, 16), np.int32)
    table[0, :8], table[1, :8] = np.arange(8), np.arange(384, 392)
    table[1, computed // BLOCK_SIZE] = 391
    program = program_on(kv, 2)
    program.expect_runs(run)
    assert not resident(kv).any()
    decode(program, table, computed)
    assert settled(kv, blocks)
    # The system may take 2 MiB where 4 KiB would do.
    assert not (resident(kv) & ~pages_of(kv, blocks, HUGE_PAGE)).any()


@needs_mincore
def test_never_beyond_the_pool() -> None:
    kv = new_pool()
    table = np.full((2, 16), BLOCKS - 1, np.int32)
    decode(program_on(kv, 2), table, 20)
    assert settled(kv, BLOCKS)


def test_what_a_step_writes_meanwhile_stays() -> None:
    """Every row writes into memory that is being taken at the same moment."""
    count = 64
    table = np.arange(8 * count, dtype=np.int32).reshape(8, count).T.copy()
    for _ in range(3):
        kv = new_pool()
        program = program_on(kv, count)
        for computed in (0, 16, 32, 48, 64):
            decode(program, table, computed)
        for row in range(0, count, 7):
            for number in range(5):
                keys, values = kv.read(LAYERS - 1, int(table[row, number]), 0)
                assert (keys == row + 1).all() and (values == -row - 1).all()
                keys, values = kv.read(0, int(table[row, number]), 1)
                assert not keys.any() and not values.any()


def test_a_pool_that_is_being_populated_can_go() -> None:
    for _ in range(20):
        kv = new_pool()
        decode(program_on(kv, 2), np.full((2, 16), BLOCKS - 1, np.int32), 20)
        del kv


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_its_pool_and_lets_it_go() -> None:
    rt = _native.Runtime("portable", 1)
    kv = new_pool()
    program = program_on(kv, 2)
    table = np.arange(16, dtype=np.int32).reshape(2, 8).copy()
    decode(program, table, 0)
    child = os.fork()
    if child == 0:
        decode(program, table, 16)
        same = kv.read(0, int(table[1, 1]), 0)[0][0, 0] == 2
        del program, kv, rt
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wrong_run_is_refused() -> None:
    with pytest.raises(ValueError, match="a run is 0 blocks"):
        program_on(new_pool(), 1).expect_runs(0)
