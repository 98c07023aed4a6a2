from __future__ import annotations

import numpy as np
import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ConfigError, ContextLengthError, RequestError
from octavo.core.events import Admitted, Finished, PoolState, Preempted, Refused
from octavo.core.plan import FinishReason, StepPlan, StepResult
from octavo.scheduling.audit import audit
from scheduler_helpers import Bench, events, ran

# ------------------------------------------------------------------ the door


def test_the_door_names_both_limits_and_the_flag() -> None:
    bench = Bench(10, model_len=1_000)
    assert bench.scheduler.max_len == 40
    with pytest.raises(
        ContextLengthError, match=r"maximum context length is 40 tokens.*1,000.*pool holds 40"
    ) as caught:
        bench.add("a", 30, 11)
    assert caught.value.param == "--kv-cache-memory-bytes"
    assert "41: 30 in the prompt and 11 for the output" in caught.value.message
    bench = Bench(10, model_len=20)
    with pytest.raises(ContextLengthError, match="maximum context length is 20 tokens") as caught:
        bench.add("a", 20)
    assert caught.value.param == "--max-model-len"


def test_the_border_of_the_door() -> None:
    bench = Bench(10)
    bench.add("exact", 30, 10)
    bench.add("open", 39)
    for name, prompt, max_tokens in (("a", 40, None), ("b", 39, 2), ("c", 1, 40), ("d", 1_000_000, None)):
        with pytest.raises(ContextLengthError):
            bench.add(name, prompt, max_tokens)
    assert bench.scheduler.num_waiting == 2


def test_a_request_without_max_tokens_is_capped_by_the_pool() -> None:
    bench = Bench(3)
    bench.add("a", 5)
    finished = events(bench.drain()[-2], Finished)
    assert finished == [Finished("a", FinishReason.LENGTH, 5, 7, 0, 0, 3)]


def test_the_doors_of_the_contiguous_allocators() -> None:
    bench = Bench(100, size=1, allocator="pow2")
    assert bench.scheduler.max_len == 64
    with pytest.raises(ContextLengthError, match="the pool holds 64"):
        bench.add("a", 60, 5)


def test_an_empty_prompt_and_a_used_id_are_refused() -> None:
    bench = Bench(10)
    with pytest.raises(RequestError, match="prompt is empty"):
        bench.add("a", 0)
    bench.add("a", 3)
    with pytest.raises(RequestError, match="'a' is in use"):
        bench.add("a", 3)
    bench.scheduler.finish("a", FinishReason.ABORT)
    bench.add("a", 3)


def test_a_refusal_is_told_although_nothing_runs() -> None:
    bench = Bench(2)
    with pytest.raises(ContextLengthError):
        bench.add("big", 9)
    record = bench.step()
    assert ran(record) == [] and [event.request_id for event in events(record, Refused)] == ["big"]
    assert bench.scheduler.plan() is None


# ------------------------------------------------------------------ batching


def test_nobody_changes_a_plan_or_a_record() -> None:
    bench = Bench(10)
    bench.add("a", 6, 10)
    record = bench.step()
    for value in (record, record.plan, record.result, record.pool, record.waste, record.events[0]):
        name = value.__struct_fields__[0]
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, getattr(value, name))


def test_one_request_from_door_to_end() -> None:
    bench = Bench(10)
    bench.lengths["a"] = 3
    bench.add("a", 6, 10)
    first = bench.step()
    assert ran(first) == [("a", 0, 6)]
    assert first.plan.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert first.plan.samples.tolist() == [True]
    assert first.plan.block_table[0, :2].tolist() == [0, 1]
    assert first.events == (Admitted("a", 0, 6, 0, 2, False),)
    assert (first.pool, first.running, first.waiting) == (PoolState(2, 0, 8), 1, 0)
    second = bench.step()
    assert ran(second) == [("a", 6, 1)]
    assert second.plan.token_ids.tolist() == first.result.token_ids.tolist()
    assert second.finished.tolist() == [FinishReason.RUNNING]
    third = bench.step()
    assert third.finished.tolist() == [FinishReason.STOP]
    assert third.events == (Finished("a", FinishReason.STOP, 6, 3, 0, 0, 2),)
    assert third.pool == PoolState(0, 0, 10)
    last = bench.step()
    assert ran(last) == [] and last.plan.ended == (0,)
    assert bench.scheduler.plan() is None


def test_decodes_come_first_then_the_chunk_in_progress_then_admissions() -> None:
    bench = Bench(100, budget=10)
    bench.add("a", 4)
    bench.add("b", 14)
    bench.add("c", 5)
    assert ran(bench.step()) == [("a", 0, 4), ("b", 0, 6)]
    assert ran(bench.step()) == [("a", 4, 1), ("b", 6, 8), ("c", 0, 1)]
    record = bench.step()
    assert ran(record) == [("a", 5, 1), ("b", 14, 1), ("c", 1, 4)]
    assert record.plan.samples.tolist() == [True, True, True]


