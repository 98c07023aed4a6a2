"""How the blocks of sequences lie in memory. Read off the table when asked; nothing is counted as it goes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_table import BlockTable


def run_lengths(table: BlockTable) -> NDArray[np.intp]:
    """intp [runs], in blocks: every longest stretch of a row in which each block is the one behind the last."""
    held = [table.row(row) for row in table.num_blocks.nonzero()[0].tolist()]
    if not held:
        return np.zeros(0, np.intp)
    # All rows end to end: a call for each of a hundred rows took the simulator as long as all its scheduling.
    blocks = np.concatenate(held)
    begins = np.ones(len(blocks), np.bool_)
    np.not_equal(blocks[1:], blocks[:-1] + 1, out=begins[1:])
    begins[np.cumsum([len(row) for row in held[:-1]], dtype=np.intp)] = True
    return np.diff(begins.nonzero()[0], append=len(blocks))


def mean_run_tokens(table: BlockTable, block_size: int) -> float:
    """Slots that a sequence's blocks lie in a row in memory, on average over the runs; 0 where nothing is held."""
    runs = run_lengths(table)
    return float(runs.sum() * block_size / len(runs)) if len(runs) else 0.0
