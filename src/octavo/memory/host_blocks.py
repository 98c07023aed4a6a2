"""``HostBlocks``: who owns which block of the second tier, beside the pool.

Every block of the tier is exactly one of

    held      a preempted sequence waits for it
    spilled   it has the content of a block that the pool forgot, found by name
    free      neither

held + spilled + free == total, after every call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from octavo.core.events import TierState


class HostBlocks:
    """Spilled blocks make room, least recently used first; held ones never do."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: set[int] = set()
        self.spilled: OrderedDict[bytes, int] = OrderedDict()
        """Name -> block, the least recently used first."""
        self.names: dict[int, bytes] = {}
        """Name of each spilled block."""
        self.pinned: set[int] = set()
        """Blocks that a plan reads from: whatever becomes of them, they keep their content until it is applied."""
        self.free = list(range(total - 1, -1, -1))
        """Handed out from the end."""

    def state(self) -> TierState:
        return TierState(len(self.held), len(self.spilled), len(self.free))

    def hold(self, count: int) -> list[int] | None:
        """Blocks for a sequence; None if fewer are free or spilled."""
        if count > len(self.free) + len(self.spilled) - len(self.pinned & self.names.keys()):
            return None
        blocks = [self._take() for _ in range(count)]
        self.held.update(blocks)
        return blocks

    def give_back(self, blocks: Iterable[int]) -> None:
        """Nobody waits for these held blocks any more."""
        for block in blocks:
            self.held.remove(block)
            self.free.append(block)

    def spill(self, name: bytes) -> int | None:
        """A block for content of this name, which is not spilled yet; None if there is no room."""
        assert name not in self.spilled
        if not self.free and len(self.spilled) <= len(self.pinned & self.names.keys()):
            return None
        block = self._take()
        self.spilled[name] = block
        self.names[block] = name
        return block

    def adopt(self, contents: Mapping[bytes, int]) -> None:
        """A fresh tier has had this content from before: name -> block, the least recently used first."""
        assert len(self.free) == self.total
        self.spilled.update(contents)
        self.names = {block: name for name, block in contents.items()}
        self.free = [block for block in self.free if block not in self.names]

    def touch(self, name: bytes) -> int | None:
        """The block with this content, which becomes the most recently used; None if there is none."""
        block = self.spilled.get(name)
        if block is not None:
            self.spilled.move_to_end(name)
        return block

    def forget(self, block: int) -> None:
        """A spilled block loses its content."""
        del self.spilled[self.names.pop(block)]
        self.free.append(block)

    def _take(self) -> int:
        if not self.free:
            self.forget(next(block for block in self.spilled.values() if block not in self.pinned))
        return self.free.pop()