def test_a_chunk_that_ends_before_the_prompt_does_samples_nothing() -> None:
    bench = Bench(100, budget=7)
    bench.add("a", 16)
    records = [bench.step() for _ in range(3)]
    assert [ran(record) for record in records] == [[("a", 0, 7)], [("a", 7, 7)], [("a", 14, 2)]]
    assert [record.plan.samples.tolist() for record in records] == [[False], [False], [True]]
    assert [len(record.finished) for record in records] == [0, 0, 1]
    assert [record.plan.block_table[0, :4].tolist() for record in records][-1] == [0, 1, 2, 3]
    assert [record.pool.live for record in records] == [2, 4, 4], "blocks come chunk by chunk"


def test_admission_first_serves_the_queue_before_the_running() -> None:
    bench = Bench(100, budget=10, order="admission_first")
    bench.add("a", 4)
    bench.step()
    bench.add("b", 9)
    bench.add("c", 2)
    assert ran(bench.step()) == [("b", 0, 9), ("c", 0, 1)], "nothing of the budget is left for a"
    assert ran(bench.step()) == [("a", 4, 1), ("b", 9, 1), ("c", 1, 1)]


def test_a_budget_below_the_number_of_rows_serves_the_oldest() -> None:
    bench = Bench(100, budget=2)
    for name in "abc":
        bench.add(name, 1, 3)
    assert ran(bench.step()) == [("a", 0, 1), ("b", 0, 1)]
    assert ran(bench.step()) == [("a", 1, 1), ("b", 1, 1)]
    bench.step()
    assert ran(bench.step()) == [("c", 0, 1)]


def test_an_unlimited_budget_prefills_any_prompt_at_once() -> None:
    bench = Bench(10_000, model_len=20_000, budget=None)
    bench.add("a", 15_000)
    bench.add("b", 3_000)
    assert ran(bench.step()) == [("a", 0, 15_000), ("b", 0, 3_000)]


def test_max_num_seqs_bounds_the_rows() -> None:
    bench = Bench(100, rows=2)
    for name in "abc":
        bench.add(name, 2, 2)
    assert bench.step().request_ids == ("a", "b")
    bench.step()
    record = bench.step()
    assert record.request_ids == ("c",)
    assert set(record.plan.ended) == {0, 1} and record.plan.started[0].row in {0, 1}


def test_the_head_of_the_queue_is_never_skipped() -> None:
    bench = Bench(10)
    bench.add("a", 20)
    bench.add("large", 24)
    bench.add("small", 1)
    assert bench.step().request_ids == ("a",)
    assert bench.step().request_ids == ("a",)


def test_the_whole_prompt_must_fit_though_only_a_chunk_is_taken() -> None:
    """Checking the first chunk alone admits what must be preempted again and again (vllm#25538)."""
    bench = Bench(10, budget=8)
    bench.add("a", 23)
    bench.add("b", 20)
    bench.steps(3)
    assert bench.scheduler.num_running == 1 and bench.scheduler.num_waiting == 1


def test_prompts_in_progress_keep_what_they_were_promised() -> None:
    bench = Bench(10, budget=8, rows=3)
    bench.add("a", 7)
    bench.add("b", 24)  # 6 blocks, of which it holds 1 after the first step
    bench.add("c", 12)
    bench.step()
    assert bench.scheduler.pool_state == PoolState(3, 0, 7)
    assert bench.step().request_ids == ("a", "b")
    assert bench.scheduler.num_waiting == 1, "2 + 6 + 3 blocks do not fit into 10"


def test_the_watermark_holds_admission_back_unless_nothing_runs() -> None:
    bench = Bench(10, watermark_blocks=5)
    bench.add("a", 32)
    bench.add("b", 1)
    assert bench.step().request_ids == ("a",)
    assert bench.step().request_ids == ("a",)


def test_headroom_grows_with_what_runs() -> None:
    bench = Bench(12, headroom_tokens=6)
    for name in ("a", "b", "c"):
        bench.add(name, 15)
    bench.add("d", 1)
    # 12 blocks of 4: a has 4 and is owed 6 tokens, so 2 blocks stay free beside b's 4; with two of them it is 3.
    assert bench.step().request_ids == ("a", "b")
    assert bench.scheduler.pool_state.free == 4, "c's 4 blocks would leave none of 3"
    assert bench.step().request_ids == ("a", "b"), "d is behind c"


def test_headroom_is_at_least_the_watermark_and_nothing_where_nothing_runs() -> None:
    bench = Bench(12, headroom_tokens=6, watermark_blocks=5)
    for name in ("a", "b"):
        bench.add(name, 15)
    assert bench.step().request_ids == ("a",), "4 of the 8 free ones would leave less than 5"
    bench = Bench(5, headroom_tokens=500)
    bench.add("a", 16)
    assert bench.step().request_ids == ("a",)


def test_who_has_all_its_memory_needs_no_headroom() -> None:
    bench = Bench(8, headroom_tokens=100, allocator="reserved")
    for name in ("a", "b"):
        bench.add(name, 8, 8)
    assert bench.step().request_ids == ("a", "b")


