"""Floods of events: what is told at once, what is summed up, and that nothing is lost; on a clock of our own."""

from __future__ import annotations

import re

from octavo.core.events import Blocked, Damaged
from octavo.telemetry.lines import event_line
from octavo.telemetry.sinks import LineSink
from octavo.telemetry.throttle import PREEMPTIONS_MAX, REFUSALS_MAX, BlockedLines, Refusals, Throttle
from scheduler_helpers import Bench


def test_a_throttle_counts_periods_from_their_first_call() -> None:
    throttle = Throttle(2, period_s=1.0)
    passed = [throttle.admit(now) for now in (0.0, 0.5, 0.9, 0.99, 1.0, 5.0, 5.5, 5.9, 6.0)]
    assert passed == [True, True, False, False, True, True, True, False, True]
    assert not throttle.over(6.9)
    assert throttle.over(7.0)


def test_lines_tell_of_the_second_tier() -> None:
    lines: list[str] = []
    sink = LineSink(lines.append, verbose=True)
    bench = Bench(5, caching=True, tier=8, preemption="swap")
    bench.add("a", range(100, 109), 1)
    for record in bench.drain():
        sink.emit(record, 0.0)
    bench.add("b", 7, 8)
    bench.add("c", 7, 8, salt="other")
    for record in bench.drain():
        sink.emit(record, 0.0)
    text = "\n".join(lines)
    assert "Preempted c: c needed a block" in text and "0 discarded, 8 swapped out; pool" in text
    assert "Spilled 1 evicted block to the second tier" in text
    again = next(line for line in lines if line.startswith("Resumed c"))
    assert "8 of them cached" in again
    assert event_line(Damaged("x", 32)) == ("Damaged blocks in the second tier: x computes 32 tokens again")


class Run:
    """Steps of a scheduler under pressure, at times of one's choice, and the lines about them."""

    def __init__(self, **config: object) -> None:
        self.bench = Bench(**config)  # type: ignore[arg-type]
        self.lines: list[str] = []
        self.sink = LineSink(self.lines.append)
        self.evicted = self.preempted = self.recomputed = 0

    def step(self, now: float) -> None:
        record = self.bench.step()
        for event in record.events:
            match type(event).__name__:
                case "Evicted":
                    self.evicted += len(event.blocks)
                case "Preempted":
                    self.preempted += 1
                    self.recomputed += event.tokens_to_recompute
        self.sink.emit(record, now)

    def drain(self, seconds_a_step: float) -> float:
        """Returns the time of the last step."""
        now = 0.0
        while self.bench.scheduler.has_unfinished:
            self.step(now)
            now += seconds_a_step
        return now


def evicting(requests: int) -> Run:
    """One request after another, each of whose prompts drives the blocks of older ones out."""
    run = Run(blocks=8, rows=1, caching=True)
    for number in range(requests):
        run.bench.add(f"r{number}", range(100 * number, 100 * number + 16), 4)
    return run


def told(lines: list[str]) -> int:
    return sum(int(found[1]) for line in lines if (found := re.match(r"Evicted (\d+) cached block", line)))


def test_evictions_are_told_once_a_second_and_lose_no_block() -> None:
    run = evicting(40)
    last = run.drain(0.05)
    evictions = [line for line in run.lines if line.startswith("Evicted")]
    assert 2 < len(evictions) <= last + 1
    assert told(run.lines) + run.sink._evictions.count == run.evicted > 100
    assert run.sink.holds
    run.sink.flush(last)
    assert not run.sink.holds
    assert told(run.lines) == run.evicted
    assert re.fullmatch(
        r"Evicted \d+ cached blocks in \d+ steps to admit r\d+ and \d+ more; "
        r"pool \d live, \d cached, \d free -> \d live, \d cached, \d free",
        evictions[-1],
    )


def test_a_flush_is_not_the_last_word() -> None:
    run = evicting(20)
    last = run.drain(0.05)
    run.sink.flush(last)
    for number in range(20, 40):
        run.bench.add(f"r{number}", range(100 * number, 100 * number + 16), 4)
    flushed, now = len(run.lines), last + 0.05
    while run.bench.scheduler.has_unfinished:
        run.step(now)
        now += 0.05
    assert flushed + 2 < len(run.lines) <= flushed + 1 + (now - last)


