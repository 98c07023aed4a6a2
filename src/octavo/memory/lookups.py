"""``Lookups``: for each prompt and each of its full blocks, whether it was found in the pool, and if not, why not.

Of a prompt of P tokens (P - 1) // block_size full blocks are looked up: at least one token is left to compute. The
tokens behind them, at most a block's, are lost to the *floor*. Every block that was looked up is a hit or a miss with
one reason, so hits and misses add up to the blocks.

One object an allocator. It is told of admissions, evictions and ends, never of steps, and everything that it keeps is
of fixed size: a server explains its cache for months without growing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo.memory.continuations import Continuations
from octavo.memory.ghosts import Ghosts, Keys
from octavo.memory.lookup import (
    BEHIND_A_MISS,
    BEING_COMPUTED,
    COUNTED_AS,
    EVICTED,
    REASONS,
    Eviction,
    Lookup,
    LookupTotals,
    Miss,
    Unasked,
)
from octavo.memory.prefix_cache import HashChain, PrefixCache

if TYPE_CHECKING:
    from octavo.memory.allocator import Claim

RECENT_MAX = 2048
"""Lookups that are kept to be asked for: the latest ones."""
TAKERS_MAX = 4096
"""Admitted requests that an eviction can still be traced to: the latest ones."""
WORDS = 8
"""Of a name: 64 bytes, read as eight numbers. The first one is its key."""
NO_SALT_KEY = 1
LOST_MAX = 1024
"""Names of evicted blocks that are gathered before the ghosts are told."""
_Lost = tuple[list[bytes], int, NDArray[np.integer], NDArray[np.integer]]
"""Names, step, steps since when they had no owner, serials of those who took them."""
NO_CHAIN = HashChain()
NO_KEYS: Keys = np.zeros(0, np.uint64)
NO_MISSES: NDArray[np.uint8] = np.zeros(0, np.uint8)
NO_MISSES.setflags(write=False)


def keys_of(names: Sequence[bytes]) -> Keys:
    """uint64 [k]: names, shortened."""
    keys: Keys = np.frombuffer(b"".join(names), np.uint64)[::WORDS]
    return keys


def key_of(name: bytes) -> int:
    """One of them; of the root of unsalted chains, too."""
    return int.from_bytes(name[:8], "little") if name else NO_SALT_KEY


class Lookups:
    """Explains, and takes part in nothing: with it or without, the same blocks are found."""

    def __init__(
        self, cache: PrefixCache, blocks: int, block_size: int, rows: int, unasked: Unasked | None = None
    ) -> None:
        """``unasked``: why this allocator never looks anything up, if so."""
        self.totals = LookupTotals()
        self.step = 0
        """Plans made so far: the number of the one that is being made."""
        self.recent: OrderedDict[str, Lookup] = OrderedDict()
        """The latest lookups by request id, the newest last."""
        self.unasked = unasked
        self.ghosts = Ghosts(0 if unasked else blocks)
        self.done = np.zeros(rows, np.intp)
        """intp [rows]: leading full blocks that each row has found or computed. Written by the allocator."""
        self.across_salts = True
        """Whether blocks are looked for under other salts, too, where a salt has been used."""
        self._cache = cache
        self._size = block_size
        self._continuations = Continuations(0 if unasked else blocks, block_size)
        self._first = np.zeros(rows, np.intp)
        self._last = np.zeros(rows, np.intp)
        """intp [rows]: full blocks of its prompt that each row had to compute: from ``_first`` to ``_last`` - 1."""
        self._chains = [NO_CHAIN] * rows
        self._fresh: dict[bytes, int] = {}
        """Name of the first missing block of a row, and the serial of its admission: how a row that has computed
        nothing yet is found, of which a burst makes many. Others, of which there are few, are looked through."""
        self._lost: list[_Lost] = []
        """Evictions that the ghosts have not heard of yet: those of several steps are told at once."""
        self._lost_names = 0
        self._salted: OrderedDict[bytes, bytes] = OrderedDict()
        """Of blocks of salted prompts: the name that they would have without a salt, and the one that they have."""
        self._salted_max = 2 * blocks
        self._takers: list[tuple[int, int, str, bytes]] = [(0, 0, "", b"")] * TAKERS_MAX
        """(serial, row, request, root of its chain) of the latest admissions."""
        self._serials = np.zeros(rows, np.uint32)
        """Of the sequence in each row: its number among all admissions, from 1; 0 for an empty row."""
        self._serial = 0

    # ------------------------------------------------------------------ admissions

    def take(self, row: int, claim: Claim, hits: int, loaded: int = 0) -> None:
        """A request is let in to ``row``: ``hits`` of its leading blocks were found, the last ``loaded`` of them in the
        second tier. Its others are not acquired yet.

        What is evicted for this row from now on is evicted for this request.
        """
        self._serial += 1
        self._takers[self._serial % TAKERS_MAX] = self._serial, row, claim.request_id, claim.chain.root
        self._serials[row] = self._serial
        self.done[row] = self._first[row] = hits
        self._last[row] = 0
        if self.unasked is not None or not claim.lookup:
            if not claim.resumed:
                self._skip(claim)
            return
        blocks = (len(claim.token_ids) - 1) // self._size
        missed = claim.chain.digests[hits:blocks]
        if not claim.resumed:
            self._look(claim, hits, missed, loaded)
        if missed:
            self._last[row], self._chains[row] = blocks, claim.chain
            self._expect(missed[0])

    def fork(self, parent: int, child: int) -> None:
        """Row ``child`` goes on from what ``parent`` has."""
        self._serials[child] = self._serials[parent]
        self.done[child] = self.done[parent]

    def _skip(self, claim: Claim) -> None:
        """A prompt that is not looked up."""
        lookup = Lookup(
            *(claim.request_id, claim.chain.root, self.step, len(claim.token_ids), self._size, 0, NO_MISSES),
            unasked=self.unasked or "prompt_logprobs",
        )
        self.totals.blocks += lookup.blocks
        self.totals.misses["not_looked_up"] += lookup.blocks
        self._keep(lookup)

    def _look(self, claim: Claim, hits: int, missed: list[bytes], loaded: int) -> None:
        chain, token_ids = claim.chain, claim.token_ids
        misses, computing, keys = NO_MISSES, None, NO_KEYS
        evictions: tuple[Eviction, ...] = ()
        if missed:
            keys = keys_of(missed)
            misses, places = self._of_the_past(keys)
            if self.across_salts and (chain.root or self._salted):
                self._under_other_salts(chain, token_ids, hits, misses)
            computing = self._at_present(missed, hits, misses)
            evicted = misses == EVICTED
            if np.count_nonzero(evicted):
                evictions = self._stories(places[evicted])
        ever, by_token = self._ever(chain, token_ids, hits, misses, keys)
        lookup = Lookup(
            *(claim.request_id, chain.root, self.step, len(token_ids), self._size, hits, misses),
            *(evictions, computing, None, ever, by_token, loaded),
        )
        self._count(lookup)
        self._keep(lookup)

    def _of_the_past(self, keys: Keys) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
        """(uint8 [k]: NEVER_SEEN, UNKNOWN or EVICTED, intp [k]: places of the ghosts among them)."""
        ghosts = self.ghosts
        if self._lost:
            self._tell_ghosts()
        found, places = ghosts.find(keys)
        misses = found * EVICTED
        if ghosts.forgotten:
            misses[~found & ghosts.may_be_forgotten(keys)] = Miss.UNKNOWN
        return misses, places

    def _at_present(self, missed: list[bytes], hits: int, misses: NDArray[np.uint8]) -> str | None:
        """Mark those that are being computed or stand behind a miss; the request that computes the first of them."""
        first: str | None = None
        # Who computes a later block of this prompt computes the first missing one, too.
        if (row := self.computing(missed[0], hits)) is not None:
            first = self._taker(int(self._serials[row]))[0] or ""
            misses[: self.common(row, missed, hits)] = BEING_COMPUTED
        index = self._cache.index
        if self._cache.torn and not index.keys().isdisjoint(missed):
            misses[[name in index for name in missed]] = BEHIND_A_MISS
            # Where the front came from the second tier, the first missing one may be in the pool.
            if not (misses == BEING_COMPUTED).any():
                first = None
        return first

    def computing(self, name: bytes, number: int) -> int | None:
        """The row that is going to compute the block of this name, the ``number``-th of its prompt; None if none is."""
        serial = self._fresh.get(name)
        fresh = None if serial is None else self._row(serial)
        if fresh is not None and self.done[fresh] <= number < self._last[fresh]:
            return fresh
        for row in ((self.done > self._first) & (self.done < self._last)).nonzero()[0].tolist():
            if self.done[row] <= number < self._last[row] and self._chains[row].digests[number] == name:
                return row
        return None

    def common(self, row: int, names: list[bytes], first: int) -> int:
        """How many of these names, of the ``first`` block of a prompt and the next ones, ``row`` will compute."""
        theirs = self._chains[row].digests[first : self._last[row]]
        pairs = zip(names, theirs, strict=False)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(names), len(theirs)))

    def awaited(self, claim: Claim) -> tuple[int, int] | None:
        """Of a request that waits: (leading full blocks that are found, blocks behind them that one running row will
        compute); None if no row is computing the first that is missing."""
        if self.unasked is not None or not claim.lookup:
            return None
        blocks = (len(claim.token_ids) - 1) // self._size
        names = self._cache.names_of(claim.chain, claim.token_ids, blocks)
        index = self._cache.index
        found = next((i for i, name in enumerate(names) if name not in index), blocks)
        row = None if found == blocks else self.computing(names[found], found)
        return None if row is None else (found, self.common(row, names[found:], found))

    def _row(self, serial: int) -> int | None:
        """The row of an admission; None if it has lost it, or was too long ago."""
        found, row, _, _ = self._takers[serial % TAKERS_MAX]
        return row if found == serial == self._serials[row] else None

    def _under_other_salts(
        self, chain: HashChain, token_ids: NDArray[np.int32], hits: int, misses: NDArray[np.uint8]
    ) -> None:
        """Mark what is in the pool under another salt. The price of a salted prompt is that it is named twice."""
        blocks = hits + len(misses)
        plain, index, salted = chain, self._cache.index, self._salted
        if chain.root:
            plain = HashChain()
            plain.extend(token_ids[: blocks * self._size], self._size)
        for i in (misses < EVICTED).nonzero()[0].tolist():
            name = plain.digests[hits + i]
            if chain.root and name in index:
                misses[i] = Miss.OTHER_SALT
            elif (other := salted.get(name)) is not None and other in index:
                misses[i] = Miss.FOREIGN_SALT
        if chain.root:
            salted.update(zip(plain.digests, chain.digests, strict=False))
            while len(salted) > self._salted_max:
                salted.popitem(last=False)

    def _stories(self, places: NDArray[np.intp]) -> tuple[Eviction, ...]:
        found = []
        for evicted, idle, taker in zip(*(one.tolist() for one in self.ghosts.story(places)), strict=True):
            found.append(Eviction(evicted, idle, *self._taker(taker)))
        return tuple(found)

    def _taker(self, serial: int) -> tuple[str | None, bytes]:
        """(request, root of its chain) of an admission; (None, nothing) for one that was too long ago, or for none."""
        found, _, request_id, root = self._takers[serial % TAKERS_MAX]
        return (request_id, root) if found == serial > 0 else (None, b"")

    def _expect(self, name: bytes) -> None:
        """The latest admission will compute this block and those behind it; somebody else may be doing so already."""
        fresh = self._fresh
        serial = fresh.get(name)
        if serial is None or self._row(serial) is None:
            fresh[name] = self._serial
            if len(fresh) > 64 + 2 * len(self._first):
                self._fresh = {name: one for name, one in fresh.items() if self._row(one) is not None}

    def _ever(
        self, chain: HashChain, token_ids: NDArray[np.int32], hits: int, misses: NDArray[np.uint8], keys: Keys
    ) -> tuple[int, int]:
        """Tokens that caches which forget nothing would have found, in blocks and token by token.

        Remembers how this prompt goes on.
        """
        size, names, table = self._size, chain.digests, self._continuations
        blocks = hits + len(misses)
        lost = (misses != EVICTED) & (misses != BEHIND_A_MISS)
        seen = hits + (int(lost.argmax()) if np.count_nonzero(lost) else len(misses))
        ever = by_token = seen * size
        parent = key_of(names[seen - 1] if seen else chain.root)
        behind = token_ids[ever : min(ever + size, len(token_ids) - 1)]
        if len(behind) and not (seen < blocks and misses[seen - hits] == BEING_COMPUTED):
            by_token += table.common(parent, behind)
        if seen < blocks:
            parents = np.empty(blocks - seen, np.uint64)
            parents[0], parents[1:] = parent, keys[seen - hits : -1]
            table.add(parents, token_ids[ever : blocks * size].reshape(-1, size))
        table.add_partial(key_of(names[blocks - 1] if blocks else chain.root), token_ids[blocks * size :])
        return ever, by_token

    def _count(self, lookup: Lookup) -> None:
        totals = self.totals
        totals.blocks += lookup.blocks
        totals.hits += lookup.hits
        if len(lookup.misses):
            for miss, count in enumerate(np.bincount(lookup.misses).tolist()):
                totals.misses[REASONS[COUNTED_AS[miss]]] += count
        totals.tokens += lookup.prompt_tokens
        totals.tokens_hit += lookup.hits * self._size
        totals.tokens_hit_ever += lookup.ever
        totals.tokens_hit_ever_by_token += lookup.ever_by_token
        totals.tokens_below_block += lookup.tokens_below_block

    def _keep(self, lookup: Lookup) -> None:
        recent = self.recent
        recent[lookup.request_id] = lookup
        recent.move_to_end(lookup.request_id)
        if len(recent) > RECENT_MAX:
            recent.popitem(last=False)

    # ------------------------------------------------------------------ what happens to blocks and rows

    def evicted(self, names: list[bytes], idle_since: NDArray[np.integer], rows: NDArray[np.intp]) -> None:
        """Blocks with these names, without an owner since these steps, lost their content to these rows; all [k]."""
        takers = self._serials[rows]
        self._lose(names, idle_since, takers if len(rows) == len(names) else takers.repeat(len(names)))

    def reset(self, names: list[bytes]) -> None:
        """These lost their content for nobody."""
        if names:
            count = len(names)
            self._lose(names, np.full(count, self.step, np.uint32), np.zeros(count, np.uint32))

    def _lose(self, names: list[bytes], idle_since: NDArray[np.integer], takers: NDArray[np.integer]) -> None:
        self._lost.append((names, self.step, idle_since, takers))
        self._lost_names += len(names)
        if self._lost_names > LOST_MAX:
            self._tell_ghosts()

    def _tell_ghosts(self) -> None:
        if len(self._lost) == 1:
            ((names, step, idle_since, takers),) = self._lost
            steps = np.array([step], np.uint32)
        else:
            lists, at, idles, serials = zip(*self._lost, strict=True)
            names = [name for names in lists for name in names]
            steps = np.repeat(np.array(at, np.uint32), list(map(len, lists)))
            idle_since, takers = np.concatenate(idles), np.concatenate(serials)
        self.ghosts.add(keys_of(names), steps, steps - idle_since, takers)
        self._lost.clear()
        self._lost_names = 0

    def released(self, row: int) -> None:
        """The row is empty: what it was expected to compute comes no more, where it has not come."""
        self._serials[row] = self._last[row] = 0
        self._chains[row] = NO_CHAIN

    def cut(self, row: int, blocks: int) -> None:
        """The row keeps this many full blocks, and what it computes behind them is not known any more."""
        self.done[row] = min(int(self.done[row]), blocks)
        self._last[row] = min(int(self._last[row]), blocks)

    def ended(
        self, chain: HashChain, prompt_tokens: int, token_ids: NDArray[np.int32], computed: int
    ) -> None:
        """A sequence ends with ``computed`` of ``token_ids`` in the pool: remember how its answer went on."""
        size, names = self._size, chain.digests
        full = computed // size
        if self.unasked or len(names) < full:
            return
        first = (prompt_tokens - 1) // size
        if full > first:
            parents = keys_of(names[max(first - 1, 0) : full - 1]) if full - 1 else np.zeros(0, np.uint64)
            if first == 0:
                parents = np.concatenate(([np.uint64(key_of(chain.root))], parents))
            self._continuations.add(parents, token_ids[first * size : full * size].reshape(-1, size))
        if computed > full * size:
            parent = key_of(names[full - 1] if full else chain.root)
            self._continuations.add_partial(parent, token_ids[full * size : computed])
