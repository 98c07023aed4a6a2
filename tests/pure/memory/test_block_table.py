from __future__ import annotations

import numpy as np

from octavo.memory.block_table import BlockTable


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_rows_grow_by_different_counts_in_one_call() -> None:
    table = BlockTable(3, 5)
    table.append(1, ints(9))
    table.append_each(ints(2, 1), ints(2, 3), ints(4, 5, 6, 7, 8))
    assert table.row(0).tolist() == []
    assert table.row(1).tolist() == [9, 6, 7, 8]
    assert table.row(2).tolist() == [4, 5]
    assert table.num_blocks.tolist() == [0, 4, 2]
    assert table.entries == 6


def test_one_each_and_as_many_in_sum_are_told_apart() -> None:
    table = BlockTable(3, 4)
    table.append_each(ints(0, 2), ints(1, 1), ints(3, 4))
    table.append_each(ints(0, 1, 2), ints(0, 2, 1), ints(5, 6, 7))
    assert [table.row(row).tolist() for row in range(3)] == [[3], [5, 6], [4, 7]]


def test_a_cut_returns_what_it_drops() -> None:
    table = BlockTable(1, 4)
    table.append(0, ints(3, 1, 2))
    assert table.cut(0, 1).tolist() == [1, 2]
    assert table.row(0).tolist() == [3]
    assert table.entries == 1
    assert table.matrix.dtype == np.int32


def ends(table: BlockTable) -> list[int]:
    """The last block of every row that holds some, as the matrix has it; it must be what ``last`` says."""
    rows = table.num_blocks.nonzero()[0]
    found = [int(table.row(row)[-1]) for row in rows.tolist()]
    assert table.ends(rows).tolist() == found
    return found


def test_the_last_block_of_each_row_is_known_whatever_changes_it() -> None:
    table = BlockTable(3, 6)
    table.append(0, np.array([3, 4]))
    table.append(1, np.array([], np.intp))
    assert ends(table) == [4]
    table.append_each(np.array([0, 1, 2]), np.array([2, 0, 1]), np.array([5, 6, 7]))
    assert ends(table) == [6, 7]
    table.append_one(np.array([2, 0]), np.array([8, 9]))
    assert ends(table) == [9, 8]
    table.append_to_few([0, 2], [10, 11])
    assert ends(table) == [10, 11]
    assert table.row(0).tolist() == [3, 4, 5, 6, 9, 10] and table.entries == 9
    table.replace(0, 1, 1)
    table.replace(2, 2, 2)
    assert ends(table) == [10, 2]
    table.cut(0, 2)
    assert ends(table) == [1, 2]
    table.cut(2, 0)
    assert ends(table) == [1]
