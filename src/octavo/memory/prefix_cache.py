"""``PrefixCache``: full blocks, found again by what they hold.

A block's name is a cryptographic hash over its parent's name and its own tokens, so that it stands for the whole
prefix; the salt of a request, if any, stands at the root. BLAKE2b: a quarter faster here than SHA-256 on 64 bytes.
Its whole digest of 64 bytes, because asking for a shorter one costs a sixth of the call, and a parent's name and 16
tokens still fill exactly one of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import compress
from struct import iter_unpack

import numpy as np
from numpy.typing import NDArray

from octavo.memory.block_pool import NO_BLOCKS, Blocks


class HashChain:
    """Names of the full blocks of one sequence, computed as they are asked for and kept for its whole life."""

    __slots__ = ("digests", "root")

    def __init__(self, salt: str | None = None) -> None:
        # The empty root of unsalted chains is no digest, so no salt can lead to it.
        self.root = b"" if salt is None else blake2b(salt.encode()).digest()
        self.digests: list[bytes] = []

    def extend(self, tokens: NDArray[np.int32], block_size: int) -> None:
        """Name the full blocks that ``tokens`` adds; int32, starting right behind the last named block."""
        data, step = tokens.tobytes(), 4 * block_size
        parent = self.digests[-1] if self.digests else self.root
        contents = iter_unpack(f"{step}s", data[: len(data) // step * step])
        self.digests += [parent := blake2b(parent + content).digest() for (content,) in contents]

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
        self.names: dict[int, bytes] = {}
        """Name of each findable block."""
        self.torn = False
        """Whether a block may be findable although one in front of it is not: since two sequences computed the same, or
        one was cut back. Of a whole cache the answer is known without a look."""
        self._tokens = np.zeros((total, block_size), np.int32)
        self._latest: tuple[bytes, NDArray[np.int32], list[bytes]] = (b"", np.zeros(0, np.int32), [])
        """Root, tokens and names of the last prompt that was looked up: the next one often begins alike."""

    def may_find(self, chain: HashChain, token_ids: NDArray[np.int32], blocks: int, most: int) -> bool:
        """Whether ``match`` could find ``blocks`` (>= 1) leading blocks: it would have to find the last of them."""
        if blocks > most:
            return False
        self._name(chain, token_ids, blocks)
        return chain.digests[blocks - 1] in self.index

    def names_of(self, chain: HashChain, token_ids: NDArray[np.int32], blocks: int) -> list[bytes]:
        """Names of the leading ``blocks`` full blocks of ``token_ids``."""
        self._name(chain, token_ids, blocks)
        return chain.digests[:blocks]

    def _name(self, chain: HashChain, token_ids: NDArray[np.int32], blocks: int) -> None:
        if len(chain.digests) < blocks:
            self._name_alike(chain, token_ids, blocks)
            named = len(chain.digests)
            chain.extend(token_ids[named * self.block_size : blocks * self.block_size], self.block_size)

    def _name_alike(self, chain: HashChain, token_ids: NDArray[np.int32], blocks: int) -> None:
        """Take over the names of the blocks with which the latest prompt begins, too: quicker than to hash them."""
        root, tokens, digests = self._latest
        named, most = len(chain.digests), min(len(digests), blocks)
        if named >= most or root != chain.root or digests[:named] != chain.digests:
            return
        size = self.block_size
        differs = tokens[named * size : most * size] != token_ids[named * size : most * size]
        alike = named + int(differs.argmax()) // size if differs.any() else most
        chain.digests += digests[named:alike]

    def match(self, chain: HashChain, token_ids: NDArray[np.int32], most: int) -> Blocks:
        """Longest run of leading blocks of ``token_ids`` that can be found, at most ``most``; intp [hits]."""
        size = self.block_size
        self._name(chain, token_ids, most)
        self._latest = chain.root, token_ids, chain.digests[:most]
        hits: list[int] = []
        find = self.index.get
        for digest in chain.digests[:most]:
            block = find(digest)
            if block is None:
                break
            hits.append(block)
        if not hits:
            return NO_BLOCKS
        blocks = np.array(hits, np.intp)
        wanted = token_ids[: len(hits) * size].reshape(-1, size)
        differs = (self._tokens[blocks] != wanted).any(axis=1)
        return blocks[: int(differs.argmax())] if differs.any() else blocks

    def publish(
        self,
        blocks: Blocks,
        firsts: Sequence[int],
        lasts: Sequence[int],
        chains: Sequence[HashChain],
        tokens: NDArray[np.int32],
    ) -> Blocks:
        """Name computed live blocks: blocks ``firsts[i]`` to ``lasts[i]`` - 1 of the i-th chain's sequence, and so on.

        ``tokens``: int32 [blocks, block_size]. A name that is known stays with the block that has it. Returns the
        blocks that are findable now and were not before.
        """
        digests = self._names_of(firsts, lasts, chains, tokens)
        index, names = self.index, self.names
        numbers = blocks.tolist()
        if index.keys().isdisjoint(digests) and len(set(digests)) == len(digests):
            index.update(zip(digests, numbers, strict=True))
        else:  # somebody else has computed one of them, or two rows of this step the same
            adopted = [
                index.setdefault(digest, block) == block
                for digest, block in zip(digests, numbers, strict=True)
            ]
            new = np.array(adopted, np.bool_)
            self.torn |= not new.all()
            blocks, tokens = blocks[new], tokens[new]
            digests, numbers = list(compress(digests, adopted)), list(compress(numbers, adopted))
        assert names.keys().isdisjoint(numbers), "a block is published once for each time it is written"
        names.update(zip(numbers, digests, strict=True))
        self._tokens[blocks] = tokens
        return blocks

    def _names_of(
        self,
        firsts: Sequence[int],
        lasts: Sequence[int],
        chains: Sequence[HashChain],
        tokens: NDArray[np.int32],
    ) -> list[bytes]:
        data = tokens.tobytes()
        step = 4 * self.block_size
        digests: list[bytes] = []
        done = 0
        for chain, first, last in zip(chains, firsts, lasts, strict=True):
            named = chain.digests
            count = last - first
            if len(named) >= last:  # a prompt, named when it was looked up
                digests += named[first:last]
            elif count == 1:  # a decode
                assert len(named) == first, "a block is named after its parent"
                parent = named[-1] if named else chain.root
                digest = blake2b(parent + data[done * step : (done + 1) * step]).digest()
                named.append(digest)
                digests.append(digest)
            else:
                assert len(named) >= first, "a block is named after its parent"
                chain.extend(tokens[done + len(named) - first : done + count], self.block_size)
                digests += named[first:last]
            done += count
        return digests

    def forget(self, blocks: Sequence[int]) -> list[bytes]:
        """These findable blocks lose their content. Returns the names that they had."""
        names = list(map(self.names.pop, blocks))
        for name in names:
            del self.index[name]
        return names

    def tokens_of(self, block: int) -> NDArray[np.int32]:
        """int32 [block_size]: what a findable block holds."""
        assert block in self.names
        held: NDArray[np.int32] = self._tokens[block]
        return held
