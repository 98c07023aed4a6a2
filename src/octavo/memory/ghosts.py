"""``Ghosts``: which blocks were evicted, when, and for whom, in a fixed amount of memory.

Two tables of fixed size. The *ghosts* are the latest evictions with their circumstances: a name has two places, and
where both are taken, the older ghost is forgotten. What is forgotten leaves marks in a *Bloom filter*, so that a name
is told apart for sure from one that was never evicted, and where it is not, the answer is an honest "unknown". An
``OrderedDict`` would forget more neatly, take more memory, and be slower: it costs a call a block, these arrays a few
calls however many blocks are evicted at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
"""Eight bytes of each name. Names are cryptographic hashes, so any eight of their bytes are as good as random."""

PLACES_PER_BLOCK = 2
MARKS_PER_BLOCK = 32
"""Bytes of the filter, one a mark. When the ghosts of 19 pools have been forgotten, half of all new names are still
known to be new."""


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below ``least``."""
    return 1 << max(0, least - 1).bit_length()


class Ghosts:
    """About 100 bytes for each block of the pool."""

    def __init__(self, blocks: int) -> None:
        places = power_of_two(max(16, blocks * PLACES_PER_BLOCK))
        self._mask = np.uint64(places - 1)
        # np.zeros commits no memory before it is written to.
        self._keys: Keys = np.zeros(places, np.uint64)
        self._evicted = np.zeros(places, np.uint32)
        """Step of the eviction + 1; 0 where there is no ghost."""
        self._idle = np.zeros(places, np.uint32)
        self._taker = np.zeros(places, np.uint32)
        marks = power_of_two(max(1024, blocks * MARKS_PER_BLOCK))
        self._filter = np.zeros(marks, np.bool_)
        self._mark_mask = np.uint64(marks - 1)
        self.forgotten = 0
        """Ghosts that had to make room: from the first one on, "never evicted" may read "unknown"."""

    @property
    def capacity(self) -> int:
        return len(self._keys)

    def add(
        self,
        keys: Keys,
        step: NDArray[np.integer],
        idle: NDArray[np.integer],
        taker: NDArray[np.integer],
    ) -> None:
        """These blocks lost their content in these steps, after ``idle`` steps without an owner, to ``taker``.

        All [k], in the order in which it happened (or one ``step`` for all). A name that is a ghost already, or comes
        twice, becomes the newest one.
        """
        first, second = self._places(keys)
        held, evicted = self._keys, self._evicted
        older = (evicted[second] < evicted[first]) & (held[first] != keys)
        places = np.where(older | (held[second] == keys), second, first)
        before = held[places]
        forgotten = before[(before != keys) & (evicted[places] > 0)]
        if len(forgotten):
            self._forget(forgotten)
        held[places] = keys
        evicted[places] = step + np.uint32(1)
        self._idle[places] = idle
        self._taker[places] = taker
        if len(keys) > 1:  # some of them may have met in one place
            lost = held[places] != keys
            if np.count_nonzero(lost):
                self._forget(keys[lost])

    def _places(self, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        second = (keys >> np.uint64(32)) & self._mask
        return (keys & self._mask).astype(np.intp), second.astype(np.intp)

    def _forget(self, keys: Keys) -> None:
        self.forgotten += len(keys)
        for marks in self._marks(keys):
            self._filter[marks] = True

    def _marks(self, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Of other bits than the places: those are alike for names that push each other out."""
        first, second = keys >> np.uint64(24), (keys >> np.uint64(40)) ^ (keys << np.uint64(9))
        return (first & self._mark_mask).astype(np.intp), (second & self._mark_mask).astype(np.intp)

    def find(self, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """(bool [k]: whether each name is a ghost, intp [k]: where, for ``story``)."""
        first, second = self._places(keys)
        places = np.where(self._keys[second] == keys, second, first)
        return (self._keys[places] == keys) & (self._evicted[places] > 0), places

    def story(
        self, places: NDArray[np.intp]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
        """Of the ghosts at these places: (step of the eviction, steps without an owner before it, taker)."""
        return self._evicted[places] - np.uint32(1), self._idle[places], self._taker[places]

    def may_be_forgotten(self, keys: Keys) -> NDArray[np.bool_]:
        """bool [k]: whether each name may have been a ghost once. False is certain."""
        if not self.forgotten:
            return np.zeros(len(keys), np.bool_)
        first, second = self._marks(keys)
        marked: NDArray[np.bool_] = self._filter[first] & self._filter[second]
        return marked
