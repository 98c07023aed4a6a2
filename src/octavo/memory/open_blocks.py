"""Which blocks placement may take, and which superblocks are whole: what ``SuperblockPool`` looks at."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_pool import NO_BLOCKS, Blocks


class OpenBlocks:
    """A byte a block, 1 where placement may take it. Nothing is counted: what a superblock has is read off its bytes.

    The same bytes three ways, for each question the one that answers it at once: ``flags`` for one block and for
    searches (``find`` and ``rfind`` run through memory), ``of`` for many blocks, and words for whole superblocks.
    Bytes, not bits: NumPy writes to many of them in one call, where of bits that share a word one write would undo
    another.
    """

    def __init__(self, total: int, size: int) -> None:
        self.size = size
        self.number = -(-total // size)
        """Superblocks. Of the last one some blocks may be missing; they are never open."""
        # One more, never open: a wish behind the last block is in it, too.
        self.flags = bytearray(b"\1") * total + bytes(self.number * size + 1 - total)
        """uint8 [number * size + 1]"""
        self.of: NDArray[np.bool_] = np.frombuffer(self.flags, np.bool_)
        """The same as bool."""
        self.grid = self.of[:-1].reshape(self.number, size)
        """bool [number, size]"""
        width = min(size, 8)
        self._ones = np.dtype(f"u{width}").type(int.from_bytes(b"\1" * width, "little"))
        self._narrow = np.min_scalar_type(2 * size)
        """What holds a superblock's blocks twice, so that a difference below zero is out of range."""
        self._words = self.of[:-1].view(self._ones.dtype)
        """Each superblock, or each 8 blocks where it has more."""
        self._many = self._words.reshape(self.number, -1) if size > width else None
        """[number, words], where a superblock has more than one."""

    def whole(self, numbers: Blocks) -> NDArray[np.bool_]:
        """bool [k]: whether every block of these superblocks is open."""
        if self._many is None:
            whole: NDArray[np.bool_] = self._words[numbers] == self._ones
        else:
            whole = (self._many[numbers] == self._ones).all(axis=1)
        return whole

    def counts(self) -> NDArray[np.unsignedinteger]:
        """Unsigned [number]: open blocks of each superblock."""
        counts: NDArray[np.unsignedinteger] = np.bitwise_count(self._words)
        return (
            counts if self._many is None else counts.reshape(self.number, -1).sum(axis=1, dtype=self._narrow)
        )


class WholeSuperblocks:
    """The wholly open superblocks, in the order in which they had best be used.

    Free ones come first, the most recently released one at the front: memory that was just in use. Untouched ones
    follow, in ascending order, because the first use of memory costs page faults; and behind these the cached ones, the
    oldest in front. A superblock of which something is taken by another way leaves lazily: ``pop`` passes its entry.
    """

    def __init__(self, blocks: OpenBlocks) -> None:
        self._blocks = blocks
        whole = blocks.whole(np.arange(blocks.number)).nonzero()[0]
        self._queue = deque(whole.tolist())
        self._there = bytearray(blocks.number)
        """1 for each superblock that has an entry."""
        self._flags: NDArray[np.bool_] = np.frombuffer(self._there, np.bool_)
        """The same as bool."""
        self._flags[whole] = True

    def numbers(self) -> Blocks:
        """intp: those that have an entry."""
        return np.array(self._queue, np.intp)

    def push(self, numbers: list[int], *, first: bool) -> None:
        """These become wholly open: the last comes to the front, or the first behind all others. Where one is named
        twice, its last place counts."""
        there, fresh = self._there, []
        for number in reversed(numbers):
            if not there[number]:
                there[number] = 1
                fresh.append(number)
        if first:
            self._queue.extendleft(reversed(fresh))
        else:
            self._queue.extend(reversed(fresh))

    def pop_few(self, count: int) -> list[int]:
        """The first blocks of at most ``count`` superblocks that are wholly open."""
        queue, there = self._queue, self._there
        closed, size = self._blocks.flags.find, self._blocks.size
        found: list[int] = []
        while queue and count:
            number = queue.popleft()
            there[number] = 0
            start = number * size
            if closed(0, start, start + size) < 0:
                found.append(start)
                count -= 1
        return found

    def pop(self, count: int) -> Blocks:
        """At most ``count`` that are wholly open; quicker than ``pop_few`` where these are many."""
        queue, found = self._queue, [NO_BLOCKS]
        while queue and count:
            numbers = np.array([queue.popleft() for _ in range(min(count, len(queue)))], np.intp)
            self._flags[numbers] = False
            numbers = numbers[self._blocks.whole(numbers)]
            found.append(numbers)
            count -= len(numbers)
        return found[-1] if len(found) == 2 else np.concatenate(found)
