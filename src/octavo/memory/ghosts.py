"""``Ghosts``: which blocks were evicted, when, and for whom, in a fixed amount of memory.

Two tables of fixed size. The *ghosts* are the latest evictions with their circumstances: buckets of four, the oldest of
a full bucket is forgotten. What is forgotten leaves a mark in a *Bloom filter*, so that a name is told apart for sure
from one that was never evicted, and where it is not, the answer is an honest "unknown". An ``OrderedDict`` would forget
more neatly and take ten times the memory, and a Python call a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
"""Eight bytes of each name. Names are cryptographic hashes, so any eight of their bytes are as good as random."""

WAYS = 4
"""Ghosts in a bucket."""
GHOSTS_PER_BLOCK = 2
BITS_PER_BLOCK = 64
"""Of the filter. When as many ghosts as 39 pools have been forgotten, half of all new names still are new for sure."""


def power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


class Ghosts:
    """40 bytes and 8 of the filter for each block of the pool. Constant time for each block, and no call for each."""

    def __init__(self, blocks: int) -> None:
        buckets = power_of_two(max(4, blocks * GHOSTS_PER_BLOCK // WAYS))
        self._bucket_mask = np.uint64(buckets - 1)
        self._keys: Keys = np.zeros((buckets, WAYS), np.uint64)
        self._evicted = np.zeros((buckets, WAYS), np.uint32)
        """Step of the eviction + 1; 0 where there is no ghost."""
        self._idle = np.zeros((buckets, WAYS), np.uint32)
        self._taker = np.zeros((buckets, WAYS), np.uint32)
        bits = power_of_two(max(1024, blocks * BITS_PER_BLOCK))
        self._filter = np.zeros(bits // 8, np.uint8)
        self._bit_mask = np.uint64(bits - 1)
        self.forgotten = 0
        """Ghosts that had to make room: from the first one on, "never evicted" may read "unknown"."""

    @property
    def capacity(self) -> int:
        return self._keys.size

    def add(self, keys: Keys, step: int, idle: NDArray[np.integer], taker: NDArray[np.integer]) -> None:
        """These distinct blocks lost their content in this step, after ``idle`` steps without an owner, to ``taker``.

        All [k]. A name that is a ghost already becomes the newer one.
        """
        buckets = (keys & self._bucket_mask).astype(np.intp)
        there = self._keys[buckets] == keys[:, None]
        ways = np.where(there.any(axis=1), there.argmax(axis=1), self._evicted[buckets].argmin(axis=1))
        forgotten = (self._keys[buckets, ways] != keys) & (self._evicted[buckets, ways] > 0)
        if np.count_nonzero(forgotten):
            self._forget(self._keys[buckets, ways][forgotten])
        self._keys[buckets, ways] = keys
        self._evicted[buckets, ways] = step + 1
        self._idle[buckets, ways] = idle
        self._taker[buckets, ways] = taker
        if len(keys) > 1:  # two of them may have met in one place
            lost = self._keys[buckets, ways] != keys
            if np.count_nonzero(lost):
                self._forget(keys[lost])

    def _forget(self, keys: Keys) -> None:
        self.forgotten += len(keys)
        for bits in self._bits(keys):
            np.bitwise_or.at(self._filter, bits >> 3, np.left_shift(1, bits & 7).astype(np.uint8))

    def _bits(self, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Not the bits that choose the bucket: those are alike for names that push each other out."""
        high = (keys >> np.uint64(24)) & self._bit_mask
        higher = ((keys >> np.uint64(40)) ^ (keys << np.uint64(9))) & self._bit_mask
        return high.astype(np.intp), higher.astype(np.intp)

    def find(self, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """(bool [k]: whether each name is a ghost, intp [k]: where, for ``story``)."""
        buckets = (keys & self._bucket_mask).astype(np.intp)
        there = (self._keys[buckets] == keys[:, None]) & (self._evicted[buckets] > 0)
        return there.any(axis=1), buckets * WAYS + there.argmax(axis=1)

    def story(
        self, places: NDArray[np.intp]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
        """Of the ghosts at these places: (step of the eviction, steps without an owner before it, taker)."""
        evicted, idle, taker = (
            table.reshape(-1)[places] for table in (self._evicted, self._idle, self._taker)
        )
        return evicted - np.uint32(1), idle, taker

    def may_be_forgotten(self, keys: Keys) -> NDArray[np.bool_]:
        """bool [k]: whether each name may have been a ghost once. False is certain."""
        if not self.forgotten:
            return np.zeros(len(keys), np.bool_)
        first, second = ((self._filter[bits >> 3] >> (bits & 7)) & 1 for bits in self._bits(keys))
        marked: NDArray[np.bool_] = (first & second).astype(np.bool_)
        return marked
