"""Random use of every allocator, with the audit and a comparison of all contents after each operation."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memory_model import MemoryModel
from octavo.core.config import CacheConfig
from octavo.memory import Allocator, PagedAllocator, make_allocator

TOKENS = st.lists(st.integers(0, 1), max_size=30)
"""Two tokens alone, so that prefixes meet often."""


def make(
    blocks: int, size: int, name: str, placement: str, caching: bool, tier: int = 0, superblock: int = 1
) -> Allocator:
    if name == "paged":  # not by the settings, which allow no superblocks in pools as small as these
        return PagedAllocator(
            blocks,
            size,
            max_num_seqs=5,
            max_model_len=40,
            caching=caching,
            offload_blocks=tier,
            superblock=superblock,
        )
    cache = CacheConfig(blocks, size, name, placement, caching)  # type: ignore[arg-type]
    return make_allocator(cache, 5, 40)


class MemoryMachine(RuleBasedStateMachine):
    model: MemoryModel

    @initialize(
        blocks=st.integers(1, 24),
        size=st.sampled_from([1, 2, 4, 8]),
        name=st.sampled_from(["paged", "paged", "paged", "reserved", "pow2"]),
        placement=st.sampled_from(["first_fit", "buddy"]),
        caching=st.booleans(),
        tier=st.sampled_from([0, 1, 3, 10, 60]),
        damage=st.sets(st.integers(0, 9), max_size=2),
        superblock=st.sampled_from([1, 2, 4, 8]),
    )
    def start(
        self,
        blocks: int,
        size: int,
        name: str,
        placement: str,
        caching: bool,
        tier: int,
        damage: set[int],
        superblock: int,
    ) -> None:
        self.model = MemoryModel(make(blocks, size, name, placement, caching, tier, superblock))
        self.model.damage = damage

    @precondition(lambda self: self.model.free_rows)
    @rule(
        prompt=TOKENS.filter(bool),
        limit=st.integers(1, 40),
        headroom=st.integers(0, 2),
        budget=st.integers(0, 40),
    )
    def admit(self, prompt: list[int], limit: int, headroom: int, budget: int) -> None:
        self.model.admit(prompt, limit, headroom, budget)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), count=st.integers(1, 20), fresh=TOKENS)
    def write(self, data: st.DataObject, count: int, fresh: list[int]) -> None:
        self.model.write(data.draw(st.sampled_from(sorted(self.model.rows))), count, fresh)

    @precondition(lambda self: self.model.rows and isinstance(self.model.allocator, PagedAllocator))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.model.fork(data.draw(st.sampled_from(sorted(self.model.rows))))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), tokens=st.integers(0, 40))
    def truncate(self, data: st.DataObject, tokens: int) -> None:
        self.model.truncate(data.draw(st.sampled_from(sorted(self.model.rows))), tokens)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.model.release(data.draw(st.sampled_from(sorted(self.model.rows))))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), cost=st.sampled_from([0.0, 0.0, 1.0]))
    def swap_out(self, data: st.DataObject, cost: float) -> None:
        self.model.swap_out(data.draw(st.sampled_from(sorted(self.model.rows))), cost)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), budget=st.integers(0, 40))
    def swap_in(self, data: st.DataObject, budget: int) -> None:
        self.model.swap_in(data.draw(st.integers(0, len(self.model.waiting) - 1)), budget)

    @invariant()
    def everything_is_where_it_must_be(self) -> None:
        if hasattr(self, "model"):
            self.model.verify()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.drain()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def random_tokens(rng: random.Random) -> list[int]:
    count = rng.randint(1, 30)
    shared = rng.choice([0, count // 2, count])
    return [0] * shared + [rng.randint(0, 1) for _ in range(count - shared)]


def use_at_random(rng: random.Random, operations: int) -> tuple[int, int]:
    """(admissions that found a prefix, blocks that came from the second tier)."""
    name = rng.choice([*["paged"] * 6, "reserved", "pow2"])
    size = rng.choice([1, 2, 4, 8])
    placement, caching, tier = (
        rng.choice(["first_fit", "buddy"]),
        rng.random() < 0.8,
        rng.choice([0, 4, 30, 30]),
    )
    superblock = rng.choice([1, 2, 4, 8])
    allocator = make(rng.randint(1, 40), size, name, placement, caching, tier, superblock)
    model = MemoryModel(allocator)
    for _ in range(operations):
        kind = rng.random()
        rows = sorted(model.rows)
        if not rows or (kind < 0.25 and model.free_rows):
            model.admit(random_tokens(rng), rng.randint(1, 40), rng.choice([0, 0, 1]), rng.randint(0, 40))
        elif kind < 0.7:
            model.write(rng.choice(rows), rng.randint(1, 12), random_tokens(rng))
        elif kind < 0.8 and isinstance(allocator, PagedAllocator):
            model.fork(rng.choice(rows))
        elif kind < 0.85 and tier:
            model.swap_out(rng.choice(rows), 0.0)
        elif kind < 0.92 and model.waiting:
            model.swap_in(rng.randrange(len(model.waiting)), rng.randint(0, 40))
        elif kind < 0.94:
            model.truncate(rng.choice(rows), rng.randint(0, 40))
        else:
            model.release(rng.choice(rows))
        model.verify()
    model.drain()
    return model.hits, model.loads


@pytest.mark.parametrize("seed", range(10))
def test_six_thousand_operations(seed: int) -> None:
    rng = random.Random(seed)
    hits, loads = map(sum, zip(*(use_at_random(rng, 200) for _ in range(30)), strict=True))
    assert hits > 50, "the prefix cache was hardly used"
    assert loads > 4, "the second tier was hardly used"
