"""Open loops, a saturated queue, shared prefixes: who is handed out when, with which tokens."""

from __future__ import annotations

from itertools import islice

import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.arrivals import at_once, fixed_rate
from octavo.simulation.lengths import fixed, independent, uniform
from octavo.simulation.random_numbers import stream
from octavo.simulation.workloads import OpenLoop, Saturated, SharedPrefix, answer_tokens, synthetic


def test_requests_show_up_when_they_arrive() -> None:
    requests = synthetic(fixed_rate(2.0), independent(fixed(5), fixed(3), stream(1, "l")), limit=3)
    workload = OpenLoop(requests)
    assert workload.next_arrival_s() == 0.0
    first = workload.take(0.0, 0)
    assert first is not None
    assert (first.request_id, first.arrival_s, first.output_tokens) == ("request-0", 0.0, 3)
    assert workload.take(0.4, 0) is None
    assert workload.next_arrival_s() == 0.5
    second = workload.take(9.0, 0)
    assert second is not None
    assert second.arrival_s == 0.5
    assert workload.take(9.0, 0) is not None
    assert workload.take(9.0, 0) is None
    assert workload.next_arrival_s() is None


def test_the_scheduler_cannot_see_the_true_length() -> None:
    request = next(synthetic(at_once(), iter([(5, 77)]), max_tokens=2048)).request
    assert request.sampling.max_tokens == 2048
    assert 77 not in [
        getattr(request, name) for name in type(request).__slots__ if name != "prompt_token_ids"
    ]


def test_a_saturated_queue_is_filled_up_to_its_backlog() -> None:
    workload = Saturated(
        synthetic(fixed_rate(1.0), independent(fixed(5), fixed(3), stream(1, "l")), limit=4), 2
    )
    assert workload.take(7.0, 2) is None
    taken = [workload.take(7.0, waiting) for waiting in (0, 1)]
    assert [found.arrival_s for found in taken if found is not None] == [7.0, 7.0]
    assert workload.next_arrival_s() == 7.0
    assert workload.take(8.0, 1) is not None
    assert workload.take(8.0, 1) is not None
    assert workload.take(8.0, 0) is None
    assert workload.next_arrival_s() is None


def test_a_million_requests_are_not_made_in_advance() -> None:
    made = 0

    def lengths():  # type: ignore[no-untyped-def]
        nonlocal made
        while True:
            made += 1
            yield 4, 4

    workload = OpenLoop(synthetic(at_once(), lengths(), limit=1_000_000))
    for _ in range(10):
        workload.take(0.0, 0)
    assert made == 11


def test_prompts_share_their_groups_prefix_and_nothing_else() -> None:
    prefix = SharedPrefix(32, groups=2)
    requests = synthetic(
        at_once(),
        independent(uniform(10, 20), fixed(3), stream(1, "l")),
        limit=40,
        prefix=prefix,
        groups_rng=stream(1, "groups"),
    )
    prompts = [simulated.request.prompt_token_ids for simulated in requests]
    heads = {prompt[:32].tobytes() for prompt in prompts}
    assert len(heads) == 2
    assert len({prompt[32:].tobytes() for prompt in prompts}) == 40
    assert {len(prompt) for prompt in prompts} <= set(range(42, 53))


def test_an_included_prefix_leaves_one_token_of_the_prompts_own() -> None:
    prefix = SharedPrefix(32, included=True)
    assert [segment.length for segment in prefix.segments(100, 1, None)] == [32, 68]
    assert [segment.length for segment in prefix.segments(20, 1, None)] == [19, 1]


def test_equal_seeds_give_equal_requests() -> None:
    def prompts(seed: int) -> list[bytes]:
        lengths = independent(uniform(1, 50), uniform(1, 50), stream(seed, "lengths"))
        made = islice(synthetic(at_once(), lengths), 20)
        return [simulated.request.prompt_token_ids.tobytes() for simulated in made]

    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)


def test_answers_are_known_in_advance_and_differ() -> None:
    first, second = islice(synthetic(at_once(), independent(fixed(4), fixed(4), stream(1, "l"))), 2)
    assert (answer_tokens(first.answer_key, 9)[:4] == answer_tokens(first.answer_key, 4)).all()
    assert (answer_tokens(first.answer_key, 9) != answer_tokens(second.answer_key, 9)).all()


@pytest.mark.parametrize(("tokens", "groups"), [(-1, 1), (5, 0)])
def test_a_bad_prefix_is_refused(tokens: int, groups: int) -> None:
    with pytest.raises(ConfigError):
        SharedPrefix(tokens, groups)
