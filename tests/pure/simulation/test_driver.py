"""The loop of arrivals, steps and ends, on clocks of steps and of seconds; and what the report says of it."""

from __future__ import annotations

import pytest
from simulation_helpers import Collect, open_loop, scheduler

from octavo.core.errors import ConfigError
from octavo.core.events import Finished
from octavo.simulation.content import Segment
from octavo.simulation.conversations import Conversations, Turn
from octavo.simulation.driver import Simulation, Stop
from octavo.simulation.report import Report, Slo


class Seconds:
    """Every step takes a quarter of a second, and a tenth more for each token beyond the first."""

    def price(self, plan) -> float:  # type: ignore[no-untyped-def]
        return 0.25 + 0.1 * max(plan.num_tokens - 1, 0) if plan.num_tokens else 0.0


def test_one_request_alone_exactly() -> None:
    simulation = Simulation(open_loop([2.0], [(6, 4)]), scheduler(), Seconds())
    report = simulation.run()
    # Idle until 2.0; prefill of 6 tokens 0.75 s; three decode steps of 0.25 s.
    assert simulation.clock.now() == pytest.approx(3.5)
    assert report.ttft.summary((50,)) == {"mean": 0.75, "p50": 0.75, "max": 0.75}
    assert report.tpot.mean == pytest.approx(0.25)
    assert report.e2e.mean == pytest.approx(1.5)
    assert report.normalized_latency.mean == pytest.approx(0.375)
    assert (report.counts.steps, report.counts.output_tokens, report.counts.prompt_tokens) == (4, 4, 6)
    assert report.counts.scheduled_tokens == 9


def test_an_arrival_becomes_visible_at_the_next_step_and_waits_for_it() -> None:
    simulation = Simulation(open_loop([0.0, 0.1], [(1, 3), (1, 1)]), scheduler(), Seconds())
    report = simulation.run()
    # The second request arrives during the first step (0 to 0.25) and gets its token in the next (0.25 to 0.6).
    assert report.ttft.largest == pytest.approx(0.5)
    assert report.ttft.smallest == pytest.approx(0.25)
    assert simulation.clock.now() == pytest.approx(0.85)


def test_the_clock_of_steps() -> None:
    sink = Collect()
    simulation = Simulation(open_loop([0.0, 5.0], [(4, 2), (4, 2)]), scheduler(), sinks=[sink])
    report = simulation.run()
    assert sink.times == [1.0, 2.0, 6.0, 7.0]
    assert report.ttft.mean == 1.0
    assert simulation.steps == 4


def test_refused_requests_are_counted_and_do_not_stop_the_rest() -> None:
    simulation = Simulation(open_loop([0.0, 0.0, 0.0], [(4, 2), (400, 2), (4, 2)]), scheduler())
    report = simulation.run()
    assert (report.counts.requests_refused, report.counts.requests_finished) == (1, 2)
    assert simulation.arrivals == 3
    last = Simulation(open_loop([0.0], [(400, 2)]), scheduler()).run()
    assert last.counts.requests_refused == 1


def test_closed_loops_wait_for_answers() -> None:
    turns = [Turn(3, 0.0, (Segment(1, 8),)), Turn(2, 4.0, (Segment(2, 5),))]
    sink = Collect()
    simulation = Simulation(Conversations(iter([(0.0, iter(turns))])), scheduler(caching=True), sinks=[sink])
    report = simulation.run()
    # Steps end at 1, 2, 3; the user thinks for 4; the second turn takes 2 steps.
    assert sink.times == [1.0, 2.0, 3.0, 8.0, 9.0]
    ends = [event for record in sink.records for event in record.events if isinstance(event, Finished)]
    # The second prompt is 8 + 3 + 5 tokens; of the first 10 written ones, two full blocks of 4 are found again.
    assert [(end.prompt_tokens, end.cached_tokens) for end in ends] == [(8, 0), (16, 8)]
    assert report.hit_rate == pytest.approx(8 / 24)


