"""The pool behind a runtime, seen from Python: it finishes, ends, survives forks and is shared by threads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from native_helpers import F32, run_program, runtime
from octavo import _native

WIDTH = 200


def work(rt: _native.Runtime, x: F32, weight: _native.Weight, repeats: int = 1) -> F32:
    """Enough rows and columns that every operator is cut into many chunks."""

    def build(program: _native.Program, source: int) -> int:
        out, total = program.register(WIDTH), program.register(WIDTH)
        program.linear(total, source, weight)
        for _ in range(repeats):
            program.linear(out, source, weight)
            program.add(total, out)
        return WIDTH

    return run_program(rt, x, build)


def data(rows: int = 150) -> tuple[F32, F32]:
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-4, 5, shape).astype(np.float32) for shape in ((rows, WIDTH), (WIDTH, WIDTH)))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_computes_the_same(threads: int) -> None:
    """More threads than processors too: a worker that never gets to run must not hold up the rest."""
    x, matrix = data()
    rt = _native.Runtime("portable", threads)
    assert rt.threads == threads
    out = work(rt, x, _native.Weight(rt, matrix), repeats=50)
    assert np.array_equal(out, 51 * (x @ matrix.T))


def threads_alive() -> int:
    """Native ones too; 0 where the system does not say."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


def test_runtimes_start_and_end_quickly() -> None:
    """Ending one joins its threads, asleep or not."""
    before = threads_alive()
    for _ in range(50):
        rt = _native.Runtime("portable", 4)
        _native.Weight(rt, np.ones((100, 100), dtype=np.float32))
        del rt
    # The system still lists a joined thread for a moment; 50 runtimes that leaked would leave 150 for good.
    deadline = time.monotonic() + 10
    while threads_alive() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads_alive() <= before


def test_two_python_threads_share_a_runtime() -> None:
    x, matrix = data()
    rt = runtime("portable")
    weight = _native.Weight(rt, matrix)
    results: list[F32] = []
    callers = [threading.Thread(target=lambda: results.append(work(rt, x, weight, 20))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 4
    assert all(np.array_equal(result, 21 * (x @ matrix.T)) for result in results)


def test_a_step_lets_other_python_threads_run() -> None:
    x, matrix = data(3000)
    rt = runtime("portable", 1)
    weight = _native.Weight(rt, matrix)
    done = threading.Event()
    ticks = 0

    def step() -> None:
        work(rt, x, weight, 10)
        done.set()

    caller = threading.Thread(target=step)
    caller.start()
    while not done.wait(0.001):
        ticks += 1
    caller.join()
    assert ticks >= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_alone() -> None:
    x, matrix = data()
    rt = _native.Runtime("portable", 3)
    weight = _native.Weight(rt, matrix)
    expected = work(rt, x, weight)
    child = os.fork()
    if child == 0:  # the workers do not exist here
        same = np.array_equal(work(rt, x, weight), expected)
        del rt, weight
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(work(rt, x, weight), expected)


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_a_wrong_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads is {threads}"):
        _native.Runtime("portable", threads)


def test_a_wrong_path_is_refused_with_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"'sse9'.*portable"):
        _native.Runtime("sse9", 1)
    assert _native.available_paths()[-1] == "portable"
    assert _native.Runtime("portable", 1).path == "portable"
