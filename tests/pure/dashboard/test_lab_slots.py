"""Cells of a contiguous pool: every chunk keeps place and length to half a cell, and no cell has two owners."""

from __future__ import annotations

import numpy as np

from octavo.dashboard.frames import FrameSource
from octavo.dashboard.lab_slots import cells_of
from octavo.simulation import article
from octavo.simulation.driver import Stop

CELL = 16


def test_chunks_are_where_they_are() -> None:
    simulation = article.build(article.ArticleSettings(allocator="reserved", steps=400, warmup_steps=1))
    simulation.run(Stop(steps=300))
    scheduler = simulation.scheduler
    view = cells_of(scheduler, CELL)
    running, table, cells = view.running, scheduler.allocator.table, view.allocator.table
    rows = running.row[: running.count].tolist()
    assert len(rows) > 20
    taken: list[int] = []
    for row in rows:
        slots, found = table.row(row), cells.matrix[row, : cells.num_blocks[row]]
        assert abs(int(found[0]) * CELL - int(slots[0])) <= CELL / 2
        assert abs((int(found[-1]) + 1) * CELL - (int(slots[-1]) + 1)) <= CELL / 2
        assert (np.diff(found) == 1).all()
        taken += found.tolist()
    assert len(set(taken)) == len(taken), "a cell has two owners"
    assert max(taken) < view.allocator.num_blocks
    state = view.allocator.state()
    assert state.live == len(taken) and state.total == -(-article.POOL_SLOTS // CELL)


def test_frames_of_the_cells_count_what_is_written() -> None:
    simulation = article.build(article.ArticleSettings(allocator="reserved", steps=400, warmup_steps=1))
    source = FrameSource(cells_of(simulation.scheduler, CELL))
    simulation.run(Stop(steps=50))
    frame = source.snapshot(50.0)
    assert frame["pool"]["block_size"] == CELL
    running = simulation.scheduler.running
    assert frame["running"]["computed"] == running.computed[: running.count].tolist()
    assert frame["figures"]["live"] == sum(frame["running"]["blocks"])
