"""Exact answers, distributions, and independence of everything but request, position and logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_cases import draws, make_request, plain_distribution, plain_penalties, sample_one

from octavo.core.errors import ModelError, RequestError
from octavo.core.sampling_params import SamplingParams
from octavo.execution.sampler import Sampler
from octavo.execution.sampler_penalties import PenaltyTable
from octavo.execution.sampler_random import uniform

LOGITS = [0.5, 3.0, -1.0, 2.5, 3.0, 0.0, -4.0, 1.0]
ROWS = 4000
CHI_SQUARE_7 = 29.9
"""Quantile 0.9999 of chi-square with 7 degrees of freedom; fewer degrees only make the test stricter for us."""


def test_greedy_takes_the_first_of_the_highest() -> None:
    assert sample_one(LOGITS, make_request(temperature=0)) == 1


def test_greedy_is_the_same_by_either_path() -> None:
    """A row with a bias elsewhere in its batch leaves the fast path; the answer is the same."""
    assert sample_one(LOGITS, make_request(temperature=0, logit_bias={2: 0.5})) == 1
    assert sample_one(LOGITS, make_request(temperature=0, logit_bias={3: 0.6})) == 3


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": -1},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"min_p": 0.02, "top_k": 5, "top_p": 0.9, "temperature": 1.5},
    ],
    ids=str,
)
def test_distribution(params: dict[str, Any]) -> None:
    wanted = plain_distribution(LOGITS, SamplingParams(**params))
    counts = np.bincount(draws(LOGITS, ROWS, **params), minlength=len(LOGITS))
    assert counts[wanted == 0].sum() == 0
    possible = wanted > 0
    expected = wanted[possible] * ROWS
    assert ((counts[possible] - expected) ** 2 / expected).sum() < CHI_SQUARE_7


def test_distribution_over_positions() -> None:
    """One request at 4,000 positions: successive numbers of one seed are independent too."""
    sampler = Sampler(len(LOGITS), ())
    sampler.start(0, make_request(seed=123), np.empty(0, np.int32))
    row, logits = np.zeros(1, np.int32), np.array([LOGITS], np.float32)
    tokens = [int(sampler.sample(row, np.array([p], np.int32), logits)[0][0]) for p in range(1, ROWS + 1)]
    expected = plain_distribution(LOGITS, SamplingParams()) * ROWS
    counts = np.bincount(tokens, minlength=len(LOGITS))
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_7
    pairs = np.bincount(np.array(tokens[1:]) * 8 + np.array(tokens[:-1]), minlength=64)
    expected_pairs = np.outer(expected, expected).ravel() / ROWS
    common = expected_pairs > 5
    assert ((pairs - expected_pairs)[common] ** 2 / expected_pairs[common]).sum() < common.sum() + 60


settings_of_a_row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 5]),
        "top_p": st.sampled_from([1.0, 0.9, 0.2]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "min_tokens": st.sampled_from([0, 3]),
        "logprobs": st.sampled_from([None, 0, 3]),
        "seed": st.integers(-(2**70), 2**70),
    }
)


@given(st.lists(settings_of_a_row, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_row_does_not_see_its_batch(rows: list[dict[str, Any]], random: Any) -> None:
    """Three steps alone and three steps together, in changing order: equal tokens, equal log-probabilities."""
    vocab = 40
    rng = np.random.default_rng(random.randrange(2**32))
    logits = rng.normal(scale=3, size=(3, len(rows), vocab)).astype(np.float32)
    requests = [make_request([3, 4, index], **row) for index, row in enumerate(rows)]
    together, alone = Sampler(vocab, (2,)), [Sampler(vocab, (2,)) for _ in rows]
    for index, request in enumerate(requests):
        together.start(index, request, np.empty(0, np.int32))
        alone[index].start(9, request, np.empty(0, np.int32))
    for step in range(3):
        order = list(range(len(rows)))
        random.shuffle(order)
        chosen = np.array(order, np.int32)
        positions = np.full(len(rows), 3 + step, np.int32)
        tokens, stopped, logprobs = together.sample(chosen, positions, logits[step][chosen])
        for place, index in enumerate(order):
            one = np.array([9], np.int32)
            token, stop, single = alone[index].sample(one, positions[:1], logits[step][index : index + 1])
            assert (token[0], stop[0]) == (tokens[place], stopped[place])
            assert (index in logprobs) == (9 in single)
            if index in logprobs:
                assert logprobs[index].logprob == single[9].logprob
                assert logprobs[index].top_ids.tolist() == single[9].top_ids.tolist()


@given(settings_of_a_row, st.integers(1, 3))
def test_a_resumed_row_goes_on_alike(row: dict[str, Any], cut: int) -> None:
    """A preemption after ``cut`` tokens changes nothing that follows."""
    vocab = 12
    logits = np.random.default_rng(5).normal(scale=2, size=(5, 1, vocab)).astype(np.float32)
    zero = np.zeros(1, np.int32)

    def run(sampler: Sampler, steps: range) -> list[int]:
        return [int(sampler.sample(zero, np.array([2 + s], np.int32), logits[s])[0][0]) for s in steps]

    request = make_request([3, 4], **row)
    sampler = Sampler(vocab, (2,))
    sampler.start(0, request, np.empty(0, np.int32))
    whole = run(sampler, range(5))
    resumed = Sampler(vocab, (2,))
    resumed.start(0, request, np.array(whole[:cut], np.int32))
    assert run(resumed, range(cut, 5)) == whole[cut:]


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=6),
    st.lists(st.integers(0, 7), max_size=200),
    st.sampled_from([0.0, 0.7, -1.0]),
    st.sampled_from([0.0, 0.3, -0.5]),
    st.sampled_from([1.0, 1.2, 0.8]),
)
def test_penalties(
    prompt: list[int], outputs: list[int], presence: float, frequency: float, factor: float
) -> None:
    request = make_request(
        prompt, presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=factor
    )
    table = PenaltyTable.for_request(request, np.array(outputs, np.int32))
    found = np.array(LOGITS, np.float32)
    if table is None:
        assert (presence, frequency, factor) == (0.0, 0.0, 1.0)
    else:
        table.apply(found)
    np.testing.assert_allclose(
        found, plain_penalties(LOGITS, prompt, outputs, request.sampling), rtol=1e-5, atol=1e-4
    )


def test_the_penalty_table_grows() -> None:
    request = make_request(presence_penalty=1.0)
    outputs = list(range(0, 1000, 3))
    table = PenaltyTable.for_request(request, np.array(outputs, np.int32))
    assert table is not None
    logits = np.zeros(1000, np.float32)
    table.apply(logits)
    assert np.flatnonzero(logits == -1).tolist() == outputs


def test_logit_bias_forbids_and_forces() -> None:
    assert set(draws(LOGITS, 300, logit_bias={1: -100, 4: -100})) <= {0, 2, 3, 5, 6, 7}
    assert set(draws(LOGITS, 50, logit_bias={6: 100})) == {6}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_masks_end_tokens(temperature: float) -> None:
    logits = [0.0, 9.0, 8.0, 1.0]
    request = make_request(temperature=temperature, min_tokens=2, stop_token_ids=[2])
    for generated, allowed in (([], {0, 3}), ([0], {0, 3}), ([0, 0], {1, 2})):
        assert sample_one(logits, request, generated, eos=(1,)) in allowed


def test_ignore_eos_frees_the_models_own_end_alone() -> None:
    logits = [0.0, 9.0, 8.0, 1.0]
    request = make_request(temperature=0, min_tokens=2, stop_token_ids=[2], ignore_eos=True)
    assert sample_one(logits, request, eos=(1,)) == 1


def test_all_tokens_end_tokens() -> None:
    request = make_request(min_tokens=2, stop_token_ids=[0, 1])
    assert sample_one([0.0, 1.0], request) in (0, 1)


@pytest.mark.parametrize(
    ("token", "params", "wanted"),
    [
        (1, {}, True),
        (2, {}, False),
        (2, {"stop_token_ids": [2]}, True),
        (1, {"ignore_eos": True}, False),
        (1, {"ignore_eos": True, "stop_token_ids": [1]}, True),
    ],
)
def test_stopped(token: int, params: dict[str, Any], wanted: bool) -> None:
    sampler = Sampler(4, (1, 99))
    sampler.start(5, make_request(temperature=0, **params), np.empty(0, np.int32))
    logits = np.zeros((1, 4), np.float32)
    logits[0, token] = 1
    tokens, stopped, _ = sampler.sample(np.array([5], np.int32), np.array([1], np.int32), logits)
    assert (tokens.tolist(), stopped.tolist()) == ([token], [wanted])


def test_logits_are_left_as_they_were() -> None:
    sampler = Sampler(len(LOGITS), (1,))
    sampler.start(
        0, make_request(min_tokens=2, repetition_penalty=2.0, logit_bias={3: 5}), np.empty(0, np.int32)
    )
    logits = np.array([LOGITS], np.float32)
    logits.flags.writeable = False
    sampler.sample(np.zeros(1, np.int32), np.ones(1, np.int32), logits)


def test_a_row_can_be_taken_again() -> None:
    sampler = Sampler(4, ())
    for _ in range(2):
        sampler.start(0, make_request(), np.empty(0, np.int32))
        sampler.end(0)


def test_no_rows() -> None:
    none = np.empty(0, np.int32)
    tokens, stopped, logprobs = Sampler(4, ()).sample(none, none, np.empty((0, 4), np.float32))
    assert (len(tokens), len(stopped), logprobs) == (0, 0, {})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_damaged_logits_are_named(temperature: float) -> None:
    with pytest.raises(ModelError, match="weights are damaged"):
        sample_one([0.0, np.nan, 1.0], make_request(temperature=temperature))


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(RequestError, match=r"logit_bias names token 8.*0 to 7"):
        sample_one(LOGITS, make_request(logit_bias={8: 1}))


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3, 1e30, 1e300])
def test_extreme_temperatures(temperature: float) -> None:
    token = sample_one([0.0, 1.0, 0.999, -3e38], make_request(temperature=temperature))
    assert token == 1 if temperature < 1e-2 else token in (0, 1, 2, 3)


def test_uniform_is_uniform_in_seed_and_position() -> None:
    numbers = np.array([[uniform(seed, position) for position in range(100)] for seed in range(-50, 50)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.bincount((numbers.ravel() * 16).astype(int), minlength=16)
    assert ((counts - 625) ** 2 / 625).sum() < 45  # quantile 0.9999 with 15 degrees of freedom: 44.3
    for lag in (
        numbers[1:] - numbers[:-1],
        numbers[:, 1:] - numbers[:, :-1],
        numbers[1:, :-1] - numbers[:-1, 1:],
    ):
        assert abs(lag).min() > 1e-9  # no seed repeats another's numbers, shifted or not
        assert abs(np.mean(lag < 0) - 0.5) < 0.02


def test_seeds_are_taken_modulo_64_bits() -> None:
    assert uniform(-1, 5) == uniform(2**64 - 1, 5) == uniform(2**65 - 1, 5)


def test_numbers_of_a_seed_never_change() -> None:
    """A seeded answer is a promise: other numbers here mean that users get other answers."""
    assert [uniform(7, 3), uniform(0, 0), uniform(2**63, 100_000)] == [
        0.6042348053683145,
        0.6524484863740322,
        0.13929575374074532,
    ]
