"""Requests that arrive together with the same prefix compute it once."""

from __future__ import annotations

import pytest

from octavo.core.plan import FinishReason
from scheduler_helpers import Bench

PREFIX = range(1, 33)
"""Eight blocks of four."""


def bench(**settings: object) -> Bench:
    known: dict[str, object] = {"blocks": 100, "caching": True, "prefix_wait": True, "length": 3, "rows": 8}
    return Bench(**(known | settings))  # type: ignore[arg-type]


def computed(bench: Bench) -> int:
    """Tokens that go through the model until all is done."""
    return sum(record.plan.num_tokens for record in bench.drain())


def add(bench: Bench, count: int, own: int = 4) -> None:
    for number in range(count):
        bench.add(f"r{number}", [*PREFIX, *range(100 * number + 100, 100 * number + 100 + own)])


def test_a_burst_computes_its_prefix_once() -> None:
    waiting, alone = bench(budget=1_000), bench(budget=1_000, prefix_wait=False)
    for one in (waiting, alone):
        add(one, 6)
    decodes = 6 * 2
    assert computed(waiting) == 32 + 6 * 4 + decodes
    assert computed(alone) == 6 * 36 + decodes
    assert waiting.scheduler.allocator.lookups.totals.waits == 1, (
        "one waits, and nobody behind it overtakes it"
    )
    assert waiting.scheduler.allocator.lookups.totals.hits == 5 * 8


def test_the_wait_is_one_step_where_the_prompt_is_computed_in_one() -> None:
    b = bench()
    add(b, 2)
    assert [start.request.request_id for start in b.step().plan.started] == ["r0"]
    (start,) = b.step().plan.started
    assert (start.request.request_id, start.cached_tokens) == ("r1", 32)


def test_a_chunked_prompt_is_waited_for_to_its_end() -> None:
    b = bench(budget=20)
    add(b, 2)
    started = [[start.request.request_id for start in b.step().plan.started] for _ in range(3)]
    assert started == [["r0"], [], ["r1"]], (
        "in the second step four tokens of the budget are left, and r1 waits"
    )


def test_little_in_common_is_not_worth_a_step() -> None:
    b = bench()
    add(b, 3, own=40)
    assert len(b.step().plan.started) == 2, "the budget of 100 ends here, not the patience"
    b.drain()
    assert b.scheduler.allocator.lookups.totals.waits == 0


def test_half_of_the_work_is_worth_a_step() -> None:
    for own, together in ((32, 1), (33, 2)):
        b = bench(budget=1_000)
        add(b, 2, own=own)
        assert len(b.step().plan.started) == together
        b.drain()


@pytest.mark.parametrize("when", ["before it computed anything", "in the middle"])
def test_the_end_of_the_one_that_computes_lets_the_other_go_on(when: str) -> None:
    b = bench(budget=12)
    add(b, 2)
    if when == "in the middle":
        b.step()
    plan = b.scheduler.plan()
    assert plan is not None
    b.scheduler.finish("r0", FinishReason.ABORT)
    b.scheduler.apply(plan, b.executor.run(plan))
    record = b.step()
    assert [start.request.request_id for start in record.plan.started] == ["r1"]
    assert computed(b) > 0


def test_an_executor_that_failed_leaves_nobody_to_wait_for() -> None:
    b = bench()
    add(b, 2)
    plan = b.scheduler.plan()
    assert plan is not None
    b.executor.run(plan)
    b.scheduler.abandon(plan)
    assert [start.request.request_id for start in b.step().plan.started] == ["r1"]
    b.drain()


def test_whoever_is_preempted_is_not_waited_for() -> None:
    b = bench(blocks=14, budget=16, rows=3)
    b.lengths["old"] = 40
    b.add("old", range(500, 512))
    add(b, 2)
    events = [type(event).__name__ for record in b.drain() for event in record.events]
    assert events.count("Finished") == 3 and "Preempted" in events


def test_another_salt_waits_for_nobody() -> None:
    b = bench()
    b.add("a", PREFIX, salt="a")
    b.add("b", PREFIX, salt="b")
    assert len(b.step().plan.started) == 2
    b.drain()


@pytest.mark.parametrize("order", ["decode_first", "admission_first"])
@pytest.mark.parametrize("queue", ["fcfs", "priority"])
@pytest.mark.parametrize("budget", [1, 3, 7, None])
def test_every_request_ends_in_every_order(order: str, queue: str, budget: int | None) -> None:
    b = bench(blocks=24, budget=budget, order=order, queue=queue, rows=4)
    for number in range(12):
        shared = list(range(1, 1 + 4 * (number % 5)))
        b.add(f"r{number}", [*shared, *range(200 + number, 204 + number)], priority=-number)
    ended = [
        event.request_id
        for record in b.drain()
        for event in record.events
        if type(event).__name__ == "Finished"
    ]
    assert sorted(ended) == sorted(f"r{number}" for number in range(12))


def test_a_prompt_of_prompt_logprobs_neither_waits_nor_is_waited_for() -> None:
    b = bench()
    b.add("a", PREFIX, prompt_logprobs=0)
    b.add("b", PREFIX)
    b.add("c", PREFIX, prompt_logprobs=0)
    assert len(b.step().plan.started) == 3
    b.drain()
