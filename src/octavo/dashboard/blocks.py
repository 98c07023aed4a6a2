"""``BlockColumns``: the state of every block as the page draws it, and its compact form on the way there.

A column exists only for the blocks to which it applies, in the order of the blocks: the owner of a free block and the
age of a live one are not sent. So 100,000 blocks fit into about a megabyte of JSON, and where nothing moved nothing is.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.memory import Allocator
from octavo.memory.paged import PagedAllocator
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence

LIVE, FINDABLE, PARTIAL, SHARED = 1, 2, 4, 8
"""Bits of ``flags``. Free: 0. Cached: FINDABLE without LIVE. PARTIAL: live with slots that hold no token yet. SHARED:
more than one reference."""
NAME_BYTES = 3
"""Of a block's name (its hash), enough to tell two apart at a glance."""
TICKS = 100
"""Steps of ``idle`` in one unit of the clock."""
BEAMS, BEAM_ROWS, BEAM_ARRIVALS = 1 << 31, 1 << 11, 1 << 20
"""Numbers of beams: the first of them, and of how many rows and arrivals they are made, so that all fit 32 bits."""
UNSIGNED: tuple[tuple[str, int], ...] = (("u1", 0xFF), ("u2", 0xFFFF), ("u4", 0xFFFFFFFF))

Packed = list[str]
"""[type, data]: ``u1``, ``u2`` or ``u4`` and the little-endian array in base64."""


def pack(values: NDArray[Any]) -> Packed:
    """Non-negative numbers in the smallest unsigned type that takes them all."""
    largest = int(values.max()) if values.size else 0
    kind = next(name for name, most in UNSIGNED if largest <= most)
    return [kind, base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")]


def number_of(sequence: Sequence, row: int) -> int:
    """What the page calls a request: small, in the order of arrival, its own for good.

    The beams of a search arrived as one; all but its leader are numbered by their row, far above every request.
    """
    if sequence.beams is None or sequence.beams.leader is sequence:
        return sequence.arrival + 1
    return BEAMS + sequence.arrival % BEAM_ARRIVALS * BEAM_ROWS + row


def running_numbers(scheduler: Scheduler) -> list[int]:
    """Of the running sequences, in their order."""
    running = scheduler.running
    rows = running.row[: running.count].tolist()
    return [number_of(sequence, row) for sequence, row in zip(running.sequences, rows, strict=True)]


@dataclass(slots=True, eq=False)
class Held:
    """The block table of the running requests, end to end. E = entries, in the order of admission."""

    blocks: NDArray[np.intp]
    """intp [E]"""
    numbers: NDArray[np.intp]
    """intp [E]: number of the request that holds each entry."""
    positions: NDArray[np.intp]
    """intp [E]: place of the entry in its request's table."""
    filled: NDArray[np.intp]
    """intp [E]: tokens of that request that the block holds."""

    @classmethod
    def of(cls, scheduler: Scheduler) -> Held:
        running, table = scheduler.running, scheduler.allocator.table
        count = running.count
        rows = running.row[:count]
        held = table.num_blocks[rows]
        total = int(held.sum())
        who = np.repeat(np.arange(count), held)
        positions = np.arange(total) - np.repeat(held.cumsum() - held, held)
        size = scheduler.allocator.block_size
        filled = np.minimum(np.maximum(running.computed[:count][who] - positions * size, 0), size)
        numbers = np.array(running_numbers(scheduler), np.intp)
        blocks = table.matrix[rows[who], positions].astype(np.intp)
        return cls(blocks, numbers[who], positions, filled)


class BlockColumns:
    """Arrays over all blocks at one moment. ``read`` makes them; ``changes_from`` compares two."""

    def __init__(self, allocator: Allocator) -> None:
        total = allocator.num_blocks
        self.flags = np.zeros(total, np.uint8)
        self.owner = np.zeros(total, np.int64)
        """Number of the longest-running request that holds the block; 0 if nobody does."""
        self.position = np.zeros(total, np.int32)
        """Place in the owner's table."""
        self.fill = np.zeros(total, np.int32)
        """Tokens in the block, the most of any holder."""
        self.refs = np.zeros(total, np.int32)

    @classmethod
    def read(cls, allocator: Allocator, held: Held) -> BlockColumns:
        columns = cls(allocator)
        blocks, size = held.blocks, allocator.block_size
        columns.refs = np.bincount(blocks, minlength=allocator.num_blocks).astype(np.int32)
        # Of several values for one block NumPy keeps the last: the oldest request, as the order is turned round.
        columns.owner[blocks[::-1]] = held.numbers[::-1]
        columns.position[blocks[::-1]] = held.positions[::-1]
        shared = columns.refs > 1
        columns.fill[blocks] = held.filled
        if shared.any():
            np.maximum.at(columns.fill, blocks, held.filled)
        live = columns.refs > 0
        columns.flags[live] = LIVE
        columns.flags[live & (columns.fill < size)] |= PARTIAL
        columns.flags[shared] |= SHARED
        if isinstance(allocator, PagedAllocator):
            columns.flags[allocator.pool.findable] |= FINDABLE
        return columns

    def changes_from(self, old: BlockColumns) -> NDArray[np.bool_]:
        """bool [blocks]: which differ."""
        changed: NDArray[np.bool_] = self.flags != old.flags
        for new, before in (
            (self.owner, old.owner),
            (self.position, old.position),
            (self.fill, old.fill),
            (self.refs, old.refs),
        ):
            changed |= new != before
        return changed

    def packed(
        self, which: NDArray[np.intp] | None, idle: NDArray[np.float64], names: NDArray[np.uint8]
    ) -> dict[str, Any]:
        """Columns of these blocks (None: of all). ``idle``: clock units since each was released, float [blocks];
        ``names``: uint8 [blocks, NAME_BYTES]."""
        at = np.arange(len(self.flags)) if which is None else which
        flags = self.flags[at]
        live, partial, shared, findable = (at[(flags & bit) > 0] for bit in (LIVE, PARTIAL, SHARED, FINDABLE))
        cached = at[(flags & (LIVE | FINDABLE)) == FINDABLE]
        ticks = np.minimum(np.maximum(idle[cached], 0) * TICKS, 0xFFFFFFFF)
        return {
            "count": len(at),
            "index": None if which is None else pack(which),
            "flags": pack(flags),
            "owner": pack(self.owner[live]),
            "position": pack(self.position[live]),
            "fill": pack(self.fill[partial]),
            "refs": pack(self.refs[shared]),
            "idle": pack(ticks.astype(np.int64)),
            "name": base64.b64encode(names[findable].tobytes()).decode("ascii"),
        }
