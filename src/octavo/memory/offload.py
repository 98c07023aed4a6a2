"""``Offload``: what moves between the pool and the second tier, and whose blocks come from there.

Decisions are made here and bytes are moved elsewhere: each decision leaves a *transfer*, (source, destination, name),
and the executor makes a step's transfers in this order before it writes anything. In one order nothing can be read
too late, whatever the same plan does to a block afterwards. Block t of the tier has the number ``first`` + t in them.

Of a row whose blocks come from the tier it is not known before its step is over whether they were intact. It computes
nothing in that step, and its blocks can be found by nobody else until then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import NO_TRANSFERS
from octavo.memory.block_pool import Blocks
from octavo.memory.host_blocks import HostBlocks


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a preempted sequence has in the tier."""

    blocks: tuple[int, ...]
    """Blocks of the tier, in the order of its tokens; the last one may be partial."""
    tokens: int
    """Leading tokens whose keys and values they hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """A step's."""

    pairs: NDArray[np.int32]
    """int32 [M, 2]: as in ``StepPlan.transfers``."""
    names: dict[int, bytes]
    """Transfer -> name of what it spills."""


NOTHING = Transfers(NO_TRANSFERS, {})


@dataclass(slots=True)
class OffloadTotals:
    """Blocks since the start."""

    spilled: int = 0
    """Copied to the tier because the pool forgot them."""
    spilled_already: int = 0
    """Forgotten by the pool while the tier had them from before."""
    lost: int = 0
    """Forgotten by the pool without room in the tier."""
    found: int = 0
    """Copied back for a prompt that begins with them."""
    swapped_out: int = 0
    swapped_in: int = 0
    damaged: int = 0
    """Found damaged when they were to be copied back."""


@dataclass(frozen=True, slots=True)
class _Loading:
    """A row whose blocks are on their way in the plan that is running."""

    first: int
    """Number of its first block that comes from the tier."""
    sources: tuple[int, ...]
    """Blocks of the tier, in the order of its tokens."""
    swapped: Swapped | None
    """What it had been swapped out to; None for spilled blocks that its prompt begins with."""


class Offload:
    def __init__(self, first: int, blocks: int) -> None:
        self.first = first
        """Blocks of the pool."""
        self.tier = HostBlocks(blocks)
        self.totals = OffloadTotals()
        self.loading: dict[int, _Loading] = {}
        """By row."""
        self._transfers: list[tuple[int, int, bytes | None]] = []

    # ------------------------------------------------------------------ deciding

    def spill(self, blocks: Sequence[int], names: Sequence[bytes]) -> None:
        """The pool forgets these blocks."""
        for block, name in zip(blocks, names, strict=True):
            if self.tier.touch(name) is not None:
                self.totals.spilled_already += 1
            elif (place := self.tier.spill(name)) is not None:
                self._transfers.append((block, self.first + place, name))
                self.totals.spilled += 1
            else:
                self.totals.lost += 1

    def find(self, names: Sequence[bytes]) -> tuple[int, ...]:
        """Blocks of the tier with the content of the first of these names, as far as it has them."""
        found: list[int] = []
        for name in names:
            block = self.tier.touch(name)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def pin(self, blocks: Sequence[int]) -> None:
        """These are about to be copied back: no spill takes them until the plan is applied."""
        self.tier.pinned.update(blocks)

    def load(
        self, row: int, first: int, sources: tuple[int, ...], destinations: Blocks, swapped: Swapped | None
    ) -> None:
        """Copy blocks of the tier into blocks of an admitted row, from its block number ``first`` on."""
        for source, destination in zip(sources, destinations.tolist(), strict=True):
            self._transfers.append((self.first + source, destination, None))
        self.loading[row] = _Loading(first, sources, swapped)
        if swapped is None:
            self.totals.found += len(sources)
        else:
            self.totals.swapped_in += len(sources)

    def save(self, blocks: Sequence[int], tokens: int) -> Swapped | None:
        """Copy a victim's blocks to the tier; None if it has no room."""
        places = self.tier.hold(len(blocks))
        if places is None:
            return None
        for block, place in zip(blocks, places, strict=True):
            self._transfers.append((block, self.first + place, None))
        self.totals.swapped_out += len(blocks)
        return Swapped(tuple(places), tokens)

    def cancel(self, row: int, blocks: Collection[int]) -> Swapped | None:
        """An admitted row loses its blocks before the plan is made: it gets back what it had been swapped out to."""
        loading = self.loading.pop(row, None)
        if loading is None:
            return None
        self._transfers = [one for one in self._transfers if one[0] < self.first or one[1] not in blocks]
        self.tier.pinned.difference_update(loading.sources)
        if loading.swapped is None:
            self.totals.found -= len(loading.sources)
        else:
            self.totals.swapped_in -= len(loading.sources)
        return loading.swapped

    def drop(self, swapped: Swapped) -> None:
        """Its sequence ends in the queue, or must recompute."""
        self.tier.give_back(swapped.blocks)

    def forget_all(self) -> None:
        """Nothing that is spilled can be found again: a transfer of a block onto itself leaves it without a name."""
        for block in list(self.tier.names):
            self.tier.forget(block)
            self._transfers.append((self.first + block, self.first + block, None))

    # ------------------------------------------------------------------ telling, and hearing how it went

    @property
    def pending(self) -> bool:
        """Whether transfers wait for the next plan."""
        return bool(self._transfers)

    def take(self) -> Transfers:
        """Those since the last call."""
        if not self._transfers:
            return NOTHING
        pairs = np.array([one[:2] for one in self._transfers], np.int32)
        pairs.setflags(write=False)
        names = {i: one[2] for i, one in enumerate(self._transfers) if one[2] is not None}
        self._transfers.clear()
        return Transfers(pairs, names)

    def settle(self, damaged: Collection[int]) -> dict[int, tuple[int, int]]:
        """The plan's transfers are made; ``damaged``: blocks of the tier among their sources that were not intact.

        Row -> (number of its first block that came from the tier, how many came intact before the first damaged one).
        """
        arrived: dict[int, tuple[int, int]] = {}
        for row, loading in self.loading.items():
            good = next((i for i, one in enumerate(loading.sources) if one in damaged), len(loading.sources))
            arrived[row] = loading.first, good
            if loading.swapped is not None:
                self.tier.give_back(loading.swapped.blocks)
        for block in damaged:
            if block in self.tier.names:
                self.tier.forget(block)
        self.totals.damaged += len(damaged)
        self.loading.clear()
        self.tier.pinned.clear()
        return arrived

    def distrust(self, transfers: NDArray[np.int32]) -> frozenset[int]:
        """The plan's transfers may not have been made: nothing that they wrote to the tier can be found again.

        Returns the held blocks among these; whoever waits for one must recompute.
        """
        written = {number - self.first for number in transfers[:, 1].tolist() if number >= self.first}
        for block in written & self.tier.names.keys():
            self.tier.forget(block)
        return frozenset(written & self.tier.held)