def test_headroom_spares_preemptions() -> None:
    """A queue that is never empty: with a block for everyone who runs, less is thrown out and computed again."""

    def run(headroom: int) -> tuple[int, int]:
        bench = Bench(40, rows=12, headroom_tokens=headroom, length=14)
        for number in range(120):
            bench.add(f"r{number}", 5 + number % 7)
        records = bench.drain()
        computed = sum(int(record.plan.scheduled.sum()) for record in records)
        return sum(len(events(record, Preempted)) for record in records), computed

    (preempted, computed), (preempted_with, computed_with) = run(0), run(4)
    assert preempted > 2 * preempted_with > 0
    assert computed_with < 0.9 * computed


def test_a_negative_headroom_is_refused() -> None:
    with pytest.raises(ConfigError, match="headroom is -1 tokens") as caught:
        SchedulerConfig(headroom_tokens=-1)
    assert caught.value.param == "--headroom-tokens"


def test_priority_goes_before_arrival() -> None:
    bench = Bench(100, rows=1, queue="priority")
    for name, priority in (("low", 5), ("high", -1), ("mid", 0), ("mid2", 0)):
        bench.add(name, 2, 1, priority=priority)
    admitted = [event.request_id for record in bench.drain() for event in events(record, Admitted)]
    assert admitted == ["high", "mid", "mid2", "low"]


# ------------------------------------------------------------------ the end


def test_length_ends_a_request_at_max_tokens() -> None:
    bench = Bench(10)
    bench.add("a", 3, 2)
    assert bench.step().finished.tolist() == [FinishReason.RUNNING]
    assert bench.step().finished.tolist() == [FinishReason.LENGTH]


def test_a_stop_at_the_last_token_is_a_stop() -> None:
    bench = Bench(10)
    bench.lengths["a"] = 2
    bench.add("a", 3, 2)
    assert bench.steps(2).finished.tolist() == [FinishReason.STOP]


def test_a_waiting_request_is_aborted_without_a_trace() -> None:
    bench = Bench(10)
    bench.add("a", 3)
    assert bench.scheduler.finish("a", FinishReason.ABORT)
    assert not bench.scheduler.has_unfinished
    record = bench.step()
    assert record.events == (Finished("a", FinishReason.ABORT, 3, 0, 0, 0),)
    assert ran(record) == [] and bench.scheduler.plan() is None


def test_a_running_request_is_gone_before_the_next_step() -> None:
    bench = Bench(10)
    bench.add("a", 3)
    bench.add("b", 3)
    bench.steps(3)
    assert bench.scheduler.finish("a", FinishReason.STOP)
    assert not bench.scheduler.finish("a", FinishReason.STOP)
    assert bench.scheduler.pool_state == PoolState(2, 0, 8)
    record = bench.step()
    assert record.request_ids == ("b",) and record.plan.ended == (0,)
    assert events(record, Finished) == [Finished("a", FinishReason.STOP, 3, 3, 0, 0, 2)]


def test_an_abort_while_the_step_runs_waits_for_it() -> None:
    bench = Bench(10)
    bench.add("a", 3)
    bench.add("b", 3)
    bench.step()
    plan = bench.scheduler.plan()
    assert plan is not None
    assert bench.scheduler.finish("a", FinishReason.ABORT)
    bench.add("a", 5)  # the id is free again
    record = bench.scheduler.apply(plan, bench.executor.run(plan))
    audit(bench.scheduler)
    assert record.finished.tolist() == [FinishReason.ABORT, FinishReason.RUNNING]
    assert [event.request_id for event in events(record, Finished)] == ["a"]
    assert bench.step().request_ids == ("b", "a")


def test_an_abort_in_the_middle_of_a_prompt_gives_everything_back() -> None:
    bench = Bench(10, budget=5, caching=True)
    bench.add("a", 30)
    bench.steps(2)
    plan = bench.scheduler.plan()
    assert plan is not None
    bench.scheduler.finish("a", FinishReason.ABORT)
    record = bench.scheduler.apply(plan, bench.executor.run(plan))
    assert record.finished.tolist() == []
    assert record.pool == PoolState(0, 3, 7)
    audit(bench.scheduler)


def test_plans_and_results_that_do_not_belong_together_are_our_bug() -> None:
    bench = Bench(10)
    bench.add("a", 3)
    plan = bench.scheduler.plan()
    assert plan is not None
    with pytest.raises(AssertionError):
        bench.scheduler.plan()
    with pytest.raises(AssertionError):
        bench.scheduler.apply(plan, StepResult(np.zeros(2, np.int32), np.zeros(2, np.bool_)))


def test_a_plan_is_frozen() -> None:
    bench = Bench(10)
    bench.add("a", 3)
    bench.step()
    plan = bench.scheduler.plan()
    assert isinstance(plan, StepPlan)
    with pytest.raises(AttributeError):
        plan.step = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        plan.rows[0] = 1
