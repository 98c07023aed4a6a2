"""``GET /state``: the pool block by block and the running requests, for people who watch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.llm.session import Session
from octavo.memory import Allocator
from octavo.memory.paged import PagedAllocator
from octavo.telemetry.metrics import Metrics

CELLS_MAX = 2048
FREE, CACHED, LIVE, SHARED = range(4)
LETTERS = "FCLS"
"""One for each state, in this order."""


def block_states(allocator: Allocator) -> NDArray[np.uint8]:
    """uint8 [blocks]: FREE, CACHED, LIVE (in one row) or SHARED (in several)."""
    table = allocator.table
    rows = np.flatnonzero(table.num_blocks).tolist()
    held = np.concatenate([table.row(row) for row in rows]) if rows else np.zeros(0, np.int32)
    refs = np.bincount(held, minlength=allocator.num_blocks)
    states = np.minimum(refs, 2).astype(np.uint8)
    states[states > 0] += LIVE - 1
    if isinstance(allocator, PagedAllocator):
        states[(refs == 0) & allocator.pool.findable] = CACHED
    return states


def pool_map(allocator: Allocator) -> dict[str, Any]:
    """One letter a cell of neighbouring blocks: the state that most of them have."""
    states = block_states(allocator)
    size = -(-len(states) // CELLS_MAX)
    cells = -(-len(states) // size)
    counts = np.zeros((cells, len(LETTERS)), np.int64)
    np.add.at(counts, (np.arange(len(states)) // size, states), 1)
    return {
        "blocks_per_cell": size,
        "cells": "".join(LETTERS[state] for state in counts.argmax(axis=1).tolist()),
    }


def snapshot(session: Session, metrics: Metrics) -> dict[str, Any]:
    """The state between two steps. To be called in the engine's thread."""
    scheduler = session.engine.scheduler
    running, allocator = scheduler.running, scheduler.allocator
    pool = allocator.state()
    return {
        "model": session.spec.name,
        "now": session.engine.clock.now(),
        "pool": {"live": pool.live, "cached": pool.cached, "free": pool.free, "total": pool.total},
        "block_size": allocator.block_size,
        "allocator": allocator.name,
        "map": pool_map(allocator),
        "waiting": scheduler.num_waiting,
        "max_num_seqs": scheduler.config.max_num_seqs,
        "running": [
            {
                "id": sequence.request_id,
                "prompt_tokens": sequence.prompt_tokens,
                "cached_tokens": sequence.cached_tokens,
                "output_tokens": int(running.known[place]) - sequence.prompt_tokens,
                "blocks": int(allocator.table.num_blocks[running.row[place]]),
                "preemptions": sequence.preemptions,
            }
            for place, sequence in enumerate(running.sequences)
        ],
        "totals": asdict(metrics.totals),
        "lookups": asdict(metrics.lookups),
    }
