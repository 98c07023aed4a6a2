"""Where a contiguous chunk goes: first fit by address, or buddy (the Orca baselines of Kwon et al. 2023)."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol


class Placer(Protocol):
    """Hands out runs of neighbouring units (blocks) and takes them back."""

    free: int
    """Units in no run."""
    largest_ever: int
    """Units of the longest run that an empty pool can hand out."""

    def granted(self, units: int) -> int:
        """Units that a wish for ``units`` really takes."""

    def take(self, units: int) -> int | None:
        """First unit of a run of ``granted(units)``, or None if no free run is long enough."""

    def give(self, start: int, units: int) -> None:
        """Take back a run that ``take`` answered to a wish for ``units``."""

    def runs(self) -> list[tuple[int, int]]:
        """(start, length) of every run that could be handed out, by address."""


class FirstFit:
    """The lowest run that is long enough; a run that comes back merges with its neighbours."""

    def __init__(self, total: int) -> None:
        self.free = total
        self.largest_ever = total
        self._starts = [0]
        self._lengths = [total]

    def granted(self, units: int) -> int:
        return units

    def take(self, units: int) -> int | None:
        i = next((i for i, length in enumerate(self._lengths) if length >= units), None)
        if i is None:
            return None
        start = self._starts[i]
        if self._lengths[i] == units:
            del self._starts[i], self._lengths[i]
        else:
            self._starts[i] += units
            self._lengths[i] -= units
        self.free -= units
        return start

    def give(self, start: int, units: int) -> None:
        self.free += units
        starts, lengths = self._starts, self._lengths
        i = bisect_left(starts, start)
        if i < len(starts) and start + units == starts[i]:
            units += lengths[i]
            del starts[i], lengths[i]
        if i > 0 and starts[i - 1] + lengths[i - 1] == start:
            lengths[i - 1] += units
        else:
            starts.insert(i, start)
            lengths.insert(i, units)

    def runs(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._lengths, strict=True))


class Buddy:
    """Runs are powers of two at multiples of their own size; two free halves of one run merge.

    A pool that is no power of two starts as the few such runs that add up to it.
    """

    def __init__(self, total: int) -> None:
        self.free = total
        self.largest_ever = 1 << (total.bit_length() - 1)
        self._total = total
        self._free: list[list[int]] = [[] for _ in range(total.bit_length())]
        """Starts of the free runs of 2**order units, ascending, so that the lowest address is used first."""
        start = 0
        for order in range(total.bit_length() - 1, -1, -1):
            if total >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    def granted(self, units: int) -> int:
        return 1 << (units - 1).bit_length()

    def take(self, units: int) -> int | None:
        order = (units - 1).bit_length()
        for larger in range(order, len(self._free)):
            if self._free[larger]:
                break
        else:
            return None
        start = self._free[larger].pop(0)
        for half in range(larger - 1, order - 1, -1):
            insort(self._free[half], start + (1 << half))
        self.free -= 1 << order
        return start

    def give(self, start: int, units: int) -> None:
        order = (units - 1).bit_length()
        self.free += 1 << order
        while order + 1 < len(self._free):
            buddy = start ^ (1 << order)
            runs = self._free[order]
            i = bisect_left(runs, buddy)
            if i == len(runs) or runs[i] != buddy:
                break
            del runs[i]
            start = min(start, buddy)
            order += 1
        insort(self._free[order], start)

    def runs(self) -> list[tuple[int, int]]:
        return sorted((start, 1 << order) for order, starts in enumerate(self._free) for start in starts)
