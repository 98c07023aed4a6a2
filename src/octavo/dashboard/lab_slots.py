"""``cells_of``: a contiguous allocator that places single slots, looked at as cells of as many slots as a block has.

The lab draws it beside a paged pool, and half a million slots are neither drawn nor compared well one by one. A cell
belongs to the chunk that holds its middle slot, so every chunk keeps its place and its length to half a cell. Read-outs
never come from here; they count slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import PoolState
from octavo.memory import Allocator
from octavo.scheduling.running import Running
from octavo.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from octavo.scheduling.policies import WaitingQueue


class _CellTable:
    """What ``FrameSource`` reads of a block table, in cells; up to date after ``look``."""

    def __init__(self, allocator: Allocator, cell: int) -> None:
        self._table = allocator.table
        self._cell = cell
        self._total = -(-allocator.num_blocks // cell)
        self.num_blocks: NDArray[np.intp] = np.zeros_like(allocator.table.num_blocks)
        self.matrix: NDArray[np.int32] = np.zeros(
            (len(self.num_blocks), -(-allocator.table.matrix.shape[1] // cell) + 1), np.int32
        )

    def look(self) -> None:
        cell, table = self._cell, self._table
        held = table.num_blocks > 0
        starts = table.matrix[:, 0].astype(np.intp)
        first = (starts + cell // 2) // cell
        last = np.minimum((starts + table.num_blocks + cell // 2) // cell, self._total)
        self.num_blocks[:] = np.where(held, last - first, 0)
        for row in np.flatnonzero(held).tolist():
            self.matrix[row, : last[row] - first[row]] = np.arange(first[row], last[row])


class _CellAllocator:
    caching = False

    def __init__(self, allocator: Allocator, cell: int) -> None:
        assert allocator.block_size == 1, "cells are made of single slots"
        self.name = allocator.name
        self.block_size = cell
        self.num_blocks = -(-allocator.num_blocks // cell)
        self.table = _CellTable(allocator, cell)

    def state(self) -> PoolState:
        live = int(self.table.num_blocks.sum())
        return PoolState(live, 0, self.num_blocks - live)


class _CellScheduler:
    def __init__(self, scheduler: Scheduler, cell: int) -> None:
        self._scheduler = scheduler
        self.allocator = _CellAllocator(scheduler.allocator, cell)

    @property
    def running(self) -> Running:
        self.allocator.table.look()
        return self._scheduler.running

    @property
    def waiting(self) -> WaitingQueue:
        return self._scheduler.waiting


def cells_of(scheduler: Scheduler, cell: int) -> Scheduler:
    """A view of a scheduler over a contiguous allocator of single slots: ``FrameSource`` may look at it, no more."""
    return cast("Scheduler", _CellScheduler(scheduler, cell))
