"""Frames against the scheduler and the allocator that they describe."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scheduler_model
from frame_helpers import Page, Run
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import StepRecord
from octavo.core.plan import FinishReason
from octavo.dashboard.blocks import FINDABLE, LIVE, PARTIAL, SHARED, running_numbers
from octavo.dashboard.frames import FrameSource
from octavo.memory.paged import PagedAllocator
from octavo.scheduling.scheduler import Scheduler
from scheduler_model import CACHES, CONFIGS, SchedulerModel, drive


def check(page: Page, scheduler: Scheduler) -> None:
    """Everything that the page knows against the real thing."""
    allocator = scheduler.allocator
    numbers = running_numbers(scheduler)
    assert len(set(numbers)) == len(numbers) and max(numbers, default=0) < 1 << 32
    table, size, columns = allocator.table, allocator.block_size, page.columns
    state = allocator.state()
    live = (columns["flags"] & LIVE) > 0
    cached = (columns["flags"] & (LIVE | FINDABLE)) == FINDABLE
    assert (int(live.sum()), int(cached.sum())) == (state.live, state.cached)
    refs = np.zeros(allocator.num_blocks, np.int64)
    fill = np.zeros(allocator.num_blocks, np.int64)
    owners: dict[int, int] = {}
    for place, number in enumerate(numbers):
        blocks = table.row(int(scheduler.running.row[place])).tolist()
        assert page.table(number) == blocks
        computed = int(scheduler.running.computed[place])
        for position, block in enumerate(blocks):
            refs[block] += 1
            fill[block] = max(fill[block], min(max(computed - position * size, 0), size))
            owners.setdefault(block, number)
    assert columns["refs"].tolist() == refs.tolist()
    assert columns["fill"].tolist() == fill.tolist()
    assert {block: int(columns["owner"][block]) for block in np.flatnonzero(live).tolist()} == owners
    assert ((columns["flags"] & SHARED) > 0).tolist() == (refs > 1).tolist()
    assert ((columns["flags"] & PARTIAL) > 0).tolist() == (live & (fill < size)).tolist()
    if isinstance(allocator, PagedAllocator):
        findable = (columns["flags"] & FINDABLE) > 0
        assert findable.tolist() == allocator.pool.findable.tolist()
        for block in np.flatnonzero(findable).tolist():
            assert page.names[block] == allocator.cache.names[block][:3]


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1, 4, 16]),
    allocator=st.sampled_from(["paged", "reserved", "pow2"]),
)
def test_deltas_lead_where_a_snapshot_would(seed: int, size: int, allocator: str) -> None:
    random = np.random.default_rng(seed)
    run = Run(480 // size, max_num_seqs=6, max_model_len=200, block_size=size, allocator=allocator)
    page = Page(run.snapshot())
    for number in range(14):
        begin = 48 if random.random() < 0.7 else 0
        prompt = np.concatenate(
            (np.arange(begin), random.integers(0, 50, int(random.integers(1, 60))))
        ).astype(np.int32)
        run.add(f"r{number}", prompt, int(random.integers(1, 40)))
        run.steps(int(random.integers(0, 9)))
        if number == 9:
            run.engine.finish("r8", FinishReason.ABORT)
        page.apply(run.delta())
        check(page, run.scheduler)
    run.engine.drain()
    page.apply(run.delta())
    check(page, run.scheduler)
    fresh = Page(run.source.whole())
    for name, column in fresh.columns.items():
        assert column.tolist() == page.columns[name].tolist()


@pytest.mark.parametrize("seed", range(12))
def test_frames_follow_forks_beams_preemptions_and_aborts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random work under the scheduler's own model, with a page that looks now and then."""

    class Watched(SchedulerModel):
        def __init__(self, cache: CacheConfig, config: SchedulerConfig) -> None:
            super().__init__(cache, config)
            self.source = FrameSource(self.scheduler)
            self.page = Page(self.source.snapshot(0.0))
            self.chance = random.Random(seed)

        def _check(self, record: StepRecord, oldest: str | None) -> None:
            super()._check(record, oldest)
            self.source.emit(record, float(self.totals.steps))
            if self.chance.random() < 0.6:
                self.page.apply(json.loads(json.dumps(self.source.delta(float(self.totals.steps)))))
                check(self.page, self.scheduler)

    monkeypatch.setattr(scheduler_model, "SchedulerModel", Watched)
    rng = random.Random(seed)
    totals = drive(rng, CACHES[seed % len(CACHES)], CONFIGS[seed % len(CONFIGS)], 250)
    assert totals.steps > 50


