from __future__ import annotations

from octavo.core.events import Admitted, Finished, PoolState, Preempted
from octavo.core.plan import FinishReason
from scheduler_helpers import Bench, events, ran


def test_the_most_recently_admitted_is_preempted_and_returns_with_its_tokens() -> None:
    bench = Bench(5)
    bench.add("a", 7, 8)
    bench.add("b", 7, 8)
    bench.step()
    second = bench.step()
    assert second.pool == PoolState(4, 0, 1)
    third = bench.step()  # a takes the fifth block, b finds none
    assert ran(third) == [("a", 8, 1)]
    (event,) = events(third, Preempted)
    assert event == Preempted("b", "b", 0, 8, 2, PoolState(5, 0, 0), PoolState(3, 0, 2))
    assert third.plan.ended == (1,)
    assert (third.running, third.waiting) == (1, 1)
    records = bench.drain()
    resumed = next(record for record in records if events(record, Admitted))
    assert events(resumed, Admitted) == [Admitted("b", resumed.plan.started[0].row, 7, 0, 3, True)]
    assert resumed.plan.started[0].output_token_ids.tolist() == [
        third.plan.block_table.dtype.type(x) for x in (50, 57)
    ]
    assert ran(resumed)[-1] == ("b", 0, 9)
    finished = {event.request_id: event for record in records for event in events(record, Finished)}
    assert finished["b"].output_tokens == 8 and finished["b"].preemptions == 1


def test_restart_discards_what_was_generated() -> None:
    bench = Bench(5, preemption="restart")
    bench.add("a", 7, 8)
    bench.add("b", 7, 8)
    (event,) = events(bench.steps(3), Preempted)
    assert event.tokens_discarded == 2
    records = bench.drain()
    resumed = next(record for record in records if events(record, Admitted))
    assert len(resumed.plan.started[0].output_token_ids) == 0
    finished = [event for record in records for event in events(record, Finished)]
    assert [event.output_tokens for event in finished] == [8, 8]


def test_no_victim_returns_in_the_same_step() -> None:
    bench = Bench(5)
    bench.add("a", 7, 9)
    bench.add("b", 7, 9)
    bench.add("tiny", 1, 1)
    third = bench.steps(3)
    assert events(third, Admitted) == []
    assert third.pool == PoolState(3, 0, 2)


def test_later_victims_stand_in_front_of_earlier_ones() -> None:
    bench = Bench(8, size=1, rows=4, budget=None)
    for name in "abcd":
        bench.add(name, 1, 6)
    bench.steps(2)
    assert bench.scheduler.num_running == 4 and bench.scheduler.pool_state.free == 0
    third = bench.step()
    assert [(e.requester, e.request_id) for e in events(third, Preempted)] == [("a", "d"), ("c", "c")]
    assert third.request_ids == ("a", "b")
    admitted = [event.request_id for record in bench.drain() for event in events(record, Admitted)]
    assert list(dict.fromkeys(admitted)) == ["b", "c", "d"], (
        "b was preempted after them and arrived before them"
    )


def test_under_priority_the_least_important_is_preempted() -> None:
    bench = Bench(6, size=1, rows=3, queue="priority", budget=None)
    bench.add("a", 1, 5, priority=1)
    bench.add("b", 1, 5, priority=1)
    bench.step()
    bench.add("urgent", 1, 5, priority=0)
    bench.steps(1)
    third = bench.step()
    assert [(e.requester, e.request_id) for e in events(third, Preempted)] == [("b", "b")]
    assert third.request_ids == ("a", "urgent")


def test_the_oldest_is_never_a_victim_even_if_it_is_the_least_important() -> None:
    bench = Bench(4, size=1, rows=2, queue="priority", budget=None)
    bench.add("old", 1, 3, priority=9)
    bench.step()
    bench.add("urgent", 1, 3, priority=0)
    victims = [event.request_id for record in bench.drain() for event in events(record, Preempted)]
    assert victims == ["urgent"]


def test_an_admission_that_growth_undoes_in_the_same_plan_never_reaches_the_executor() -> None:
    bench = Bench(6, size=1, rows=2, order="admission_first", budget=None)
    bench.add("a", 2, 4)
    bench.steps(2)
    bench.add("b", 3, 2)
    record = bench.step()  # b takes the last three blocks, then a needs one
    assert [event.request_id for event in events(record, Admitted)] == ["b"]
    assert [(e.requester, e.request_id) for e in events(record, Preempted)] == [("a", "b")]
    assert record.plan.started == () and record.plan.ended == ()
    assert record.request_ids == ("a",)


def test_a_preempted_sequence_hits_its_own_blocks_on_re_admission() -> None:
    """A crash in another engine (nano-vllm#211)."""
    bench = Bench(5, caching=True)
    bench.add("a", range(100, 107), 3)
    bench.add("b", 7, 8)
    third = bench.steps(3)
    assert [event.request_id for event in events(third, Preempted)] == ["b"]
    assert third.pool == PoolState(0, 4, 1), "a ended in this step; two full blocks of each"
    resumed = bench.step()
    assert ran(resumed) == [("b", 8, 1)]
    assert events(resumed, Admitted) == [Admitted("b", resumed.plan.started[0].row, 7, 8, 3, True)]
    assert events(bench.drain()[-2], Finished) == [Finished("b", FinishReason.LENGTH, 7, 8, 1, 0, 4)]


def test_a_resumed_request_reports_the_hits_of_its_first_admission_alone() -> None:
    bench = Bench(6, caching=True)
    bench.add("warm", 4, 1)
    bench.drain()
    bench.add("a", range(100, 107), 9)
    bench.add("b", 7, 9)
    records = bench.drain()
    admitted = [event for record in records for event in events(record, Admitted) if event.request_id == "b"]
    assert [event.resumed for event in admitted] == [False, True]
    assert admitted[0].cached_tokens == 4
    finished = next(e for record in records for e in events(record, Finished) if e.request_id == "b")
    assert finished.cached_tokens == 4 and finished.preemptions == 1
