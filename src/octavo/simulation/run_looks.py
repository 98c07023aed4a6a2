"""How the running sequences' blocks lie in memory, looked at now and then: each look reads the whole block table."""

from __future__ import annotations

from octavo.memory.block_table import BlockTable
from octavo.memory.runs import run_lengths

MOST = 32
"""Looks that are kept at most."""


class RunLooks:
    """Looks at equal distances over a run of any length. When there are too many, every other one is dropped and the
    distance doubles."""

    def __init__(self, table: BlockTable, block_size: int) -> None:
        self.next = 1
        """Step after which ``look`` is wanted."""
        self._table = table
        self._block_size = block_size
        self._distance = 1
        self._looks: list[tuple[int, int]] = []
        """(blocks, runs) of all rows."""

    def look(self) -> None:
        """To be called after step ``next``."""
        runs = run_lengths(self._table)
        self._looks.append((int(runs.sum()), len(runs)))
        if len(self._looks) == MOST:
            self._looks = self._looks[1::2]
            self._distance *= 2
        self.next += self._distance

    @property
    def mean_tokens(self) -> float:
        """Slots in a row, on average over all runs that were seen; 0 if none was."""
        blocks = sum(blocks for blocks, _ in self._looks)
        runs = sum(runs for _, runs in self._looks)
        return blocks * self._block_size / runs if runs else 0.0