def test_the_model_forks_and_searches_often_enough() -> None:
    """What the test above is worth: its twelve runs see what they are named after."""
    seen = [
        drive(random.Random(seed), CACHES[seed % len(CACHES)], CONFIGS[seed % len(CONFIGS)], 250)
        for seed in range(12)
    ]
    for name in ("forks", "copies", "beam_forks", "preemptions", "evictions", "aborts"):
        assert sum(getattr(totals, name) for totals in seen) > 10, name


def test_a_delta_lists_what_changed_and_nothing_else() -> None:
    run = Run(100)
    run.add("a", 20, 50)
    run.steps(1)
    run.snapshot()
    run.steps(1)
    frame = run.delta()
    assert frame["blocks"]["count"] == 1, "one more token in the partial block"
    assert run.source.moved
    frame = run.delta()
    assert frame["blocks"]["count"] == 0 and not frame["requests"] and not frame["log"]
    assert not run.source.moved
    assert frame["running"] == {"number": [1], "computed": [21], "known": [22], "blocks": [2]}


def test_requests_are_told_once_and_again_when_they_change() -> None:
    run = Run(100, max_num_seqs=1)
    run.add("a", 20, 3)
    run.add("b", 40, 3)
    first = run.snapshot()
    assert [(one["number"], one["id"], one["cached"]) for one in first["requests"]] == [
        (1, "a", 0),
        (2, "b", 0),
    ]
    assert first["waiting"] == {"number": [1, 2], "count": 2}
    run.steps(2)
    assert run.delta()["requests"] == []
    run.steps(3)
    (told,) = run.delta()["requests"]
    assert (told["id"], told["cached"]) == ("b", 16), "its first block was computed by the other"


def test_the_log_tells_each_decision_with_its_step_and_request() -> None:
    run = Run(6, max_model_len=96)
    run.snapshot()
    run.add("a", 30, 40)
    run.add("b", np.arange(100, 130, dtype=np.int32), 40)
    kinds: list[tuple[str, str | None]] = []
    while run.scheduler.has_unfinished:
        run.steps(1)
        for entry in run.delta()["log"]:
            kinds.append((entry["kind"], entry["request"]))
            assert entry["line"] and entry["step"] == run.source.whole()["step"]
            if entry["kind"] == "Preempted":
                assert entry["requester"] == "a"
            if entry["kind"] == "Evicted":
                assert entry["blocks"]
    assert kinds[:3] == [("Admitted", "a"), ("Admitted", "b"), ("Preempted", "b")]
    assert ("Finished", "a") in kinds and ("Finished", "b") in kinds


def test_more_decisions_than_fit_are_counted() -> None:
    run = Run(4000, max_num_seqs=600)
    for number in range(600):
        run.add(f"r{number}", 5, 1)
    run.steps(2)
    frame = run.snapshot()
    assert len(frame["log"]) == 400
    assert len(frame["log"]) + frame["log_missing"] == 1200, "600 admissions, 600 ends"


def test_ages_of_cached_blocks_are_clock_units_since_their_release() -> None:
    run = Run(100)
    run.snapshot()
    run.add("a", 64, 1)
    run.steps(1)
    page = Page(run.snapshot())
    released = run.clock.now()
    run.add("b", np.arange(1000, 1020, dtype=np.int32), 30)
    run.steps(30)
    assert run.clock.now() - released == 30
    page = Page(run.snapshot())
    cached = np.flatnonzero((page.columns["flags"] & (LIVE | FINDABLE)) == FINDABLE)
    assert page.released[cached[:4]].tolist() == [released] * 4


def test_evicted_blocks_have_new_names_even_if_they_look_the_same() -> None:
    run = Run(8, max_model_len=128)
    run.add("a", 100, 1)
    run.steps(1)
    page = Page(run.snapshot())
    # Between two looks, the cached blocks go and come back with other content.
    run.add("b", np.arange(500, 600, dtype=np.int32), 1)
    run.steps(2)
    page.apply(run.delta())
    check(page, run.scheduler)


@pytest.mark.parametrize("blocks", [100_000])
def test_a_large_pool_is_a_snapshot_of_about_a_megabyte(blocks: int) -> None:
    run = Run(blocks, max_num_seqs=256, max_model_len=16384)
    random = np.random.default_rng(0)
    for number in range(160):
        length = int(random.integers(5000, 15000))
        run.add(f"request-{number}", random.integers(0, 9, length).astype(np.int32), 40)
    run.steps(700)
    frame = run.snapshot()
    pool: dict[str, Any] = frame["pool"]
    assert pool["free"] < blocks // 2
    assert len(json.dumps(frame)) < 1_300_000
