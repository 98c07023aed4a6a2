"""``PrefixCache``: full blocks, found again by what they hold.

A block's name is a cryptographic hash over its parent's name and its own tokens, so that it stands for the whole
prefix; the salt of a request, if any, stands at the root. BLAKE2b: a quarter faster here than SHA-256 on 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_pool import NO_BLOCKS

DIGEST_BYTES = 32


class HashChain:
    """Names of the full blocks of one sequence, computed as they are asked for and kept for its whole life."""

    __slots__ = ("digests", "root")

    def __init__(self, salt: str | None = None) -> None:
        # The empty root of unsalted chains is no digest, so no salt can lead to it.
        self.root = b"" if salt is None else blake2b(salt.encode(), digest_size=DIGEST_BYTES).digest()
        self.digests: list[bytes] = []

    def extend(self, tokens: NDArray[np.int32], block_size: int) -> None:
        """Name the full blocks that ``tokens`` adds; int32, starting right behind the last named block."""
        data = tokens.tobytes()
        step = 4 * block_size
        parent = self.digests[-1] if self.digests else self.root
        append = self.digests.append
        for start in range(0, len(data) - step + 1, step):
            parent = blake2b(parent + data[start : start + step], digest_size=DIGEST_BYTES).digest()
            append(parent)

    def truncate(self, blocks: int) -> None:
        """Forget the names from block number ``blocks`` on."""
        del self.digests[blocks:]


class PrefixCache:
    """Index of the findable blocks. One block a name: of two sequences that compute the same, the first one wins.

    It owns neither references nor eviction order (``BlockPool`` does) and holds only blocks whose keys and values
    have been computed. ``tokens`` of each findable block are compared on a hit, so that not even a collision could
    answer with a block that holds other tokens.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.block_size = block_size
        self.index: dict[bytes, int] = {}
        self.names: list[bytes | None] = [None] * total
        """Name of each findable block, None for the others."""
        self._tokens = np.zeros((total, block_size), np.int32)

    def match(self, chain: HashChain, token_ids: NDArray[np.int32], most: int) -> NDArray[np.int32]:
        """Longest run of leading blocks of ``token_ids`` that can be found, at most ``most``; int32 [hits]."""
        size = self.block_size
        named = len(chain.digests)
        if named < most:
            chain.extend(token_ids[named * size : most * size], size)
        hits: list[int] = []
        find = self.index.get
        for digest in chain.digests[:most]:
            block = find(digest)
            if block is None:
                break
            hits.append(block)
        if not hits:
            return NO_BLOCKS
        blocks = np.array(hits, np.int32)
        wanted = token_ids[: len(hits) * size].reshape(-1, size)
        differs = (self._tokens[blocks] != wanted).any(axis=1)
        return blocks[: int(differs.argmax())] if differs.any() else blocks

    def publish(
        self,
        blocks: NDArray[np.int32],
        numbers: Sequence[int],
        chains: Sequence[HashChain],
        tokens: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """Name computed live blocks; the i-th is block ``numbers[i]`` of the sequence of ``chains[i]``.

        ``tokens``: int32 [blocks, block_size]. A name that is known stays with the block that has it. Returns the
        blocks that are findable now and were not before.
        """
        data = tokens.tobytes()
        step = 4 * self.block_size
        names, adopt = self.names, self.index.setdefault
        start = 0
        known: list[int] = []
        for i, (block, number, chain) in enumerate(zip(blocks.tolist(), numbers, chains, strict=True)):
            digests = chain.digests
            if number < len(digests):
                digest = digests[number]
            else:
                assert number == len(digests), "a block is named after its parent"
                parent = digests[-1] if number else chain.root
                digest = blake2b(parent + data[start : start + step], digest_size=DIGEST_BYTES).digest()
                digests.append(digest)
            start += step
            if adopt(digest, block) == block:
                assert names[block] is None, "a block is published once for each time it is written"
                names[block] = digest
            else:
                known.append(i)
        if known:
            new = np.ones(len(blocks), np.bool_)
            new[known] = False
            blocks, tokens = blocks[new], tokens[new]
        self._tokens[blocks] = tokens
        return blocks

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """These blocks lose their content."""
        names = self.names
        for block in blocks.tolist():
            name = names[block]
            assert name is not None, "only a findable block is forgotten"
            del self.index[name]
            names[block] = None

    def tokens_of(self, block: int) -> NDArray[np.int32]:
        """int32 [block_size]: what a findable block holds."""
        assert self.names[block] is not None
        held: NDArray[np.int32] = self._tokens[block]
        return held
