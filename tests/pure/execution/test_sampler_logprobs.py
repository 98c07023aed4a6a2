"""Log-probabilities against float64, ranks and top lists with ties, and which prompt positions count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_cases import make_request

from octavo.execution.sampler import Sampler
from octavo.execution.sampler_logprobs import candidates, token_logprobs

some_logits = st.lists(st.integers(-200, 200).map(lambda tenths: tenths / 10), min_size=1, max_size=30)


@given(some_logits, st.integers(0, 29), st.integers(0, 20))
def test_against_float64(logits: list[float], token: int, count: int) -> None:
    token %= len(logits)
    wanted = np.array(np.array(logits, np.float32), np.float64)
    wanted -= np.log(np.exp(wanted - wanted.max()).sum()) + wanted.max()
    order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
    found = token_logprobs(np.array(logits, np.float32), token, count)
    assert found.token_id == token
    assert found.rank == order.index(token) + 1
    assert found.top_ids.tolist() == order[:count]
    assert found.logprob == pytest.approx(wanted[token], abs=1e-5)
    np.testing.assert_allclose(found.top_logprobs, wanted[order[:count]], atol=1e-5)


def test_an_impossible_token() -> None:
    found = token_logprobs(np.array([0.0, -np.inf], np.float32), 1, 2)
    assert (found.logprob, found.rank, found.top_logprobs.tolist()) == (-np.inf, 2, [0.0, -np.inf])


def test_they_are_of_the_raw_logits() -> None:
    """Neither temperature nor bias shows: users compare them between requests."""
    sampler = Sampler(3, ())
    sampler.start(0, make_request(temperature=0, logit_bias={2: 50}, logprobs=1), np.empty(0, np.int32))
    sampler.start(1, make_request(temperature=0), np.empty(0, np.int32))
    logits = np.array([[2.0, 1.0, 0.0]] * 2, np.float32)
    tokens, _, logprobs = sampler.sample(np.array([1, 0], np.int32), np.ones(2, np.int32), logits)
    assert tokens.tolist() == [0, 2]
    assert list(logprobs) == [0]
    assert (logprobs[0].token_id, logprobs[0].rank, logprobs[0].top_ids.tolist()) == (2, 3, [0])


def test_prompt_logprobs_stop_at_the_prompts_end() -> None:
    request = make_request([4, 1, 3, 0], prompt_logprobs=2)
    logits = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    found = Sampler(5, ()).prompt_logprobs(request, np.array([1, 2, 3], np.int32), logits)
    assert [entry.token_id for entry in found] == [3, 0]
    assert found[0].logprob == token_logprobs(logits[0], 3, 2).logprob
    assert found[1].top_ids.tolist() == token_logprobs(logits[1], 0, 2).top_ids.tolist()


def test_candidates_of_a_beam_are_the_likeliest_tokens_over_the_whole_vocabulary() -> None:
    logits = np.random.default_rng(3).normal(size=50).astype(np.float32)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    order = np.argsort(-logits)
    ends = frozenset({int(order[1]), int(order[30])})
    found = candidates(logits, 6, ends, ends_allowed=True)
    assert found.token_ids.tolist() == order[:6].tolist()
    np.testing.assert_allclose(found.logprobs, exact[order[:6]], atol=1e-6)
    assert found.stops.tolist() == [False, True, False, False, False, False]
    early = candidates(logits, 6, ends, ends_allowed=False)
    assert early.token_ids.tolist() == [order[0], *order[2:7].tolist()] and not early.stops.any()
    np.testing.assert_allclose(early.logprobs, exact[early.token_ids], atol=1e-6)
    assert len(candidates(logits, 1_000, ends, ends_allowed=False).token_ids) == 48
