"""The choices: who waits in front of whom, who is preempted, how a budget is dealt out. Each is one small function."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from octavo.core.config import QueueOrder
from octavo.scheduling.sequence import Sequence

UNLIMITED = 1 << 62
"""Tokens: a budget that nothing reaches."""


class WaitingQueue:
    """Requests that hold no row, the next one first. Under fcfs by arrival, under priority by (priority, arrival).

    A preempted request keeps its arrival. Admission skips nobody, so under fcfs everybody who runs arrived before
    everybody who waits: by arrival alone a victim stands at the front, and later victims of a step (who were
    admitted earlier) stand in front of earlier ones.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._priority = order == "priority"
        self._heap: list[tuple[int, int, Sequence]] = []
        self._gone = 0
        """Entries of the heap whose request was withdrawn."""

    def __len__(self) -> int:
        return len(self._heap) - self._gone

    def push(self, sequence: Sequence) -> None:
        sequence.queued = True
        priority = sequence.request.priority if self._priority else 0
        heapq.heappush(self._heap, (priority, sequence.arrival, sequence))

    def head(self) -> Sequence:
        """The next one. The queue must not be empty."""
        while not self._heap[0][2].queued:
            heapq.heappop(self._heap)
            self._gone -= 1
        return self._heap[0][2]

    def first(self, count: int) -> list[Sequence]:
        """The next ``count``, in order; fewer if fewer wait."""
        return [entry[2] for entry in heapq.nsmallest(count, (one for one in self._heap if one[2].queued))]

    def pop(self) -> None:
        """Remove the head."""
        self.head().queued = False
        heapq.heappop(self._heap)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove any entry: it is skipped when it comes to the front, and swept when such entries are the majority."""
        sequence.queued = False
        self._gone += 1
        if self._gone > 64 and 2 * self._gone > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].queued]
            heapq.heapify(self._heap)
            self._gone = 0


def victim(sequences: Items[Sequence], alive: NDArray[np.bool_], order: QueueOrder) -> int:
    """Position of the running sequence to preempt: the most recently admitted of the lowest priority.

    Never position 0: the oldest always advances, so that every step brings the whole nearer to its end.
    """
    candidates: list[int] = alive.nonzero()[0][1:].tolist()
    if (oldest := sequences[0].beams) is not None:  # all rows of a search are as old as its first
        candidates = [position for position in candidates if sequences[position].beams is not oldest]
    assert candidates, "the pool holds the longest sequence, so the oldest one cannot lack a block alone"
    if order == "fcfs":
        return candidates[-1]
    return max(candidates, key=lambda position: (sequences[position].request.priority, position))


def deal(wanted: NDArray[np.intp], budget: int) -> NDArray[np.intp]:
    """Tokens of each sequence in this step: all it wants, in order, until the budget is used up; intp [n]."""
    before = wanted.cumsum() - wanted
    return np.minimum(np.maximum(budget - before, 0), wanted)
