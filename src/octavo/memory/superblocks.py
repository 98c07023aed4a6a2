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
from octavo.memory.open_blocks import OpenBlocks, WholeSuperblocks

SHARE = 8
"""One of so many blocks of the pool is little. A superblock is no more, and no more is cached and open beyond what is
asked for at once; where less is left, it is scarce."""


def superblock_blocks(tokens: int, block_size: int, num_blocks: int) -> int:
    """Blocks of a superblock of ``tokens`` slots; 1, which is none, where that is no more than a block."""
    most = min(tokens // block_size, num_blocks // SHARE)
    return 1 << (most.bit_length() - 1) if most else 1


class SuperblockPool(BlockPool):
    def __init__(self, total: int, size: int, on_evict: Listener = ignore) -> None:
        """``size``: blocks of a superblock, a power of two from 2."""
        super().__init__(total, on_evict)
        assert size >= 2 and size & (size - 1) == 0
        self.size = size
        self._little = total // SHARE
        self.old = 0
        """Blocks that are open and cached."""
        self._shift = size.bit_length() - 1
        self._mask = size - 1
        self._numbers = np.arange(-(-total // size) * size).reshape(-1, size)
        """intp [superblocks, size]: their blocks."""
        self._blocks = OpenBlocks(total, size)
        self._flags = self._blocks.flags
        self._open = self._blocks.of
        self._top = total
        self._mark = np.zeros(len(self._flags), np.intp)
        """Scratch, to find equal numbers in an array without sorting it."""
        self._whole = WholeSuperblocks(self._blocks)
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
        if count > self.free + self.old and not self._open_enough(count):
            return None
        wish = 0 if after is None else after + 1
        blocks = self._run(count, wish) if count != 1 else np.array(self._next_few([wish]), np.intp)
        self._hold(blocks)
        return blocks

    def acquire_each(self, after: Blocks) -> Blocks | None:
        count = len(after)
        if count > self.free + self.old and not self._open_enough(count):
            return None
        blocks = self._next(after + 1)
        self._hold(blocks)
        return blocks

    def acquire_few(self, after: list[int]) -> list[int] | None:
        """``acquire_each`` for few rows: a few numbers are quicker than as many arrays."""
        count = len(after)
        if count > self.free + self.old and not self._open_enough(count):
            return None
        blocks = self._next_few([last + 1 for last in after])
        if self.old:
            self._hold(np.array(blocks))
        else:
            self.references += count
            self.free -= count
            refs = self.refs
            for block in blocks:
                refs[block] = 1
        return blocks

    def _open_enough(self, count: int) -> bool:
        """Let ``count`` blocks be open, which are not; False if that many are not left."""
        if count > self.free + self.cached:
            return False
        self._age(count - self.free - self.old)
        return True

    def _next_few(self, wish: list[int]) -> list[int]:
        """``_next`` for a few rows; ``wish`` becomes the answer. Nobody wishes for block 0, so it stands for none."""
        flags = self._flags
        lost = []
        for i in range(len(wish) - 1, -1, -1):
            block = wish[i]
            if block and flags[block]:
                flags[block] = 0
            else:
                lost.append(i)
        if lost:
            lost.reverse()
            for i, block in zip(lost, self._begin(len(lost)), strict=True):
                wish[i] = block
        return wish

    def _next(self, wish: Blocks) -> Blocks:
        """As many open blocks, the i-th one at ``wish[i]`` where that is open. Of equal wishes the last is granted."""
        lost = ~self._open[wish]
        if self.references > self.live:  # blocks are shared, so two rows may wish for the same one
            lost |= ~self._alone(wish)
        self._open[wish] = False
        at = lost.nonzero()[0]
        if at.size:
            wish[at] = self._begin(len(at))
        return wish

    def _alone(self, numbers: Blocks) -> NDArray[np.bool_]:
        """bool [k]: whether none of those behind it is the same. (To sort them would take longer.)"""
        place = np.arange(len(numbers))
        self._mark[numbers] = place
        alone: NDArray[np.bool_] = self._mark[numbers] == place
        return alone

    def _begin(self, count: int) -> list[int]:
        """``count`` open blocks, each the first of a superblock of which nobody holds anything, as far as possible."""
        if self.scarce:
            return self._crowd(count)
        flags = self._flags
        found: list[int] = []
        while len(found) < count:
            starts = self._whole.pop_few(count - len(found))
            for start in starts:
                flags[start] = 0
            found += starts
            if len(found) < count and not self._age_within(count - len(found)):
                return found + self._crowd(count - len(found))
        return found

    def _crowd(self, count: int) -> list[int]:
        """The last ``count`` open blocks of the pool, in ascending order."""
        flags, top = self._flags, self._top
        found = []
        for _ in range(count):
            top = flags.rfind(1, 0, top)
            flags[top] = 0
            found.append(top)
        self._top = top
        found.reverse()
        return found

    # ------------------------------------------------------------------ many for one sequence

    def _run(self, count: int, wish: int) -> Blocks:
        """``count`` open blocks for one sequence: from ``wish`` on, whole superblocks, then the best of the rest."""
        parts = [self._go_on(wish, count)] if wish else []
        left = count - len(parts[0]) if parts else count
        # The last superblock is there to grow into. Where it is scarce, others would.
        rest = left & self._mask if self.scarce else 0
        while left > rest:
            wanted = -(-(left - rest) >> self._shift)
            numbers = self._whole.pop(wanted)
            if numbers.size:
                blocks = self._numbers[numbers].reshape(-1)[:left]
                self._open[blocks] = False
                parts.append(blocks)
                left -= len(blocks)
            if len(numbers) < wanted and not self._age_within(wanted - len(numbers)):
                break
        while left:
            parts.append(self._fit(left))
            left -= len(parts[-1])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else NO_BLOCKS

    def _go_on(self, wish: int, count: int) -> Blocks:
        """At most ``count`` open blocks in a row from ``wish`` on, within its superblock."""
        end = min(wish + count, (wish | self._mask) + 1)
        stop = self._flags.find(0, wish, end)
        blocks = np.arange(wish, end if stop < 0 else stop)
        self._open[blocks] = False
        return blocks

    def _fit(self, count: int) -> Blocks:
        """At most ``count`` open blocks: of a superblock that has hardly more, or else of those that have most."""
        if count <= self.size:
            spare = self._blocks.counts()
            spare -= spare.dtype.type(count)  # of those that have less it is a large number
            one = int(spare.argmin())
            if spare[one] <= self.size:
                start = one << self._shift
                return np.array(self._take(start, count), np.intp)
        counts = self._blocks.counts()
        some = counts.nonzero()[0]
        # Stable, because another order of equals on another machine would be another decision.
        some = some[(~counts[some]).argsort(kind="stable")]
        # As many as do not leave less than a superblock of that size could still fit.
        best = some[: max(1, int(counts[some].cumsum().searchsorted(count, side="right")))]
        blocks: Blocks = self._numbers[best][self._blocks.grid[best]][:count]
        self._open[blocks] = False
        return blocks

    def _take(self, start: int, count: int) -> list[int]:
        """The first ``count`` open blocks from ``start`` on; there are as many."""
        flags, found = self._flags, []
        for _ in range(count):
            start = flags.find(1, start)
            flags[start] = 0
            found.append(start)
        return found

    # ------------------------------------------------------------------ open and closed

    def _hold(self, blocks: Blocks) -> None:
        """The first reference to each of these blocks, which were open."""
        count = len(blocks)
        self.references += count
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
        if not blocks.size:
            return
        self._open[blocks] = True
        self._top = self.total
        numbers = blocks >> self._shift
        # Most of them stand beside their like, and a comparison is quicker than a look at each.
        apart = np.empty(len(numbers), np.bool_)
        apart[-1] = True
        np.not_equal(numbers[1:], numbers[:-1], out=apart[:-1])
        numbers = numbers[apart]
        whole = self._blocks.whole(numbers)
        if np.count_nonzero(whole):
            self._whole.push(numbers[whole].tolist(), first=first)

    def _age(self, count: int) -> None:
        """Open the ``count`` least recently released young blocks; there are as many."""
        blocks = self._oldest(count)
        self._place[blocks] = -1
        self.old += count
        self._open_up(blocks, first=False)

    def _age_within(self, superblocks: int) -> bool:
        """Open more, so that superblocks may become wholly open, if the tolerance lets us; whether anything was."""
        young = self.cached - self.old
        count = min(2 * superblocks * self.size, self.tolerance - self.old, young)
        if count <= 0:
            return False
        self._age(count)
        return True

    # ------------------------------------------------------------------ for the audit

    def opened_by_superblock(self) -> tuple[NDArray[np.bool_], NDArray[np.unsignedinteger]]:
        """(bool [superblocks, size]: which blocks are open; unsigned [superblocks]: how many)."""
        return self._blocks.grid, self._blocks.counts()

    @property
    def top(self) -> int:
        """No block from here on is open."""
        return self._top

    def whole_superblocks(self) -> Blocks:
        """intp: superblocks that may be wholly open, and all that are."""
        return self._whole.numbers()

    # ------------------------------------------------------------------ the rest of a pool

    def share(self, blocks: Blocks) -> None:
        idle = blocks[self.refs[blocks] == 0]
        if idle.size and self.old:
            old = idle[self._open[idle]]
            assert self.findable[old].all(), "a free block cannot be shared"
            self._open[old] = False
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
