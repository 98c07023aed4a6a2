from __future__ import annotations

import numpy as np

from octavo.memory.block_table import BlockTable
from octavo.simulation.run_looks import MOST, RunLooks


def seen(steps: int) -> tuple[list[int], float]:
    """(steps at which it looked, mean); before step i + 1 the only row is one run of i + 1 blocks."""
    table = BlockTable(2, steps)
    looks, at = RunLooks(table, 4), []
    for step in range(1, steps + 1):
        table.append(0, np.array([step]))
        if step == looks.next:
            at.append(step)
            looks.look()
    return at, looks.mean_tokens


def test_every_step_of_a_short_run_is_looked_at() -> None:
    at, mean = seen(MOST - 1)
    assert at == list(range(1, MOST))
    assert mean == 4 * sum(at) / (MOST - 1)


def test_a_long_run_is_looked_at_at_equal_distances() -> None:
    at, mean = seen(1000)
    assert at[:MOST] == list(range(1, MOST + 1))
    assert at[-3:] == [928, 960, 992]
    assert mean == 4 * sum(range(32, 993, 32)) / 31


def test_runs_of_all_rows_count_alike() -> None:
    table = BlockTable(3, 8)
    looks = RunLooks(table, 16)
    assert looks.mean_tokens == 0.0
    looks.look()
    assert looks.mean_tokens == 0.0
    table.append(0, np.array([4, 5, 6, 9]))
    table.append(2, np.array([1]))
    looks.look()
    assert looks.mean_tokens == 16 * 5 / 3