def test_a_run_can_be_cut_by_steps_and_by_time() -> None:
    lengths = [(4, 50)] * 3
    assert Simulation(open_loop([0.0] * 3, lengths), scheduler()).run(Stop(steps=7)).counts.steps == 7
    report = Simulation(open_loop([0.0] * 3, lengths), scheduler(), Seconds()).run(Stop(time=3.0))
    assert 3.0 <= report.ended_at < 3.6
    assert report.counts.requests_finished == 0
    assert report.delivered_tokens == report.counts.sampled_tokens > 0


def test_preemptions_and_what_they_cost_are_counted() -> None:
    for policy, recomputed in (("recompute", True), ("restart", False)):
        loop = scheduler(blocks=10, preemption=policy)
        report = Simulation(open_loop([0.0] * 4, [(8, 16)] * 4, 20), loop).run()
        counts = report.counts
        assert counts.requests_finished == 4
        assert counts.preemptions > 0
        assert counts.output_tokens == 64
        assert (counts.tokens_discarded == 0) == recomputed
        assert counts.sampled_tokens - counts.tokens_discarded == 64
        assert counts.scheduled_tokens == 4 * 8 + 64 - 4 + counts.tokens_recomputed


def test_the_first_token_counts_once_whatever_is_preempted() -> None:
    loop = scheduler(blocks=10)
    report = Simulation(open_loop([0.0] * 4, [(8, 16)] * 4, 20), loop).run()
    assert report.ttft.count == 4
    assert report.ttft.smallest == 1.0
    assert report.e2e.largest > 16.0


def test_goodput_under_an_slo() -> None:
    def attained(slo: Slo) -> tuple[int, float]:
        loop = scheduler(max_num_seqs=1)
        report = Report(max_num_seqs=1, slots_total=256, slo=slo)
        found = Simulation(open_loop([0.0] * 4, [(2, 5)] * 4), loop, report=report).run().as_dict()
        return found["requests_within_slo"], found["slo_attainment"]

    # One after the other: first tokens after 1, 6, 11 and 16 steps, ends at 5, 10, 15 and 20.
    assert attained(Slo(ttft=6.0)) == (2, 0.5)
    assert attained(Slo(e2e=15.0)) == (3, 0.75)
    assert attained(Slo(ttft=6.0, tpot=0.9)) == (0, 0.0)
    assert attained(Slo(tpot=1.0)) == (4, 1.0)
    with pytest.raises(ConfigError) as error:
        Slo(ttft=0.0)
    assert error.value.param == "--slo-ttft"


def test_shares_of_the_pool_sum_to_one() -> None:
    loop = scheduler(blocks=16)
    report = Simulation(open_loop([0.0] * 4, [(5, 7)] * 4, 20), loop, Seconds()).run()
    shares = report.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["written"] > 0.3
    assert 0.0 < shares["internal"] < 3 * 4 / 64
    assert shares["reserved"] == shares["external"] == 0.0
    found = report.as_dict()
    assert found["series"]
    assert found["running_mean"] == pytest.approx(4.0)
    assert found["output_tokens_per_second"] == pytest.approx(28 / report.duration)


def test_warm_up_is_not_counted() -> None:
    loop = scheduler()
    report = Report(max_num_seqs=4, slots_total=256, warmup_steps=3)
    Simulation(open_loop([0.0], [(4, 8)]), loop, report=report).run()
    assert report.counts.steps == 5
    assert report.counts.sampled_tokens == 5
    assert report.duration == 5.0
    assert report.ttft.mean == 1.0


def test_memory_stays_flat_over_many_requests() -> None:
    loop = scheduler(max_num_seqs=4)
    simulation = Simulation(open_loop([float(i) for i in range(3_000)], [(2, 3)] * 3_000), loop)
    report = simulation.run()
    assert report.counts.requests_finished == 3_000
    assert report._in_flight == {}
    assert simulation.executor._scripts == {}
    assert not report._silent
    assert len(report.series.rows()) <= 512
