"""``Tier``: the bytes of the second tier, and their way from the pool's memory and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError

Content = NDArray[np.uint8]
"""uint8 [num_layers, bytes of a block in one layer]: one block, in the pool's own layout."""


class Store(Protocol):
    """Keeps blocks by their number."""

    def write(self, block: int, content: Content, name: bytes | None) -> None:
        """``name``: of what a prompt may find again; None for what a preempted request waits for."""

    def read(self, block: int, into: Content) -> bool:
        """Whether the block is what was written to it; if not, ``into`` is zero."""

    def forget(self, block: int) -> None:
        """Its content may not be found again."""


class AnonymousStore:
    """Memory that lives as long as this process, and is trusted as the pool's is. Taken as it is written to."""

    def __init__(self, blocks: int, layers: int, layer_bytes: int) -> None:
        """Raises ConfigError where the machine has no such memory."""
        try:
            self._blocks = np.zeros((blocks, layers, layer_bytes), np.uint8)
        except MemoryError as error:
            raise ConfigError(
                f"a second tier of {blocks} blocks needs {blocks * layers * layer_bytes:,} bytes, which this machine"
                " does not give",
                param="--kv-offload-bytes",
            ) from error

    def write(self, block: int, content: Content, name: bytes | None) -> None:
        self._blocks[block] = content

    def read(self, block: int, into: Content) -> bool:
        into[:] = self._blocks[block]
        return True

    def forget(self, block: int) -> None:
        """Nothing: who cannot name it cannot find it, and no other process can."""


class Tier:
    def __init__(self, memory: NDArray[np.uint8], store: Store) -> None:
        """``memory``: the pool's, uint8 [num_layers, num_blocks, bytes of a block in one layer]."""
        self._memory = memory
        self._first = memory.shape[1]
        self._store = store

    def transfer(self, transfers: NDArray[np.int32], names: Mapping[int, bytes]) -> tuple[int, ...]:
        """Make a plan's transfers, in order. Returns those whose source was damaged; the pool has zeros there."""
        first, damaged = self._first, []
        for i, (source, destination) in enumerate(transfers.tolist()):
            if source == destination:
                self._store.forget(source - first)
            elif source < first:
                self._store.write(destination - first, self._memory[:, source], names.get(i))
            elif not self._store.read(source - first, self._memory[:, destination]):
                damaged.append(i)
        return tuple(damaged)
