"""A model of what blocks hold, to drive an allocator at random and see that nobody ever reads another's tokens.

The keys and values of a token depend on all tokens before it, so a slot is modelled by a number that stands for its
whole prefix (``tag``). ``Slots`` is the memory that a real executor would have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from octavo.memory import Allocator, Claim, HashChain, PagedAllocator, Swapped
from octavo.memory.audit import audit
from octavo.memory.lookup import Miss


def follow(tag: int, token: int) -> int:
    """Tag of a prefix with one token more."""
    return (tag * 1_000_003 + token + 1) % 2_147_483_647


def tags_of(tokens: Iterable[int]) -> list[int]:
    tags, tag = [], 0
    for token in tokens:
        tag = follow(tag, token)
        tags.append(tag)
    return tags


class Slots:
    """What every slot of the pool holds."""

    def __init__(self, blocks: int, size: int) -> None:
        self.held = np.zeros((blocks, size), np.int64)
        self.size = size
        self.tier: dict[int, np.ndarray] = {}

    def copy(self, copies: np.ndarray) -> None:
        for source, destination in copies.tolist():
            self.held[destination] = self.held[source]

    def transfer(self, transfers: np.ndarray, damage: Collection[int] = ()) -> tuple[int, ...]:
        """Copy between pool and tier. ``damage``: blocks of the tier whose content is lost before it is read.

        Returns the transfers that found such a block.
        """
        blocks, damaged = len(self.held), []
        for i, (source, destination) in enumerate(transfers.tolist()):
            content = self.held[source].copy() if source < blocks else self.tier[source - blocks]
            if source - blocks in damage and destination < blocks:
                content = np.full(self.size, -1, np.int64)
                damaged.append(i)
            if destination < blocks:
                self.held[destination] = content
            elif destination == source:
                del self.tier[source - blocks]
            else:
                assert source < blocks, "between two blocks of the tier nothing moves"
                self.tier[destination - blocks] = content
        return tuple(damaged)

    def write(self, table_row: np.ndarray, start: int, tags: list[int]) -> None:
        positions = np.arange(start, start + len(tags))
        self.held[table_row[positions // self.size], positions % self.size] = tags

    def read(self, table_row: np.ndarray, count: int) -> list[int]:
        blocks = table_row[: -(-count // self.size)]
        held: list[int] = self.held[blocks].ravel().tolist()
        return held[:count]


@dataclass
class Row:
    tokens: list[int]
    limit: int
    chain: HashChain
    written: int
    tags: list[int] = field(default_factory=list)


@dataclass
class Past:
    """Which names could be found, and when each of the others was lost last."""

    findable: set[bytes] = field(default_factory=set)
    lost: dict[bytes, int] = field(default_factory=dict)

    def look(self, allocator: Allocator) -> None:
        """To be called once an operation; each is a step of its own."""
        if isinstance(allocator, PagedAllocator):
            now = set(allocator.cache.index)
            self.lost |= dict.fromkeys(self.findable - now, allocator.lookups.step)
            self.findable = now
        allocator.take_evicted()


class MemoryModel:
    """Each method is one operation; ``verify`` compares everything that can be seen with what must be there."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.size = allocator.block_size
        self.slots = Slots(allocator.num_blocks, self.size)
        self.rows: dict[int, Row] = {}
        rows, width = allocator.table.matrix.shape
        self.tokens = np.zeros((rows, width, self.size), np.int32)
        self.hits = 0
        self.requests = 0
        self.waiting: list[tuple[Row, Swapped]] = []
        """Sequences that were swapped out."""
        self.damage: Collection[int] = ()
        """As in ``Slots.transfer``."""
        self.loads = 0
        self.past = Past()
        self.covered: dict[int, int] = {}
        """Tokens of each row for which it may hold blocks."""

    @property
    def free_rows(self) -> list[int]:
        return [row for row in range(len(self.tokens)) if row not in self.rows]

    def admit(self, prompt: list[int], limit: int, headroom: int, budget: int) -> None:
        row = self.free_rows[0]
        limit = min(max(limit, len(prompt)), self.allocator.max_len)
        prompt = prompt[:limit]
        chain = HashChain()
        self.requests += 1
        claim = Claim(f"{self.requests}", np.array(prompt, np.int32), limit, chain)
        available = self.allocator.state().total - self.allocator.state().live
        cached = self.allocator.admit(row, claim, headroom, budget)
        if cached is None:
            if isinstance(self.allocator, PagedAllocator):
                need = -(-len(prompt) // self.size)
                assert need > available - self.allocator.promised_total - headroom, "it would have fitted"
            return
        assert cached < len(prompt), "one token at least is left to compute"
        self.hits += cached > 0
        if isinstance(self.allocator, PagedAllocator) and self.allocator.caching:
            self.check_lookup(claim, cached // self.size)
        self.rows[row] = Row(prompt, limit, chain, cached, tags_of(prompt))
        self.cover(row, cached, budget)
        self.tokens[row].reshape(-1)[: len(prompt)] = prompt
        self.move()

    def swap_out(self, row: int, cost: float) -> None:
        """What a victim goes through; it recomputes, that is to say ends here, where the tier does not take it."""
        state = self.rows.pop(row)
        known = np.array(state.tokens[: state.written + 1], np.int32)
        claim = Claim("", known, state.limit, state.chain)
        swapped = self.allocator.swap_out(row, state.written, claim, cost)
        self.allocator.release(row)
        if swapped is not None:
            assert swapped.tokens == state.written > 0
            self.waiting.append((state, swapped))
        self.move()

    def swap_in(self, number: int, budget: int) -> None:
        """Let one of those that wait go on, or drop it for good where it has nothing left to compute."""
        state, swapped = self.waiting[number]
        if len(state.tokens) == swapped.tokens < state.limit:
            state.tokens.append(0)
            state.tags.append(follow(state.tags[-1], 0))
        if len(state.tokens) == swapped.tokens or not self.free_rows:
            self.allocator.offload.drop(swapped)
            del self.waiting[number]
            return
        row = self.free_rows[0]
        claim = Claim("", np.array(state.tokens, np.int32), state.limit, state.chain, True, True, swapped)
        cached = self.allocator.admit(row, claim, 0, budget)
        if cached is not None:
            assert cached == swapped.tokens == state.written
            del self.waiting[number]
            self.rows[row] = state
            self.cover(row, cached, budget)
            self.tokens[row].reshape(-1)[: len(state.tokens)] = state.tokens
        self.move()

    def cover(self, row: int, cached: int, budget: int) -> None:
        """An admitted row holds blocks for its first chunk; for none while its blocks come from the second tier."""
        chunk = 0 if row in self.allocator.offload.loading else budget
        self.covered[row] = min(cached + chunk, len(self.rows[row].tokens))

    def move(self) -> None:
        """Make the transfers, and let the rows know what arrived."""
        offload, size = self.allocator.offload, self.size
        transfers = offload.take()
        damaged = self.slots.transfer(transfers.pairs, self.damage)
        sources = {int(transfers.pairs[i, 0]) - offload.first for i in damaged}
        for row, (first, good) in offload.settle(sources).items():
            state = self.rows[row]
            state.written = min(state.written, (first + good) * size)
            self.loads += good
            last = state.written // size
            if self.allocator.caching:
                self.allocator.lookups.done[row] = last
            if self.allocator.caching and last > first:
                triple = np.array([[row], [first], [last]], np.int32)
                self.allocator.publish(*triple, [state.chain], self.tokens)

    def check_lookup(self, claim: Claim, hits: int) -> None:
        """What is said about each block of a prompt, against what really happened."""
        assert isinstance(self.allocator, PagedAllocator)
        lookups, past = self.allocator.lookups, self.past
        lookup = lookups.recent[claim.request_id]
        assert lookup.hits == hits
        evictions = iter(lookup.evictions)
        for number, miss in enumerate(lookup.misses.tolist(), start=hits):
            name = claim.chain.digests[number]
            assert (miss == Miss.BEHIND_A_MISS) == (name in past.findable)
            if miss in (Miss.NEVER_SEEN, Miss.UNKNOWN):
                assert miss == Miss.UNKNOWN or name not in past.lost, "an evicted block passes for a new one"
                assert miss == Miss.NEVER_SEEN or lookups.ghosts.forgotten
            elif miss == Miss.EVICTED:
                eviction = next(evictions)
                assert eviction.step == past.lost[name] and eviction.idle_steps <= eviction.step
            elif miss == Miss.BEING_COMPUTED:
                assert any(
                    state.chain.digests[number : number + 1] == [name]
                    and state.written < (number + 1) * self.size
                    for state in self.rows.values()
                ), "nobody is computing it"
        assert lookup.ever >= hits * self.size

    def write(self, row: int, count: int, fresh: list[int]) -> None:
        """Write up to ``count`` tokens; those that are not known yet come from ``fresh``."""
        state = self.rows[row]
        start, stop = state.written, min(state.written + count, state.limit)
        for token in fresh[: max(0, stop - len(state.tokens))]:
            state.tokens.append(token)
            state.tags.append(follow(state.tags[-1] if state.tags else 0, token))
        stop = min(stop, len(state.tokens))
        if stop == start:
            return
        pair = np.array([[row], [start], [stop]], np.int32)
        if not self.allocator.grow(*pair):
            held = int(self.allocator.table.num_blocks[row])
            room = self.allocator.state().total - self.allocator.state().live
            assert -(-stop // self.size) - held + (row in self.allocator.unclean) > room, (
                "it would have fitted"
            )
            return
        self.covered[row] = max(self.covered[row], stop)
        self.move()
        self.slots.copy(self.allocator.take_copies())
        self.slots.write(self.allocator.table.matrix[row], start, state.tags[start:stop])
        self.tokens[row].reshape(-1)[start:stop] = state.tokens[start:stop]
        state.written = stop
        first, last = start // self.size, stop // self.size
        if self.allocator.caching and last > first:
            triple = np.array([[row], [first], [last]], np.int32)
            self.allocator.publish(*triple, [state.chain], self.tokens)

    def fork(self, row: int) -> None:
        assert isinstance(self.allocator, PagedAllocator)
        state = self.rows[row]
        ahead = int(self.allocator.table.num_blocks[row]) > -(-state.written // self.size)
        if ahead or self.allocator.promised[row] or not self.free_rows:
            return
        child = self.free_rows[0]
        self.allocator.fork(row, child)
        chain = HashChain()
        chain.digests = list(state.chain.digests)
        self.rows[child] = Row(list(state.tokens), state.limit, chain, state.written, list(state.tags))
        self.tokens[child] = self.tokens[row]
        self.covered[child] = state.written

    def truncate(self, row: int, tokens: int) -> None:
        state = self.rows[row]
        tokens = min(tokens, state.written)
        self.allocator.truncate(row, tokens)
        del state.tokens[tokens:], state.tags[tokens:]
        state.chain.truncate(tokens // self.size)
        state.written = self.covered[row] = tokens

    def release(self, row: int) -> None:
        del self.rows[row]
        self.allocator.release(row)

    def verify(self) -> None:
        self.past.look(self.allocator)
        for row, state in self.rows.items():
            held = self.slots.read(self.allocator.table.matrix[row], state.written)
            assert held == state.tags[: state.written], f"row {row} reads what it has not written"
        held = [block for _, swapped in self.waiting for block in swapped.blocks]
        assert sorted(held) == sorted(self.allocator.offload.tier.held), "a held block has not one owner"
        written = {row: state.written for row, state in self.rows.items()}
        audit(self.allocator, written, {row: self.covered[row] for row in self.rows})
        counts = np.array(list(written.values()), np.int32)
        waste = self.allocator.waste(np.array(list(self.rows), np.int32), counts, int(counts.sum()), 0)
        assert min(waste.written, waste.reserved, waste.internal) >= 0
        live = self.allocator.state().live * self.size
        assert waste.written + waste.reserved + waste.internal == live

    def drain(self) -> None:
        for row in list(self.rows):
            self.release(row)
        for _, swapped in self.waiting:
            self.allocator.offload.drop(swapped)
        self.waiting.clear()
        self.verify()
        assert self.allocator.state().live == 0
