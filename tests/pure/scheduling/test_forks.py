"""Several answers to one prompt: one prefill, forks on shared blocks, and what becomes of them when somebody leaves."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.core.beam_params import BeamParams
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.events import Admitted, Copied, Finished, Forked, PoolState, Preempted, Refused
from octavo.core.plan import FinishReason
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.scheduling.audit import audit
from scheduler_helpers import Bench, events, ran


def add(bench: Bench, name: str, prompt: int, n: int, max_tokens: int | None = None) -> Request:
    ids = np.arange(1, prompt + 1, dtype=np.int32)
    request = Request(name, ids, SamplingParams(n=n, max_tokens=max_tokens, seed=5))
    bench.scheduler.add(request)
    return request


def test_choices_have_ids_and_seeds_of_their_own() -> None:
    request = Request("x", np.arange(3, dtype=np.int32), SamplingParams(n=3, seed=5))
    assert [(one.request_id, one.sampling.seed, one.sampling.n) for one in request.choices()] == [
        ("x-0", 5, 1),
        ("x-1", 6, 1),
        ("x-2", 7, 1),
    ]
    alone = Request("x", np.arange(3, dtype=np.int32), SamplingParams())
    assert alone.choices() == (alone,)


def test_the_prompt_is_computed_once_and_each_answer_samples_its_first_token_in_that_step() -> None:
    bench = Bench(30, budget=6)
    add(bench, "x", 10, 3)
    record = bench.step()
    assert ran(record) == [("x-0", 0, 6)]
    assert len(record.plan.forks) == 0 and bench.scheduler.rows_reserved == 2
    record = bench.step()
    assert ran(record) == [("x-0", 6, 4), ("x-1", 10, 0), ("x-2", 10, 0)]
    assert record.plan.forks.tolist() == [[0, 1], [0, 2]]
    assert record.plan.samples.tolist() == [True] * 3 and len(record.result.token_ids) == 3
    assert record.plan.num_tokens == 4
    assert events(record, Forked) == [Forked("x-1", "x-0", 1, 10, 3), Forked("x-2", "x-0", 2, 10, 3)]
    assert record.pool == PoolState(3, 0, 27) and record.waste.written == 10
    assert bench.scheduler.rows_reserved == 0
    record = bench.step()
    assert ran(record) == [("x-0", 10, 1), ("x-1", 10, 1), ("x-2", 10, 1)]
    # The partial block: two copies, and the last one writes into the original.
    assert [len(event.copies) for event in events(record, Copied)] == [2]
    assert record.pool.live == 5 and record.waste.written == 8 + 3 * 3
    assert not events(bench.step(), Copied)


def test_a_prompt_of_whole_blocks_needs_no_copy() -> None:
    bench = Bench(30)
    add(bench, "x", 8, 4)
    bench.step()
    record = bench.step()
    assert not events(record, Copied) and record.pool.live == 2 + 4


@pytest.mark.parametrize(("prompt", "size"), [(1_000, 16), (1_000, 4), (1_008, 16)])
def test_eight_answers_hold_what_sharing_allows_and_no_more(prompt: int, size: int) -> None:
    bench = Bench(2_000, size, rows=8, budget=None, model_len=2_000)
    add(bench, "x", prompt, 8, 40)
    records = bench.drain()
    full, written = prompt // size, prompt + 39
    ideal = full + 8 * (-(-written // size) - full)
    assert max(record.pool.live for record in records) == ideal
    ends = [event for record in records for event in events(record, Finished)]
    assert [event.group_blocks for event in ends] == [ideal] * 8
    assert sum(record.plan.num_tokens for record in records) == prompt + 8 * 39, "nothing is computed twice"


def test_the_peak_of_a_group_is_that_of_the_moment_when_it_held_most() -> None:
    bench = Bench(100, size=1, rows=4)
    bench.lengths |= {"x-0": 10, "x-1": 12}
    add(bench, "x", 5, 2)
    add(bench, "y", 5, 1)
    ends = {event.request_id: event for record in bench.drain() for event in events(record, Finished)}
    assert ends["x-0"].group_blocks == 5 + 9 + 9
    assert (ends["x-1"].group_blocks, ends["x-1"].blocks) == (5 + 9 + 9, 5 + 11)
    assert ends["y"].group_blocks == 0


def test_rows_are_kept_for_those_who_will_fork() -> None:
    bench = Bench(100, rows=4, budget=4)
    add(bench, "x", 10, 3)
    bench.add("y", 3)
    bench.add("z", 3)
    assert [name for name, *_ in ran(bench.steps(2))] == ["x-0"]
    assert [name for name, *_ in ran(bench.step())] == ["x-0", "x-1", "x-2", "y"]
    bench.steps(3)
    assert bench.scheduler.num_running == 4 and bench.scheduler.num_waiting == 1


def test_a_group_waits_until_there_are_rows_for_all_of_it() -> None:
    bench = Bench(100, rows=4, length=10)
    bench.lengths |= {"a": 3, "b": 5}
    bench.add("a", 3)
    bench.add("b", 3)
    add(bench, "x", 4, 3)
    bench.add("late", 1)
    admitted = [event.request_id for record in bench.drain() for event in events(record, Admitted)]
    assert admitted == ["a", "b", "x-0", "late"], "the head of the queue is not passed"


def test_more_answers_than_rows_are_refused() -> None:
    bench = Bench(100, rows=4)
    with pytest.raises(RequestError, match="n is 5, but at most 4 sequences") as caught:
        add(bench, "x", 3, 5)
    assert caught.value.param == "n" and "--max-num-seqs" in caught.value.message
    with pytest.raises(ContextLengthError):
        add(bench, "x", 3, 2, 100_000)
    assert events(bench.step(), Refused)[0].request_id == "x"
    assert bench.scheduler.plan() is None


def test_ids_of_answers_are_taken() -> None:
    bench = Bench(100)
    add(bench, "x", 3, 2)
    with pytest.raises(RequestError, match="'x-1' is in use"):
        bench.add("x-1", 3)
    with pytest.raises(RequestError, match="'x-0' is in use"):
        add(bench, "x", 3, 2)


def test_preempted_answers_keep_their_tokens_and_the_oldest_is_never_one_of_them() -> None:
    bench = Bench(10, size=4, rows=4, length=20)
    bench.add("first", 8)
    add(bench, "x", 8, 3)
    records = bench.drain()
    gone = [event for record in records for event in events(record, Preempted)]
    assert gone and all(event.request_id.startswith("x-") for event in gone)
    assert all(event.tokens_discarded == 0 for event in gone)
    ends = [event for record in records for event in events(record, Finished)]
    assert {event.request_id: event.output_tokens for event in ends} == dict.fromkeys(
        ("first", "x-0", "x-1", "x-2"), 20
    )


def test_answers_of_an_old_request_are_older_than_those_who_came_later() -> None:
    bench = Bench(12, size=4, rows=4, length=12)
    add(bench, "x", 8, 2)
    bench.step()
    bench.add("late", 8)
    gone = [event.request_id for record in bench.drain() for event in events(record, Preempted)]
    assert gone and set(gone) == {"late"}


# ------------------------------------------------------------------ ends from outside


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_others_go_on_when_the_first_answer_is_aborted(steps: int) -> None:
    """In the queue, in the middle of the prompt, and after the fork."""
    bench = Bench(30, budget=6, length=4)
    add(bench, "x", 10, 3)
    for _ in range(steps):
        bench.step()
    assert bench.scheduler.finish("x-0", FinishReason.ABORT)
    audit(bench.scheduler)
    ends = {event.request_id: event for record in bench.drain() for event in events(record, Finished)}
    assert ends["x-0"].reason == FinishReason.ABORT
    assert {name: ends[name].output_tokens for name in ("x-1", "x-2")} == {"x-1": 4, "x-2": 4}
    assert ends["x-1"].reason == FinishReason.STOP


@pytest.mark.parametrize("steps", [0, 1])
def test_an_answer_that_was_to_fork_can_be_aborted(steps: int) -> None:
    bench = Bench(30, budget=6, length=4)
    add(bench, "x", 10, 3)
    for _ in range(steps):
        bench.step()
    assert bench.scheduler.finish("x-1", FinishReason.ABORT)
    assert not bench.scheduler.finish("x-1", FinishReason.ABORT)
    audit(bench.scheduler)
    ends = {event.request_id: event for record in bench.drain() for event in events(record, Finished)}
    assert ends["x-1"] == Finished("x-1", FinishReason.ABORT, 10, 0, 0, 0)
    assert ends["x-2"].output_tokens == 4


def test_a_leader_whose_others_were_all_aborted_leads_no_more_and_can_be_preempted() -> None:
    bench = Bench(5, rows=4, budget=9)
    bench.add("a", 4, 9)
    bench.steps(4)
    add(bench, "x", 11, 2)
    bench.step()  # eight tokens of its prompt; the next step takes the last block for a
    assert bench.scheduler.finish("x-1", FinishReason.ABORT)
    assert bench.scheduler.rows_reserved == 0
    records = bench.drain()
    assert [e.request_id for record in records for e in events(record, Preempted)] == ["x-0"]


def test_an_abort_while_the_step_runs_in_which_they_fork() -> None:
    bench = Bench(30, length=4)
    add(bench, "x", 10, 3)
    plan = bench.scheduler.plan()
    assert plan is not None and len(plan.forks) == 2
    result = bench.executor.run(plan)
    for name in ("x-0", "x-2"):
        assert bench.scheduler.finish(name, FinishReason.ABORT)
    record = bench.scheduler.apply(plan, result)
    audit(bench.scheduler)
    assert record.finished.tolist() == [FinishReason.ABORT, 0, FinishReason.ABORT]
    later = [event for after in bench.drain() for event in events(after, Finished)]
    assert {event.request_id: event.output_tokens for event in later} == {"x-1": 4}


@pytest.mark.parametrize("budget", [6, 100])
def test_a_failed_step_ends_all_answers_of_its_prompt(budget: int) -> None:
    """In the middle of the prompt, and in the step in which they fork."""
    bench = Bench(30, budget=budget)
    add(bench, "x", 10, 3)
    plan = bench.scheduler.plan()
    assert plan is not None
    bench.executor.run(plan)
    bench.scheduler.abandon(plan)
    audit(bench.scheduler)
    ends = events(bench.step(), Finished)
    assert {event.request_id: event.reason for event in ends} == dict.fromkeys(
        ("x-0", "x-1", "x-2"), FinishReason.ERROR
    )
    assert bench.scheduler.pool_state.live == 0 and not bench.scheduler.has_unfinished


def test_contiguous_allocators_compute_the_prompt_for_each() -> None:
    bench = Bench(100, size=1, rows=4, allocator="reserved", length=3)
    add(bench, "x", 10, 3, 5)
    assert ran(bench.step()) == [("x-0", 0, 10), ("x-1", 0, 10), ("x-2", 0, 10)]
    assert bench.drain()[-1].pool.live == 0


@pytest.mark.parametrize("beams", [False, True])
def test_groups_under_thrash_end_all_the_same(beams: bool) -> None:
    """Admission pauses, whole searches restart, and in the end everybody has an answer."""
    bench = Bench(14, size=2, rows=6, budget=8, length=12, thrash_preemptions=3, thrash_window=8)
    for number in range(12):
        beam = BeamParams(width=2) if beams and number % 3 == 0 else None
        sampling = SamplingParams(n=1 if beam else 1 + number % 4, max_tokens=9, seed=0, beam=beam)
        bench.scheduler.add(Request(f"r{number}", np.arange(1, 6, dtype=np.int32), sampling))
    records = bench.drain()
    gone = [event for record in records for event in events(record, Preempted)]
    assert len(gone) > 20 and any(event.request_id == "r3" for event in gone) == beams
    ends = [event for record in records for event in events(record, Finished)]
    assert {event.reason for event in ends} == {FinishReason.LENGTH}