def test_evictions_from_a_pool_with_room_are_told_now_and_then() -> None:
    run = Run(blocks=40, rows=1, caching=True)
    for number in range(60):
        run.bench.add(f"r{number}", range(100 * number, 100 * number + 16), 4)
    last = run.drain(0.2)
    assert run.evicted > 100
    assert 2 < len(run.lines) <= last / 10 + 1


def test_the_first_eviction_is_told_at_once_with_the_pool_before_it() -> None:
    run = evicting(3)
    while not run.lines:
        run.step(0.0)
    # r0 and r1 left four full blocks each; r2's prompt takes free ones and its answer the first of these.
    assert run.lines == [
        "Evicted 1 cached block for running requests to grow; "
        "pool 4 live, 4 cached, 0 free -> 5 live, 3 cached, 0 free"
    ]


def test_evictions_of_slow_steps_have_a_line_each() -> None:
    run = evicting(10)
    run.drain(2.0)
    assert not run.sink.holds
    assert told(run.lines) == run.evicted


def test_a_block_for_a_running_request_says_so() -> None:
    run = Run(blocks=8, rows=1, caching=True)
    run.bench.add("old", range(16), 2)
    run.bench.add("grows", range(100, 104), 26)
    run.drain(2.0)
    assert any(" for running requests to grow" in line for line in run.lines)


def thrashing() -> Run:
    run = Run(blocks=8, rows=4)
    for number in range(24):
        run.bench.add(f"r{number}", 8, 14)
    return run


def test_few_preemptions_have_a_line_each() -> None:
    run = thrashing()
    run.drain(1.0)
    lines = [line for line in run.lines if line.startswith("Preempted r")]
    assert len(lines) == run.preempted > PREEMPTIONS_MAX
    assert not run.sink.holds


def test_many_preemptions_are_summed_up() -> None:
    run = thrashing()
    last = run.drain(0.001)
    single = [line for line in run.lines if line.startswith("Preempted r")]
    assert len(single) == PREEMPTIONS_MAX < run.preempted
    run.sink.flush(last)
    (summed,) = [line for line in run.lines if "more (one line each for the first 10 a second)" in line]
    numbers = [int(number) for number in re.findall(r"\d+", summed)]
    count, _, _, recomputed, discarded = numbers
    assert count + len(single) == run.preempted
    own = sum(int(found) for line in single for found in re.findall(r"(\d+) tokens to recompute", line))
    assert own + recomputed == run.recomputed
    assert discarded == 0


def test_after_a_flood_the_sum_comes_before_the_next_line() -> None:
    run = thrashing()
    now = 0.0
    while run.preempted <= PREEMPTIONS_MAX + 2:
        run.step(now)
        now += 0.001
    held = run.sink._preemptions.count
    assert held
    while run.bench.scheduler.has_unfinished:
        run.step(10.0)
    texts = [line for line in run.lines if line.startswith("Preempted")]
    assert texts[PREEMPTIONS_MAX].startswith("Preempted ")
    assert " more (one line each" in texts[PREEMPTIONS_MAX]
    run.sink.flush(10.0)
    assert run.sink._preemptions.count == 0


def test_a_head_that_stays_blocked_is_told_once_a_second() -> None:
    lines = BlockedLines()
    told = []
    for step in range(100):
        lines.add(Blocked("big", 40, 60, 5, 20))
        if (line := lines.due(step * 0.03)) is not None:
            told.append(line)
    assert len(told) == 3
    assert "; " not in told[0].split("the largest 20")[1]
    assert re.search(r"; 3\d steps since the last such line found the queue's head blocked$", told[1])
    assert lines.count > 0


def test_refusals_beyond_a_few_a_second_are_counted() -> None:
    lines: list[str] = []
    refusals = Refusals(lines.append)
    for number in range(50):
        refusals.tell(f"Refused {number}", 0.01 * number)
    assert lines == [f"Refused {number}" for number in range(REFUSALS_MAX)]
    refusals.tell_due(0.9)
    assert len(lines) == REFUSALS_MAX, "its second is not over"
    refusals.tell("Refused again", 1.2)
    assert lines[REFUSALS_MAX].startswith("Refused 40 more requests")
    assert lines[REFUSALS_MAX + 1] == "Refused again"
    refusals.tell_due(9.0)
    assert len(lines) == REFUSALS_MAX + 2
