"""``BlockPool``: who owns which block.

Every block is exactly one of

    live     refs > 0: that many table entries point at it
    cached   refs == 0, and its content can still be found (``findable``)
    free     refs == 0, and nobody can find its content

    live + cached + free == total, after every call.

All calls take and give whole arrays: a step in which a thousand sequences need a block each is one call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import PoolState

Blocks = NDArray[np.intp]
"""Block numbers on their way. Not int32, as in the table: NumPy takes its own index type several times as fast."""

NO_BLOCKS: Blocks = np.zeros(0, np.intp)
NO_BLOCKS.setflags(write=False)


Listener = Callable[[Blocks, NDArray[np.intp]], object]
"""Hears of blocks that lose their cached content, and where they stand among those that are being acquired."""


def ignore(blocks: Blocks, at: NDArray[np.intp]) -> None:
    """The eviction listener of a pool that caches nothing."""


class BlockPool:
    """Hands out blocks and takes them back. Knows no sequence, no token and no hash.

    Free blocks are a stack, so that the most recently used memory is used again first, and consecutive blocks of
    a fresh pool come out in ascending order. Cached blocks wait in a queue, least recently released first, and are
    taken only when the stack is empty. A block that is shared again leaves the queue lazily: its ``_place`` no
    longer names the entry, and whoever passes the entry skips it. (A linked list would need a Python loop.)

    Where blocks stand in memory it does not ask; ``SuperblockPool`` does.
    """

    def __init__(self, total: int, on_evict: Listener = ignore) -> None:
        """``on_evict`` is told which cached blocks lose their content, before they are handed out."""
        assert total >= 1
        self.total = total
        self.refs = np.zeros(total, np.int32)
        self.findable = np.zeros(total, np.bool_)
        """Whether the prefix cache can find the block by content. Written by ``publish`` and by eviction alone."""
        self.free = total
        self.cached = 0
        self._on_evict = on_evict
        self._stack = np.arange(total - 1, -1, -1, dtype=np.intp)
        self._queue = np.empty(2 * total, np.intp)
        self._head = 0
        self._tail = 0
        self._stale = 0
        """Entries of the queue whose block is no longer cached."""
        self._place = np.full(total, -1, np.int64)
        """Index of a cached block's entry in ``_queue``; -1 for every other block."""

    @property
    def available(self) -> int:
        """Blocks that ``acquire`` could hand out now: free and cached ones."""
        return self.free + self.cached

    @property
    def live(self) -> int:
        return self.total - self.free - self.cached

    def state(self) -> PoolState:
        cached, free = self.cached, self.free
        return PoolState(self.total - free - cached, cached, free)

    def acquire(self, count: int, after: int | None = None) -> Blocks | None:
        """``count`` blocks for one sequence, with one reference each, intp [count]; None if fewer are free or cached.

        Evicts cached blocks, least recently used first, when free ones do not suffice. ``after`` is a wish, at which
        this pool does not look: the first of them had best stand right behind this block.
        """
        if count > self.free + self.cached:
            return None
        top = self.free
        if count <= top:
            blocks = self._stack[top - count : top][::-1].copy()
            self.free = top - count
        else:
            blocks = self._evict(count - top)
            if top:
                blocks = np.concatenate((self._stack[:top][::-1], blocks))
            self.free = 0
        self.refs[blocks] = 1
        return blocks

    def acquire_each(self, after: Blocks) -> Blocks | None:
        """One block for each of many sequences, whose last blocks are ``after``; as ``acquire``, intp [k].

        Where two have the same last block, they share it.
        """
        return self.acquire(len(after))

    def share(self, blocks: Blocks) -> None:
        """One more reference to each of these distinct live or cached blocks."""
        idle = blocks[self.refs[blocks] == 0]
        if idle.size:
            assert self.findable[idle].all(), "a free block cannot be shared"
            self._place[idle] = -1
            self._stale += len(idle)
            self.cached -= len(idle)
        self.refs[blocks] += 1

    def release(self, blocks: Blocks) -> None:
        """One reference less to each of these distinct blocks, given in the order of their sequence.

        A block that nobody holds any more becomes cached if it is findable, else free. The last one of the sequence
        is evicted first: a chain without its tail is still of use, a tail without its chain is not.
        """
        left = self.refs[blocks] - 1
        self.refs[blocks] = left
        idle = (blocks[left == 0] if np.count_nonzero(left) else blocks)[::-1]
        keep = self.findable[idle]
        if np.count_nonzero(keep):
            self._enqueue(idle[keep])
            idle = idle[~keep]
        self._set_free(idle)

    def _set_free(self, blocks: Blocks) -> None:
        """Nobody holds or finds these blocks any more; the last one is handed out first."""
        top = self.free
        self._stack[top : top + len(blocks)] = blocks
        self.free = top + len(blocks)

    def publish(self, blocks: Blocks) -> None:
        """These live blocks can now be found by content."""
        self.findable[blocks] = True

    def withdraw(self, block: int) -> None:
        """This live block can no longer be found by content (it is about to be written to)."""
        assert self.refs[block] > 0, "only a live block is written to"
        self.findable[block] = False

    def forget_all(self) -> int:
        """No block can be found by content any more; cached ones become free. Returns how many were cached."""
        idle = self.eviction_order()[::-1].copy()
        self.findable[:] = False
        self._place[idle] = -1
        self._head = self._tail = self._stale = 0
        self._set_free(idle)
        self.cached = 0
        return len(idle)

    def _enqueue(self, blocks: Blocks) -> None:
        count = len(blocks)
        if self._tail + count > len(self._queue):
            self._compact()
        tail = self._tail
        self._queue[tail : tail + count] = blocks
        self._place[blocks] = np.arange(tail, tail + count)
        self._tail = tail + count
        self.cached += count

    def _compact(self) -> None:
        """Move the valid entries to the queue's start. At most ``total`` are valid, so another ``total`` fit."""
        entries = self._queue[self._head : self._tail]
        valid = entries[self._place[entries] == np.arange(self._head, self._tail)]
        self._queue[: len(valid)] = valid
        self._place[valid] = np.arange(len(valid))
        self._head, self._tail, self._stale = 0, len(valid), 0

    def _evict(self, count: int) -> Blocks:
        """Take the ``count`` least recently released cached blocks; there are as many. Free ones stand before them."""
        evicted = self._oldest(count)
        self._place[evicted] = -1
        self.findable[evicted] = False
        self.cached -= count
        self._on_evict(evicted, np.arange(self.free, self.free + count))
        return evicted

    def _oldest(self, count: int) -> Blocks:
        """Take the first ``count`` valid entries out of the queue; there are as many."""
        if self._stale:
            return self._oldest_valid(count)
        blocks = self._queue[self._head : self._head + count].copy()
        self._head += count
        return blocks

    def _oldest_valid(self, count: int) -> Blocks:
        """Pass the queue's entries, and the stale ones between them, until ``count`` valid ones are found."""
        found: list[Blocks] = []
        missing = count
        while missing:
            stop = min(self._tail, self._head + max(2 * missing, 32))
            entries = self._queue[self._head : stop]
            valid = np.flatnonzero(self._place[entries] == np.arange(self._head, stop))[:missing]
            passed = int(valid[-1]) + 1 if len(valid) == missing else len(entries)
            self._head += passed
            self._stale -= passed - len(valid)
            found.append(entries[valid])
            missing -= len(valid)
        return np.concatenate(found)

    def eviction_order(self) -> Blocks:
        """intp [cached]: cached blocks, the one that is evicted first at the front."""
        entries = self._queue[self._head : self._tail]
        valid: Blocks = entries[self._place[entries] == np.arange(self._head, self._tail)]
        return valid

    def free_blocks(self) -> Blocks:
        """intp [free]: the free blocks; a view, the one that is handed out next at the end."""
        return self._stack[: self.free]
