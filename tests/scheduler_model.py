"""An executor that computes something one can check, and a scheduler driven at random with it.

The "model" maps a whole prefix to the next token, and a slot of the pool holds the tag of its prefix (memory_model).
The executor reads a row through the block table before it writes: a block handed to two rows, a wrong prefix hit or
a lost copy shows as a wrong tag, and any wrong token shows in the output, which must equal ``expected_output``.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from beam_model import expected_beams
from memory_model import follow
from octavo.core.beam_params import BeamParams
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.events import (
    Admitted,
    BeamsDecided,
    Copied,
    Damaged,
    Finished,
    Forked,
    Preempted,
    Spilled,
    StepRecord,
)
from octavo.core.plan import FinishReason
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.scheduling.audit import audit
from scheduler_helpers import make_scheduler
from tag_executor import VOCABULARY, TagExecutor


def expected_output(prompt: list[int], length: int, seed: int = 0) -> list[int]:
    tag = 0
    for token in prompt:
        tag = follow(tag, token)
    output = []
    for _ in range(length):
        output.append((tag + seed) % VOCABULARY)
        tag = follow(tag, output[-1])
    return output


@dataclass
class Totals:
    steps: int = 0
    preemptions: int = 0
    hits: int = 0
    resumed_hits: int = 0
    evictions: int = 0
    blocked: int = 0
    aborts: int = 0
    forks: int = 0
    copies: int = 0
    preempted_forks: int = 0
    searches: int = 0
    preempted_searches: int = 0
    beam_forks: int = 0
    finished: int = 0
    swapped: int = 0
    resumed_swaps: int = 0
    recomputed: int = 0
    spilled: int = 0
    found: int = 0
    damaged: int = 0


class SchedulerModel:
    """A scheduler, what was asked of it, and what must be true after every step."""

    def __init__(self, cache: CacheConfig, config: SchedulerConfig) -> None:
        self.scheduler = make_scheduler(cache, config)
        self.config = config
        self.lengths: dict[str, int] = {}
        self.executor = TagExecutor(cache.num_blocks, cache.block_size, self.lengths)
        self.open: dict[str, Request] = {}
        self.preempted: dict[str, int] = {}
        self.waiting_swapped: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.forks: set[str] = set()
        self.decided: set[str] = set()
        self.totals = Totals()
        self._oldest: str | None = None
        self._passed_over = 0

    def add(
        self,
        prompt: list[int],
        max_tokens: int | None,
        length: int,
        priority: int,
        salt: str | None,
        n: int = 1,
    ) -> None:
        name = f"r{len(self.lengths)}"
        longest = self.scheduler.max_len
        sampling = SamplingParams(max_tokens=max_tokens, n=n, seed=0)
        request = Request(name, np.array(prompt, np.int32), sampling, priority, salt)
        choices = request.choices()
        # Lengths that differ, so that answers to one prompt leave one after the other.
        self.lengths |= {choice.request_id: 1 + (length + 7 * i) % 30 for i, choice in enumerate(choices)}
        try:
            self.scheduler.add(request)
        except ContextLengthError:
            assert len(prompt) + (max_tokens or 1) > longest, "it would have fitted"
            return
        except RequestError:
            assert n > self.config.max_num_seqs, "there are rows for all of them"
            return
        assert len(prompt) + (max_tokens or 1) <= longest, "it can never fit"
        assert n <= self.config.max_num_seqs
        self.open |= {choice.request_id: choice for choice in choices}

    def add_search(
        self, prompt: list[int], max_tokens: int | None, beam: BeamParams, n: int, salt: str | None
    ) -> None:
        name = f"s{len(self.lengths)}"
        self.lengths[name] = 1 << 30
        sampling = SamplingParams(max_tokens=max_tokens, beam=beam, n=min(n, beam.width))
        request = Request(name, np.array(prompt, np.int32), sampling, 0, salt)
        fits = self._search_limit(request) >= len(prompt) + (max_tokens or 1)
        try:
            self.scheduler.add(request)
        except ContextLengthError:
            assert not fits, "it would have fitted"
            return
        except RequestError:
            budget = self.config.max_num_batched_tokens or beam.width
            assert beam.width > min(self.config.max_num_seqs, budget) or not self.scheduler.allocator.can_fork
            return
        assert fits, "it can never fit"
        self.open[name] = request

    def _search_limit(self, request: Request) -> int:
        """Tokens of each beam when nothing is shared but the prompt's full blocks."""
        assert request.sampling.beam is not None
        size, blocks = self.scheduler.allocator.block_size, self.scheduler.allocator.num_blocks
        shared = len(request.prompt_token_ids) // size
        tokens = self.config.max_model_len
        while tokens > 0 and shared + request.sampling.beam.width * (-(-tokens // size) - shared) > blocks:
            tokens -= 1
        return tokens

    @property
    def unaborted(self) -> list[str]:
        return [name for name in self.open if name not in self.aborted]

    def abort(self, name: str) -> None:
        assert self.scheduler.finish(name, FinishReason.ABORT)
        assert not self.scheduler.finish(name, FinishReason.ABORT), "once is enough"
        self.aborted.add(name)
        self.totals.aborts += 1

    def step(self, abort_in_flight: str | None = None) -> bool:
        """Plan, run, apply and check; False when there was nothing to do."""
        scheduler = self.scheduler
        oldest = scheduler.running.ids[0] if scheduler.num_running else None
        plan = scheduler.plan()
        if plan is None:
            assert not self.open and not scheduler.has_unfinished
            return False
        assert plan.num_tokens <= (self.config.max_num_batched_tokens or 1 << 62)
        result = self.executor.run(plan)
        if abort_in_flight is not None:
            self.abort(abort_in_flight)
        record = scheduler.apply(plan, result)
        audit(scheduler)
        self._check(record, oldest)
        self.totals.steps += 1
        return True

    def _check(self, record: StepRecord, oldest: str | None) -> None:
        assert record.pool == self.scheduler.pool_state
        assert len(record.request_ids) == len(record.plan.rows)
        size = self.scheduler.allocator.block_size
        held = record.waste.written + record.waste.reserved + record.waste.internal
        assert min(record.waste.written, record.waste.reserved, record.waste.internal) >= 0
        gone = False
        for event in record.events:
            if isinstance(event, Preempted):
                assert event.request_id != oldest, "the oldest is never a victim"
                self.preempted[event.request_id] = self.preempted.get(event.request_id, 0) + 1
                self.totals.preemptions += 1
                assert event.tokens_swapped in (0, event.tokens_swapped + event.tokens_to_recompute)
                self.totals.swapped += event.tokens_swapped > 0
                self.totals.recomputed += self.config.preemption == "swap" and event.tokens_to_recompute > 0
                self.waiting_swapped[event.request_id] = event.tokens_swapped
                self.totals.preempted_forks += event.request_id in self.forks
                self.totals.preempted_searches += event.request_id.startswith("s")
            elif isinstance(event, Forked):
                self.forks.add(event.request_id)
                self.totals.forks += 1
                self.totals.beam_forks += event.request_id.startswith("s")
            elif isinstance(event, BeamsDecided):
                self._check_beams(event)
            elif isinstance(event, Copied):
                self.totals.copies += len(event.copies)
                assert event.copies == tuple(map(tuple, record.plan.copies.tolist()))
            elif isinstance(event, Admitted):
                self.totals.hits += event.cached_tokens > 0
                if (tokens := self.waiting_swapped.pop(event.request_id, 0)) > 0:
                    assert event.cached_tokens == tokens, "nothing that was swapped out is computed again"
                    self.totals.resumed_swaps += 1
                elif event.loaded_tokens:
                    self.totals.found += 1
                self.totals.resumed_hits += event.cached_tokens > 0 and event.resumed
            elif isinstance(event, Spilled):
                self.totals.spilled += len(event.blocks)
            elif isinstance(event, Damaged):
                self.totals.damaged += 1
            elif isinstance(event, Finished):
                self._check_finished(event)
                gone = True
        kinds = [type(event).__name__ for event in record.events]
        self.totals.evictions += kinds.count("Evicted")
        self.totals.blocked += kinds.count("Blocked")
        assert gone or held == record.pool.live * size
        self._check_progress(record, oldest)

    def _check_progress(self, record: StepRecord, oldest: str | None) -> None:
        if oldest is None or oldest != self._oldest or oldest in record.request_ids:
            self._passed_over = 0
        else:
            self._passed_over += 1
            assert self.config.order == "admission_first", "decode first serves the oldest in every step"
            assert self._passed_over <= self.config.max_num_seqs, "the oldest waits too long"
        self._oldest = oldest

    def _check_finished(self, event: Finished) -> None:
        request = self.open.pop(event.request_id)
        self.totals.finished += 1
        assert event.preemptions == self.preempted.get(event.request_id, 0)
        assert event.prompt_tokens == len(request.prompt_token_ids)
        prompt = request.prompt_token_ids.tolist()
        if event.request_id in self.aborted:
            assert event.reason == FinishReason.ABORT
            return
        if request.sampling.beam is not None:
            assert event.request_id in self.decided
            return
        room = self.scheduler.max_len - len(prompt)
        length = min(self.lengths[event.request_id], request.sampling.max_tokens or room)
        stops = length == self.lengths[event.request_id]
        assert event.reason == (FinishReason.STOP if stops else FinishReason.LENGTH)
        assert event.output_tokens == length
        seed = request.sampling.seed
        assert seed is not None
        assert self.executor.outputs[event.request_id] == expected_output(prompt, length, seed)

    def _check_beams(self, event: BeamsDecided) -> None:
        request = self.open[event.request_id]
        sampling, prompt = request.sampling, request.prompt_token_ids.tolist()
        assert sampling.beam is not None
        max_tokens = sampling.max_tokens or self._search_limit(request) - len(prompt)
        expected = expected_beams(prompt, sampling.beam, max_tokens, sampling.n)
        assert [(list(one.token_ids), one.score) for one in event.answers] == expected
        self.decided.add(event.request_id)
        self.totals.searches += 1

    def drain(self) -> None:
        """Everything must end within a bounded number of steps: each step takes the oldest at least a token further."""
        tokens = sum(len(request.prompt_token_ids) + self.scheduler.max_len for request in self.open.values())
        most = 2 + tokens * (self.config.max_num_seqs + 1)
        while self.step():
            most -= 1
            assert most, "a request waits forever"
        assert not self.open and self.scheduler.pool_state.live == 0


CACHES = [
    CacheConfig(blocks, size, name, placement, caching)
    for blocks, size in ((2, 8), (5, 4), (9, 2), (30, 1), (12, 4), (40, 2))
    for name, placement in (
        ("paged", "first_fit"),
        ("reserved", "first_fit"),
        ("pow2", "first_fit"),
        ("reserved", "buddy"),
    )
    for caching in ((False, True) if name == "paged" else (False,))
]


def settings() -> Iterator[SchedulerConfig]:
    for order in ("decode_first", "admission_first"):
        for queue in ("fcfs", "priority"):
            for preemption in ("recompute", "restart"):
                for budget in (None, 5, 64):
                    for watermark in (0, 2):
                        for wait in (False, True):
                            headroom = 6 if wait and budget is not None else 0
                            yield SchedulerConfig(
                                6,
                                budget,
                                60,
                                watermark,
                                order,
                                queue,
                                preemption,
                                wait,
                                headroom_tokens=headroom,
                            )


CONFIGS = list(settings())


def random_prompt(rng: random.Random, most: int) -> list[int]:
    count = rng.randint(1, max(1, most))
    shared = rng.choice([0, count // 2, count])
    return [0] * shared + [rng.randrange(VOCABULARY) for _ in range(count - shared)]


def random_beams(rng: random.Random) -> BeamParams:
    groups = rng.choice([1, 1, 2])
    return BeamParams(
        width=groups * rng.randint(1, 3),
        length_penalty=rng.choice([0.0, 1.0, -1.0, 2.0]),
        early_stopping=rng.choice([True, False, "never"]),  # type: ignore[arg-type]
        groups=groups,
        diversity_penalty=rng.choice([0.0, 0.5, 3.0]) if groups > 1 else 0.0,
    )


def drive(
    rng: random.Random,
    cache: CacheConfig,
    config: SchedulerConfig,
    operations: int,
    damage: Collection[int] = (),
) -> Totals:
    """Adds, aborts and steps at random, then a drain. ``damage`` as in ``TagExecutor``."""
    model = SchedulerModel(cache, config)
    model.executor.damage = damage
    for _ in range(operations):
        kind = rng.random()
        if kind < 0.1:
            prompt = random_prompt(rng, min(model.scheduler.max_len, 24))
            max_tokens = rng.choice([None, rng.randint(1, 12), rng.randint(1, 12)])
            model.add_search(prompt, max_tokens, random_beams(rng), rng.randint(1, 4), None)
        elif kind < 0.34:
            prompt = random_prompt(rng, min(model.scheduler.max_len, 24))
            room = max(1, model.scheduler.max_len - len(prompt))
            max_tokens = rng.choice([None, rng.randint(1, room), rng.randint(1, room)])
            salt = rng.choice([None, None, None, "salt"])
            n = rng.choice([1, 1, 1, 2, 3, 6, 7])
            model.add(prompt, max_tokens, rng.randint(1, 30), rng.randint(0, 2), salt, n)
        elif kind < 0.37 and model.unaborted:
            model.abort(rng.choice(model.unaborted))
        elif kind < 0.4 and model.unaborted:
            model.step(abort_in_flight=rng.choice(model.unaborted))
        else:
            model.step()
    model.drain()
    return model.totals
