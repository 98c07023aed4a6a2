"""Closed loops: turns wait for answers, repeat what was said, and keep to their number of users."""

from __future__ import annotations

import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.arrivals import at_once, fixed_rate
from octavo.simulation.content import Segment
from octavo.simulation.conversations import Conversations, Turn, synthetic_conversations
from octavo.simulation.lengths import fixed, uniform
from octavo.simulation.random_numbers import stream
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import SharedPrefix, answer_tokens


def take(workload: Conversations, now_s: float) -> SimulatedRequest:
    found = workload.take(now_s, 0)
    assert found is not None
    return found


def test_a_turn_comes_think_time_after_the_answer_and_repeats_it() -> None:
    turns = [Turn(4, 0.0, (Segment(1, 10),)), Turn(2, 2.5, (Segment(2, 3),))]
    workload = Conversations(iter([(1.0, iter(turns))]))
    assert workload.next_arrival_s() == 1.0
    assert workload.take(0.5, 0) is None
    first = take(workload, 1.0)
    assert workload.next_arrival_s() is None, "the next turn depends on an answer"
    workload.finished(first.request_id, 10.0, 4)
    assert workload.next_arrival_s() == 12.5
    assert workload.take(12.0, 0) is None
    second = take(workload, 13.0)
    assert second.arrival_s == 12.5
    prompt = second.request.prompt_token_ids
    assert len(prompt) == 10 + 4 + 3
    assert (prompt[:10] == first.request.prompt_token_ids).all()
    assert (prompt[10:14] == answer_tokens(first.answer_key, 4)).all()
    workload.finished(second.request_id, 20.0, 2)
    assert workload.next_arrival_s() is None
    assert workload.active == 0


def test_a_shortened_answer_is_repeated_as_short_as_it_was() -> None:
    turns = [Turn(400, 0.0, (Segment(1, 10),)), Turn(2, 0.0, (Segment(2, 3),))]
    workload = Conversations(iter([(0.0, iter(turns))]), max_tokens=6)
    first = take(workload, 0.0)
    assert first.request.sampling.max_tokens == 6
    workload.finished(first.request_id, 1.0, 6)
    assert len(take(workload, 1.0).request.prompt_token_ids) == 19


def test_a_turn_may_keep_a_part_of_the_history() -> None:
    turns = [Turn(4, 0.0, (Segment(1, 10),)), Turn(2, 0.0, (Segment(2, 3),), keep=8)]
    workload = Conversations(iter([(0.0, iter(turns))]))
    first = take(workload, 0.0)
    workload.finished(first.request_id, 1.0, 4)
    prompt = take(workload, 1.0).request.prompt_token_ids
    assert len(prompt) == 11
    assert (prompt[:8] == first.request.prompt_token_ids[:8]).all()


def test_no_more_users_than_allowed() -> None:
    conversations = ((0.0, iter([Turn(1, 0.0, (Segment(i, 5),))])) for i in range(5))
    workload = Conversations(conversations, concurrency=2)
    asked = [take(workload, 0.0), take(workload, 0.0)]
    assert workload.take(0.0, 0) is None
    assert workload.next_arrival_s() is None
    workload.finished(asked[0].request_id, 3.0, 1)
    assert workload.next_arrival_s() == 3.0
    third = take(workload, 3.0)
    assert third.arrival_s == 3.0
    assert workload.take(3.0, 0) is None
    assert workload.active == 2


def test_a_refused_turn_ends_its_conversation() -> None:
    workload = Conversations(iter([(0.0, iter([Turn(1, 0.0, (Segment(1, 5),)), Turn(1)]))]))
    first = take(workload, 0.0)
    workload.refused(first.request_id, 1.0)
    assert workload.active == 0
    assert workload.next_arrival_s() is None


def test_synthetic_ones_share_a_system_prompt_and_do_not_depend_on_the_pace() -> None:
    def prompts(pace: float) -> list[bytes]:
        made = synthetic_conversations(
            fixed_rate(1.0),
            uniform(1, 4),
            uniform(5, 9),
            uniform(2, 6),
            stream(1, "turns"),
            think_s=2.0,
            prefix=SharedPrefix(16),
            limit=6,
        )
        workload = Conversations(made)
        found: dict[str, bytes] = {}
        heads = set()
        now = 0.0
        while (coming := workload.next_arrival_s()) is not None:
            now = max(now, coming)
            while (asked := workload.take(now, 0)) is not None:
                found[asked.request_id] = asked.request.prompt_token_ids.tobytes()
                heads.add(asked.request.prompt_token_ids[:16].tobytes())
                workload.finished(asked.request_id, now + pace, asked.output_tokens)
        assert len(heads) == 1
        assert workload.active == 0
        return [found[name] for name in sorted(found)]

    assert prompts(0.1) == prompts(5.0)
    assert len(prompts(0.1)) > 6


def test_prompts_grow_turn_by_turn() -> None:
    made = synthetic_conversations(at_once(), fixed(3), fixed(7), fixed(5), stream(1, "t"), limit=1)
    workload, lengths, now = Conversations(made), [], 0.0
    while (asked := workload.take(now, 0)) is not None:
        lengths.append(len(asked.request.prompt_token_ids))
        workload.finished(asked.request_id, now := now + 1.0, 5)
    assert lengths == [7, 19, 31]
    assert asked is None


def test_at_least_one_user() -> None:
    with pytest.raises(ConfigError):
        Conversations(iter([]), concurrency=0)
