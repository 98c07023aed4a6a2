"""``BlockTable``: which physical block holds the i-th block of a sequence. One row a running sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_pool import Blocks


class BlockTable:
    """``matrix[row, :num_blocks[row]]`` are the row's blocks; what stands behind them is stale and means nothing."""

    def __init__(self, rows: int, max_blocks: int) -> None:
        # np.zeros commits no memory until a row is written to.
        self.matrix = np.zeros((rows, max_blocks), np.int32)
        """int32 [rows, max_blocks]: physical block numbers."""
        self._flat = self.matrix.reshape(-1)
        """The same, end to end: NumPy takes one index several times as fast as two."""
        self.num_blocks = np.zeros(rows, np.intp)
        """intp [rows]: blocks that each row holds."""
        self.entries = 0
        """Blocks that all rows hold together; a shared block counts once for each of its rows."""

    def row(self, row: int) -> NDArray[np.int32]:
        """A view of the blocks that a row holds, in the order of its tokens."""
        return self.matrix[row, : self.num_blocks[row]]

    def blocks_at(self, rows: NDArray[np.intp], numbers: NDArray[np.intp]) -> Blocks:
        """intp [k]: block ``numbers[i]`` of ``rows[i]``."""
        blocks: NDArray[np.int32] = self._flat[rows * self.matrix.shape[1] + numbers]
        return blocks.astype(np.intp)

    def ends(self, rows: NDArray[np.intp]) -> Blocks:
        """intp [k]: the last block of each of these rows; all of them hold some."""
        held = self.num_blocks[rows]
        assert np.count_nonzero(held) == len(rows), "a row without blocks has no last one"
        blocks: NDArray[np.int32] = self._flat[rows * self.matrix.shape[1] + (held - 1)]
        return blocks.astype(np.intp)

    def append(self, row: int, blocks: Blocks) -> None:
        """Put ``blocks`` behind those that a row holds."""
        first = int(self.num_blocks[row])
        count = len(blocks)
        self.matrix[row, first : first + count] = blocks
        self.num_blocks[row] = first + count
        self.entries += count

    def append_one(self, rows: NDArray[np.intp], blocks: Blocks) -> None:
        """``append`` for many distinct rows: ``blocks[i]`` goes to ``rows[i]``."""
        held = self.num_blocks[rows]
        self._flat[rows * self.matrix.shape[1] + held] = blocks
        self.num_blocks[rows] = held + 1
        self.entries += len(rows)

    def append_each(self, rows: NDArray[np.intp], counts: NDArray[np.intp], blocks: Blocks) -> None:
        """``append`` for many distinct rows: the first ``counts[0]`` blocks go to ``rows[0]``, and so on."""
        total = len(blocks)
        if np.count_nonzero(counts) == total == len(rows):
            self.append_one(rows, blocks)
            return
        first = self.num_blocks[rows]
        self.entries += total
        ends = np.cumsum(counts)
        within = np.arange(total) - np.repeat(ends - counts, counts)
        self.matrix[np.repeat(rows, counts), np.repeat(first, counts) + within] = blocks
        self.num_blocks[rows] = first + counts

    def cut(self, row: int, keep: int) -> Blocks:
        """Drop a row's blocks from number ``keep`` on and return them (a copy), in order."""
        held = int(self.num_blocks[row])
        dropped = self.matrix[row, keep:held].astype(np.intp)
        self.num_blocks[row] = keep
        self.entries -= held - keep
        return dropped
