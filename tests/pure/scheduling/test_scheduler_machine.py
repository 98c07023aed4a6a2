"""Random requests, steps and aborts under every combination of settings, checked after every step."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.scheduling.audit import audit
from scheduler_model import CACHES, CONFIGS, SchedulerModel, Totals, drive, random_beams


class SchedulerMachine(RuleBasedStateMachine):
    model: SchedulerModel

    @initialize(cache=st.sampled_from(CACHES), config=st.sampled_from(CONFIGS))
    def start(self, cache: CacheConfig, config: SchedulerConfig) -> None:
        self.model = SchedulerModel(cache, config)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.none() | st.integers(1, 40),
        length=st.integers(1, 30),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, "salt"]),
        n=st.sampled_from([1, 1, 2, 3, 6, 7]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int | None,
        length: int,
        priority: int,
        salt: str | None,
        n: int,
    ) -> None:
        self.model.add(prompt, max_tokens, length, priority, salt, n)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.none() | st.integers(1, 12),
        seed=st.integers(0, 1000),
        n=st.integers(1, 4),
        salt=st.sampled_from([None, "salt"]),
    )
    def search(self, prompt: list[int], max_tokens: int | None, seed: int, n: int, salt: str | None) -> None:
        self.model.add_search(prompt, max_tokens, random_beams(random.Random(seed)), n, salt)

    @rule()
    def step(self) -> None:
        self.model.step()

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.model.step()

    @precondition(lambda self: self.model.unaborted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.model.abort(data.draw(st.sampled_from(self.model.unaborted)))

    @precondition(lambda self: self.model.unaborted)
    @rule(data=st.data())
    def abort_in_flight(self, data: st.DataObject) -> None:
        self.model.step(data.draw(st.sampled_from(self.model.unaborted)))

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "model"):
            audit(self.model.scheduler)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.drain()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

PAIRS = list(itertools.product(CACHES, CONFIGS))
random.Random(0).shuffle(PAIRS)  # every share meets every setting
SHARES = 12


@pytest.mark.parametrize("share", range(SHARES))
def test_every_combination_of_settings(share: int) -> None:
    """1,440 schedulers in all, each with some 30 operations and a drain."""
    seen = Totals()
    for number in range(share, len(PAIRS), SHARES):
        cache, config = PAIRS[number]
        totals = drive(random.Random(number), cache, config, 30)
        for name in vars(seen):
            setattr(seen, name, getattr(seen, name) + getattr(totals, name))
    assert seen.steps > 4_000
    # A run that forces nothing proves nothing.
    assert min(seen.preemptions, seen.hits, seen.evictions, seen.aborts, seen.finished) > 40
    assert seen.resumed_hits > 5
    assert min(seen.forks, seen.copies, seen.preempted_forks) > 40
    assert min(seen.searches, seen.beam_forks) > 40 and seen.preempted_searches > 5
