"""``Continuations``: how prompts went on from the blocks that they share, token by token, in a fixed amount of memory.

Blocks of one token would find every token that two prompts have in common, and blocks of sixteen find whole blocks
alone. The difference is always less than a block: behind the last block that was ever computed, the prompt in hand and
some earlier one agree for a few tokens more. So a table from each block to the few blocks that came behind it answers
what a cache of single tokens would have found, and no such cache need be kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.memory.ghosts import Keys, power_of_two

WAYS = 4
"""Continuations remembered of each place: the latest ones."""
BYTES_MAX = 8 << 20
"""Of the tokens in the table, however large the pool is."""


class Continuations:
    """Keys are names of blocks, shortened; places that meet in one line of the table push each other out."""

    def __init__(self, blocks: int, block_size: int) -> None:
        lines = power_of_two(max(1, min(blocks, BYTES_MAX // (4 * block_size * WAYS))))
        self._mask = np.uint64(lines - 1)
        # np.zeros commits no memory until a line is written to.
        self._keys: Keys = np.zeros((lines, WAYS), np.uint64)
        self._filled = np.zeros((lines, WAYS), np.uint16)
        """Tokens of each continuation; 0 where there is none."""
        self._tokens = np.zeros((lines, WAYS, block_size), np.int32)
        self._turn = 0

    def add(self, parents: Keys, tokens: NDArray[np.int32]) -> None:
        """Behind each of ``parents`` came the block ``tokens[i]``; int32 [k, block_size]."""
        lines = (parents & self._mask).astype(np.intp)
        ways = (self._turn + np.arange(len(parents))) % WAYS
        self._turn += len(parents)
        self._keys[lines, ways] = parents
        self._filled[lines, ways] = tokens.shape[1]
        self._tokens[lines, ways] = tokens

    def add_partial(self, parent: int, tokens: NDArray[np.int32]) -> None:
        """Behind ``parent`` came these tokens, fewer than a block, and then nothing."""
        if self.common(parent, tokens) == len(tokens):
            return
        line, way = parent & int(self._mask), self._turn % WAYS
        self._turn += 1
        self._keys[line, way] = parent
        self._filled[line, way] = len(tokens)
        self._tokens[line, way, : len(tokens)] = tokens

    def common(self, parent: int, tokens: NDArray[np.int32]) -> int:
        """How many of these tokens, at most a block's, some remembered continuation of ``parent`` begins with."""
        line, most = parent & int(self._mask), 0
        for way, key in enumerate(self._keys[line].tolist()):
            if key != parent:
                continue
            length = min(int(self._filled[line, way]), len(tokens))
            alike = self._tokens[line, way, :length] == tokens[:length]
            first = alike.tobytes().find(0)  # where they differ, sooner than by any() and argmax()
            most = max(most, length if first < 0 else first)
        return most
