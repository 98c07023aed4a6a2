"""``SuperblockPool``: a ``BlockPool`` that hands out physical neighbours where it can.

A *superblock* is an aligned run of ``size`` blocks. A sequence's first block is the first of a superblock of which
nobody holds anything, and it grows along it. The blocks in front of it are not held: they stay free (or cached), and
under pressure anyone may take them. So contiguity is a wish of the sequences, never a right: no block is refused
while one is free or cached. (Reservation-based superpages: Navarro, Iyer, Druschel and Cox, OSDI 2002.)

Every block that nobody holds is either

    open    free, or cached and among the longest unused: placement may take it
    young   cached, and not yet old: it is taken when nothing is open

so that placement has something to choose from where everything is cached. What is taken of the open ones is no longer
exactly the least recently used; how far it may differ is bounded by ``tolerance``.

Where hardly anything is left (``scarce``), a superblock given to one sequence would be taken apart by the next. New
runs of growing sequences then crowd at the pool's end, so that what ends elsewhere leaves whole superblocks to prompts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_pool import NO_BLOCKS, BlockPool, Blocks, Listener, ignore

SHARE = 8
"""One of so many blocks of the pool is little. A superblock is no more, and no more is cached and open beyond what is
asked for at once; where less is left, it is scarce."""


def superblock_blocks(tokens: int, block_size: int, num_blocks: int) -> int:
    """Blocks of a superblock of ``tokens`` slots; 1, which is none, where that is no more than a block."""
    most = min(tokens // block_size, num_blocks // SHARE)
    return 1 << (most.bit_length() - 1) if most else 1


class WholeSuperblocks:
    """The wholly open superblocks, in the order in which they had best be used.

    Free ones come first, the most recently released one at the front: memory that was just in use. Untouched ones
    follow, in ascending order, because the first use of memory costs page faults; and behind these the cached ones, the
    oldest in front. A superblock of which something is taken by another way leaves lazily: ``pop`` passes its entry.
    """

    def __init__(self, number: int, whole: int) -> None:
        """``number`` superblocks, of which the first ``whole`` ones are open."""
        self.number = number
        self._ring = np.zeros(number, np.intp)
        self._ring[:whole] = np.arange(whole)
        self._front = 0
        self._length = whole
        self._there = np.arange(number) < whole

    def numbers(self) -> Blocks:
        """intp: those that have an entry."""
        return self._ring[(self._front + np.arange(self._length)) % self.number]

    def push(self, numbers: Blocks, *, first: bool) -> None:
        """These distinct ones become wholly open: the last comes to the front, or the first behind all others."""
        numbers = numbers[~self._there[numbers]]
        count = len(numbers)
        self._there[numbers] = True
        if first:
            self._front = (self._front - count) % self.number
            numbers, at = numbers[::-1], self._front
        else:
            at = self._front + self._length
        self._ring[(at + np.arange(count)) % self.number] = numbers
        self._length += count

    def pop(self, count: int, counts: NDArray[np.intp], size: int) -> Blocks:
        """At most ``count`` that are wholly open, which is told by ``counts``: they have ``size`` open blocks."""
        found: list[Blocks] = []
        while count and self._length:
            some = min(count, self._length)
            entries = self._ring[(self._front + np.arange(some)) % self.number]
            self._front = (self._front + some) % self.number
            self._length -= some
            self._there[entries] = False
            entries = entries[counts[entries] == size]
            found.append(entries)
            count -= len(entries)
        if not found:
            return NO_BLOCKS
        return found[0] if len(found) == 1 else np.concatenate(found)


class SuperblockPool(BlockPool):
    def __init__(self, total: int, size: int, on_evict: Listener = ignore) -> None:
        """``size``: blocks of a superblock, a power of two from 2."""
        super().__init__(total, on_evict)
        assert size >= 2 and size & (size - 1) == 0
        number = -(-total // size)
        self.size = size
        self._little = total // SHARE
        self.old = 0
        """Blocks that are open and cached."""
        self._shift = size.bit_length() - 1
        self._mask = size - 1
        self._open = np.zeros(number * size + 1, np.bool_)
        """bool [blocks, those that the last superblock lacks, and one more]: a wish behind the last block is in it."""
        self._open[:total] = True
        self._opened = total
        self._grid = self._open[:-1].reshape(number, size)
        self._counts = np.append(self._grid.sum(axis=1), 0)
        """intp [superblocks + 1]: open blocks of each."""
        self._mark = np.zeros(number * size + 1, np.intp)
        """Scratch, to find equal numbers in an array without sorting it."""
        self._whole = WholeSuperblocks(number, total // size)
        self.references = 0
        """Of all blocks together."""

    # ------------------------------------------------------------------ acquiring

    @property
    def scarce(self) -> bool:
        """Whether little is left."""
        return self.free + self.cached < self._little

    @property
    def tolerance(self) -> int:
        """Blocks that may be cached and open beyond what is asked for at once."""
        return (self.free + self.cached) // SHARE

    def acquire(self, count: int, after: int | None = None) -> Blocks | None:
        if count > self.free + self.cached:
            return None
        if count > self._opened:
            self._age(count - self._opened)
        wish = 0 if after is None else after + 1
        blocks = self._next_one(wish) if count == 1 else self._run(count, wish)
        self._hold(blocks)
        return blocks

    def acquire_each(self, after: Blocks) -> Blocks | None:
        count = len(after)
        if count > self.free + self.cached:
            return None
        if count > self._opened:
            self._age(count - self._opened)
        blocks = self._next_one(int(after[0]) + 1) if count == 1 else self._next(after + 1)
        self._hold(blocks)
        return blocks

    def _next_one(self, wish: int) -> Blocks:
        """``_next`` for one row, the usual case of a small batch: a few numbers are quicker than as many arrays."""
        if not (wish and self._open[wish]):
            return self._begin(1)
        self._open[wish] = False
        self._counts[wish >> self._shift] -= 1
        return np.array([wish])

    def _next(self, wish: Blocks) -> Blocks:
        """As many open blocks, the i-th one at ``wish[i]`` where that is open."""
        count = len(wish)
        granted = self._open[wish]
        if self.references > self.live:  # blocks are shared, so two rows may wish for the same one
            granted &= self._alone(wish)
        lost = count - int(np.count_nonzero(granted))
        if not lost:
            self._close(wish)
            return wish
        if lost < count:
            self._close(wish[granted])
        blocks = wish.copy()
        blocks[~granted] = self._begin(lost)
        return blocks

    def _alone(self, numbers: Blocks) -> NDArray[np.bool_]:
        """bool [k]: whether none of those behind it is the same. (To sort them would take longer.)"""
        place = np.arange(len(numbers))
        self._mark[numbers] = place
        alone: NDArray[np.bool_] = self._mark[numbers] == place
        return alone

    def _begin(self, count: int) -> Blocks:
        """``count`` open blocks, each the first of a superblock of which nobody holds anything, as far as possible."""
        if self.scarce:
            return self._crowd(count)
        found: list[Blocks] = []
        while True:
            starts = self._whole.pop(count, self._counts, self.size) << self._shift
            self._close(starts)
            found.append(starts)
            count -= len(starts)
            if not count or not self._age_within(count):
                break
        if count:
            found.append(self._crowd(count))
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _crowd(self, count: int) -> Blocks:
        """The last ``count`` open blocks of the pool."""
        some = self._counts.nonzero()[0][-count:]
        at, place = self._grid[some].nonzero()
        blocks: Blocks = ((some[at] << self._shift) + place)[-count:]
        self._close(blocks)
        return blocks

    # ------------------------------------------------------------------ many for one sequence

    def _run(self, count: int, wish: int) -> Blocks:
        """``count`` open blocks for one sequence: from ``wish`` on, whole superblocks, then the best of the rest."""
        parts = [self._go_on(wish, count)]
        left = count - len(parts[0])
        # The last superblock is there to grow into. Where it is scarce, others would.
        scarce = self.scarce
        rest = left & self._mask if scarce else 0
        while left > rest:
            wanted = -(-(left - rest) // self.size)
            numbers = self._whole.pop(wanted, self._counts, self.size)
            blocks = ((numbers << self._shift)[:, None] + np.arange(self.size)).reshape(-1)[:left]
            self._close(blocks)
            parts.append(blocks)
            left -= len(blocks)
            if len(numbers) < wanted and not self._age_within(wanted - len(numbers)):
                break
        while left:
            parts.append(self._fit(left))
            left -= len(parts[-1])
        return np.concatenate(parts)

    def _go_on(self, wish: int, count: int) -> Blocks:
        """At most ``count`` open blocks in a row from ``wish`` on, within its superblock."""
        end = min(wish + count, (wish | self._mask) + 1) if wish else 0
        run = self._open[wish:end]
        stop = end if run.all() else wish + int(run.argmin())
        blocks = np.arange(wish, stop)
        self._close(blocks)
        return blocks

    def _fit(self, count: int) -> Blocks:
        """At most ``count`` open blocks: of a superblock that has hardly more, or else of those that have most."""
        counts = self._counts
        enough = np.where(counts >= count, counts, self.size + 1)
        best = np.array([enough.argmin()])
        if enough[best[0]] > self.size:
            # Stable, because another order of equals on another machine would be another decision.
            some = counts.nonzero()[0]
            some = some[np.argsort(-counts[some], kind="stable")]
            # As many as do not leave less than a superblock of that size could still fit.
            best = some[: max(1, int(np.searchsorted(np.cumsum(counts[some]), count, side="right")))]
        at, place = self._grid[best].nonzero()
        blocks: Blocks = ((best[at] << self._shift) + place)[:count]
        self._close(blocks)
        return blocks

    # ------------------------------------------------------------------ open and closed

    def _close(self, blocks: Blocks) -> None:
        """These open blocks are taken."""
        self._open[blocks] = False
        np.subtract.at(self._counts, blocks >> self._shift, 1)

    def _hold(self, blocks: Blocks) -> None:
        """The first reference to each of these blocks, which were open."""
        count = len(blocks)
        self.references += count
        self._opened -= count
        self.refs[blocks] = 1
        if self.old:
            at = self.findable[blocks].nonzero()[0]
            if at.size:
                evicted = blocks[at]
                self.findable[evicted] = False
                self.cached -= len(at)
                self.old -= len(at)
                count -= len(at)
                self._on_evict(evicted, at)
        self.free -= count

    def _open_up(self, blocks: Blocks, *, first: bool) -> None:
        """Placement may take these blocks; ``first`` says where superblocks come that are wholly open now."""
        self._open[blocks] = True
        self._opened += len(blocks)
        numbers: Blocks = blocks >> self._shift
        np.add.at(self._counts, numbers, 1)
        numbers = numbers[self._counts[numbers] == self.size]
        if numbers.size:
            self._whole.push(numbers[self._alone(numbers)], first=first)

    def _age(self, count: int) -> None:
        """Open the ``count`` least recently released young blocks; there are as many."""
        blocks = self._oldest(count)
        self._place[blocks] = -1
        self.old += count
        self._open_up(blocks, first=False)

    def _age_within(self, superblocks: int) -> bool:
        """Open more, so that superblocks may become wholly open, if the tolerance lets us; whether anything was."""
        young = self.free + self.cached - self._opened
        count = min(2 * superblocks * self.size, self.tolerance - self.old, young)
        if count <= 0:
            return False
        self._age(count)
        return True

    # ------------------------------------------------------------------ for the audit

    def opened_by_superblock(self) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """(bool [superblocks, size]: which blocks are open; intp [superblocks]: how many)."""
        return self._grid, self._counts[:-1]

    def whole_superblocks(self) -> Blocks:
        """intp: superblocks that may be wholly open, and all that are."""
        return self._whole.numbers()

    # ------------------------------------------------------------------ the rest of a pool

    def share(self, blocks: Blocks) -> None:
        idle = blocks[self.refs[blocks] == 0]
        if idle.size and self.old:
            old = idle[self._open[idle]]
            assert self.findable[old].all(), "a free block cannot be shared"
            self._close(old)
            self._opened -= len(old)
            self.old -= len(old)
            self._stale -= len(old)  # they have no entry that becomes stale
        self.references += len(blocks)
        super().share(blocks)

    def release(self, blocks: Blocks) -> None:
        self.references -= len(blocks)
        super().release(blocks)

    def _set_free(self, blocks: Blocks) -> None:
        self.free += len(blocks)
        self._open_up(blocks, first=True)

    def forget_all(self) -> int:
        young = super().eviction_order()
        count = self.cached
        self.free += count
        self.cached = self.old = 0
        self.findable[:] = False
        self._place[young] = -1
        self._head = self._tail = self._stale = 0
        self._open_up(young[::-1], first=True)
        return count

    def eviction_order(self) -> Blocks:
        """intp [cached]: the open ones, which are evicted in the order of placement, then the others."""
        old = (self._open[: self.total] & self.findable).nonzero()[0]
        return np.concatenate((old, super().eviction_order()))

    def free_blocks(self) -> Blocks:
        """intp [free]: a copy, in ascending order."""
        blocks: Blocks = (self._open[: self.total] & ~self.findable).nonzero()[0]
        return blocks
