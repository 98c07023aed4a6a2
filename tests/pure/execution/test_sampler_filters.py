"""Candidates and draws against definitions that sort everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_cases import plain_distribution

from octavo.core.sampling_params import SamplingParams
from octavo.execution.sampler_filters import STRETCH, draw, filtered_candidates

values = st.lists(st.integers(0, 20).map(lambda tenths: -tenths / 10), min_size=1, max_size=60)


def scaled_of(logits: list[float]) -> Any:
    array = np.array(logits, np.float32)
    return array - array.max()


def candidates(scaled: Any, params: SamplingParams) -> list[int]:
    ids = filtered_candidates(scaled, params)
    return list(range(len(scaled))) if ids is None else ids.tolist()


@given(values, st.integers(0, 70), st.sampled_from([0.0, 0.1501, 0.5, 1.0]))
def test_top_k_and_min_p_with_ties(logits: list[float], top_k: int, min_p: float) -> None:
    params = SamplingParams(top_k=top_k, min_p=min_p)
    wanted = plain_distribution(logits, params)
    assert candidates(scaled_of(logits), params) == np.flatnonzero(wanted).tolist()


@given(
    st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=60, unique=True),
    st.floats(0.01, 0.999),
    st.sampled_from([0, 2, 10]),
)
def test_top_p(logits: list[float], top_p: float, top_k: int) -> None:
    """Where a running sum meets top_p to the last bits, one token more or less is right too."""
    scaled = scaled_of(logits)
    params = SamplingParams(top_p=top_p, top_k=top_k)
    found = candidates(scaled, params)
    shares = plain_distribution(scaled, SamplingParams(top_k=top_k))
    order = sorted(np.flatnonzero(shares), key=lambda token: -scaled[token])[: len(found)]
    assert found == sorted(order)
    assert shares[order].sum() >= top_p - 1e-6
    assert shares[order[:-1]].sum() < top_p + 1e-6


def test_a_tiny_top_p_keeps_the_first_alone() -> None:
    assert candidates(scaled_of([1.0, 2.0, 2.0]), SamplingParams(top_p=1e-300)) == [1]


def test_a_flat_vocabulary() -> None:
    """Nothing can be left aside: all tokens are equally likely, and the lowest ids stay."""
    scaled = np.zeros(5000, np.float32)
    assert candidates(scaled, SamplingParams(top_p=0.5)) == list(range(2500))
    assert candidates(scaled, SamplingParams(top_k=7)) == list(range(7))


@given(st.integers(1, 3 * STRETCH + 1), st.floats(0, 1, exclude_max=True), st.integers(0, 2**32 - 1))
def test_draw_is_the_inverse_of_the_running_sum(size: int, u: float, seed: int) -> None:
    scaled = scaled_of(np.random.default_rng(seed).normal(scale=2, size=size).tolist())
    running = np.cumsum(np.exp(scaled.astype(np.float64)))
    place, target = draw(scaled, u), u * running[-1]
    slack = 1e-5 * running[-1]
    assert running[place] > target - slack
    assert place == 0 or running[place - 1] <= target + slack


@pytest.mark.parametrize("size", [1, STRETCH, STRETCH + 1, 2 * STRETCH])
def test_the_last_number_draws_no_impossible_token(size: int) -> None:
    scaled = np.full(size, -np.inf, np.float32)
    scaled[0] = 0.0
    assert draw(scaled, 1 - 2**-53) == 0
    scaled = np.zeros(size, np.float32)
    assert draw(scaled, 1 - 2**-53) == size - 1
    assert draw(scaled, 0.0) == 0


def test_faint_tokens_are_never_drawn() -> None:
    scaled = np.array([-90.0, 0.0, -np.inf], np.float32)
    assert {draw(scaled, u) for u in (0.0, 2**-53, 0.5, 1 - 2**-53)} == {1}
