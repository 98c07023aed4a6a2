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
        self.last = np.zeros(rows, np.intp)
        """intp [rows]: the last of them, where there are some. In the matrix each would be a cache miss."""
        self.entries = 0
        """Blocks that all rows hold together; a shared block counts once for each of its rows."""

    def row(self, row: int) -> NDArray[np.int32]:
        """A view of the blocks that a row holds, in the order of its tokens."""
        return self.matrix[row, : self.num_blocks[row]]

    def blocks_at(self, rows: NDArray[np.intp], numbers: NDArray[np.intp]) -> Blocks:
        """intp [k]: block ``numbers[i]`` of ``rows[i]``."""
        blocks: NDArray[np.int32] = self._flat[rows * self.matrix.shape[1] + numbers]
        return blocks.astype(np.intp)

    def append(self, row: int, blocks: Blocks) -> None:
        """Put ``blocks`` behind those that a row holds."""
        first = int(self.num_blocks[row])
        count = len(blocks)
        if not count:
            return
        self.matrix[row, first : first + count] = blocks
        self.last[row] = blocks[-1]
        self.num_blocks[row] = first + count
        self.entries += count

    def replace(self, row: int, number: int, block: int) -> None:
        """Put a block in the place of a row's block ``number``."""
        self.matrix[row, number] = block
        if number == self.num_blocks[row] - 1:
            self.last[row] = block

    def append_one(self, rows: NDArray[np.intp], blocks: Blocks) -> None:
        """``append`` for many distinct rows: ``blocks[i]`` goes to ``rows[i]``."""
        held = self.num_blocks[rows]
        self._flat[rows * self.matrix.shape[1] + held] = blocks
        self.last[rows] = blocks
        self.num_blocks[rows] = held + 1
        self.entries += len(rows)

    def ends(self, rows: NDArray[np.intp]) -> Blocks:
        """intp [k]: the last block of each of these rows; all of them hold some."""
        assert np.count_nonzero(self.num_blocks[rows]) == len(rows), "a row without blocks has no last one"
        return self.last[rows]

    def append_to_few(self, rows: list[int], blocks: list[int]) -> None:
        """``append_one`` for few rows: quicker with plain numbers."""
        flat, held, last, width = self._flat, self.num_blocks, self.last, self.matrix.shape[1]
        for row, block in zip(rows, blocks, strict=True):
            count = int(held[row])
            flat[row * width + count] = last[row] = block
            held[row] = count + 1
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
        some = counts > 0
        self.last[rows[some]] = blocks[ends[some] - 1]
        self.num_blocks[rows] = first + counts

    def cut(self, row: int, keep: int) -> Blocks:
        """Drop a row's blocks from number ``keep`` on and return them (a copy), in order."""
        held = int(self.num_blocks[row])
        dropped = self.matrix[row, keep:held].astype(np.intp)
        self.num_blocks[row] = keep
        if keep:
            self.last[row] = self.matrix[row, keep - 1]
        self.entries -= held - keep
        return dropped
