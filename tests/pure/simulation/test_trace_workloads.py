"""Traces as workloads: their times, their lengths, and content shared exactly where they say so."""

from __future__ import annotations

import json
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from simulation_helpers import scheduler
from test_traces import AZURE, CODING, LENGTHS, MOONCAKE, TURNS, write

from octavo.core.errors import ConfigError
from octavo.simulation.arrivals import at_once, fixed_rate
from octavo.simulation.conversations import Conversations
from octavo.simulation.driver import Simulation
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.trace_workloads import TraceOptions, block_counts, trace_workload
from octavo.simulation.traces import open_trace
from octavo.simulation.workloads import OpenLoop, Workload, answer_tokens


def everything(workload: Workload) -> list[SimulatedRequest]:
    taken = []
    while (found := workload.take(1e9, 0)) is not None:
        taken.append(found)
        workload.finished(found.request_id, 1e9, found.output_tokens)
    return taken


def prompts(taken: list[SimulatedRequest]) -> list[list[int]]:
    return [found.request.prompt_token_ids.tolist() for found in taken]


def test_times_lengths_and_speed(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, AZURE))
    workload = trace_workload(trace, TraceOptions(speed=2.0, max_tokens=50))
    assert isinstance(workload, OpenLoop)
    taken = everything(workload)
    assert [(found.request_id, found.output_tokens) for found in taken] == [("line-2", 44), ("line-3", 109)]
    assert [found.arrival_s for found in taken] == [0.0, pytest.approx(4.314579 / 2)]
    assert [len(prompt) for prompt in prompts(taken)] == [374, 396]
    assert taken[0].request.sampling.max_tokens == 50
    assert len(everything(trace_workload(trace, TraceOptions(limit=1)))) == 1


def test_own_arrivals_replace_the_traces(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, AZURE))
    taken = everything(trace_workload(trace, TraceOptions(arrivals=fixed_rate(10.0))))
    assert [found.arrival_s for found in taken] == [0.0, 0.1]


def test_lengths_of_zero_become_one(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, LENGTHS))
    assert [
        found.output_tokens for found in everything(trace_workload(trace, TraceOptions(arrivals=at_once())))
    ] == [1, 1]
    with pytest.raises(ConfigError, match="has no arrival times") as error:
        trace_workload(trace, TraceOptions())
    assert error.value.param == "--arrivals"


def test_mooncake_prompts_share_tokens_exactly_where_ids_are_equal(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, MOONCAKE))
    taken = everything(trace_workload(trace, TraceOptions(spread_s=3.0)))
    assert [found.arrival_s for found in taken] == [0.0, 1.5, 3.0]
    first, second, third = prompts(taken)  # ids [0, 1], [0], [0, 1, 5] of 600, 512 and 1,025 tokens
    assert [len(prompt) for prompt in (first, second, third)] == [600, 512, 1025]
    assert second == first[:512] == third[:512]
    assert third[512:600] == first[512:], "the partial block's id is the full one's"
    assert block_counts(trace) == (6, 3)


def test_conversations_repeat_prompt_and_answer(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, TURNS))
    workload = trace_workload(trace, TraceOptions(arrivals=repeat(0.0), concurrency=1))
    assert isinstance(workload, Conversations)
    taken = everything(workload)
    first, second, third = prompts(taken)
    assert [len(prompt) for prompt in (first, second, third)] == [33, 324, 5]
    assert second[:33] == first
    assert second[33:289] == answer_tokens(taken[0].answer_key, 256).tolist()


def test_coding_agents_think_and_share_by_id(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, CODING))
    workload = trace_workload(trace, TraceOptions(arrivals=at_once(), concurrency=1))
    first = workload.take(0.0, 0)
    assert first is not None
    workload.finished(first.request_id, 100.0, 5)
    second = workload.take(100.0, 0)  # the sub-agent's think time is not known
    assert second is not None
    workload.finished(second.request_id, 200.0, 5)
    assert workload.next_arrival_s() == 212.5
    third = workload.take(300.0, 0)
    assert third is not None
    a, b, c = (found.request.prompt_token_ids for found in (first, second, third))
    assert [len(a), len(b), len(c)] == [200, 130, 64]
    assert (a[:64] == b[:64]).all()
    assert (a[:64] == c).all()
    assert (a[64:128] != b[64:128]).any()


def test_other_conversations_ids_are_other_blocks(tmp_path: Path) -> None:
    text = "\n".join(
        json.dumps({"c": c, "a": 0, "t": 0, "in": 64, "out": 1, "think": 0, "runs": [[1, 1]]}) for c in (1, 2)
    )
    first, second = prompts(
        everything(trace_workload(open_trace(write(tmp_path, text)), TraceOptions(at_once())))
    )
    assert not np.equal(first, second).any()


def test_the_real_prefix_cache_finds_what_the_trace_shares(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, MOONCAKE))
    loop = scheduler(blocks=300, block_size=16, max_model_len=2048, max_num_batched_tokens=2048, caching=True)
    report = Simulation(trace_workload(trace, TraceOptions(fixed_rate(0.01))), loop).run()
    # Of 512 tokens all but the last block of 16 (one token is left to compute), of 1,025 the 37 full blocks of 600.
    assert report.counts.cached_tokens == 496 + 592
    assert report.counts.requests_finished == 3


@pytest.mark.parametrize("options", [{"speed": 0.0}, {"spread_s": -1.0}])
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TraceOptions(**options)  # type: ignore[arg-type]
