"""How the blocks of sequences lie in memory. Read off the table when asked; nothing is counted as it goes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_table import BlockTable


def run_lengths(table: BlockTable) -> NDArray[np.intp]:
    """intp [runs], in blocks: every longest stretch of a row in which each block is the one behind the last."""
    lengths = []
    for row in table.num_blocks.nonzero()[0].tolist():
        blocks = table.row(row)
        breaks = (np.diff(blocks) != 1).nonzero()[0] + 1
        lengths.append(np.diff(breaks, prepend=0, append=len(blocks)))
    return np.concatenate(lengths) if lengths else np.zeros(0, np.intp)


def mean_run_tokens(table: BlockTable, block_size: int) -> float:
    """Slots that a sequence's blocks lie in a row in memory, on average over the runs; 0 where nothing is held."""
    runs = run_lengths(table)
    return float(runs.sum() * block_size / len(runs)) if len(runs) else 0.0
