"""Candidates and draws of every path against definitions that sort everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_helpers import every_path, runtime
from octavo import _native
from octavo.core.sampling_params import SamplingParams

values = st.lists(st.integers(0, 20).map(lambda tenths: -tenths / 10), min_size=1, max_size=60)
STRETCH = 256
"""Tokens whose weights the native part sums as one."""


def candidates(path: str, logits: Any, **params: Any) -> list[int]:
    wanted = SamplingParams(**params)
    sampler = _native.RowSampler(runtime(path))
    return sampler.candidates(
        np.array(logits, np.float32), 1.0, max(wanted.top_k, 0), wanted.top_p, wanted.min_p
    )


def choose(
    path: str, logits: Any, uniforms: list[float], temperature: float = 1.0, **params: Any
) -> list[int]:
    """Tokens of as many equal rows as there are numbers."""
    rows, wanted = len(uniforms), SamplingParams(**params)
    table = np.tile(np.array(logits, np.float32), (rows, 1))
    tokens, _ = _native.RowSampler(runtime(path)).choose(
        table,
        np.full(rows, temperature),
        np.full(rows, wanted.top_k, np.int32),
        np.full(rows, wanted.top_p),
        np.full(rows, wanted.min_p),
        np.array(uniforms),
    )
    return tokens


def plain_candidates(logits: Any, top_k: int = 0, min_p: float = 0.0) -> list[int]:
    """By sorting: the highest first, of equal ones the lowest id."""
    shares = np.exp(np.array(logits, np.float32).astype(np.float64) - np.float32(max(logits)))
    kept = [token for token in range(len(logits)) if shares[token] >= min_p * shares.max()]
    kept.sort(key=lambda token: (-np.float32(logits[token]), token))
    return sorted(kept[: top_k or len(kept)])


@every_path
@settings(deadline=None)
@given(values, st.integers(0, 70), st.sampled_from([0.0, 0.1501, 0.5, 1.0]))
def test_top_k_and_min_p_with_ties(path: str, logits: list[float], top_k: int, min_p: float) -> None:
    found = candidates(path, logits, top_k=top_k, min_p=min_p)
    assert found == plain_candidates(logits, top_k, min_p)


@every_path
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([100, 1000, 5003]), st.integers(1, 300), st.booleans())
def test_top_k_of_a_vocabulary(path: str, seed: int, size: int, top_k: int, ties: bool) -> None:
    """More tokens than blocks are looked at, and fewer; with many equal logits, and with none."""
    logits = np.random.default_rng(seed).normal(scale=3, size=size).astype(np.float32)
    logits = np.round(logits) if ties else logits
    assert candidates(path, logits, top_k=top_k) == plain_candidates(logits.tolist(), min(top_k, size))


@every_path
@settings(deadline=None)
@given(
    st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=200, unique=True),
    st.floats(0.01, 0.999),
    st.sampled_from([0, 2, 10]),
)
def test_top_p(path: str, logits: list[float], top_p: float, top_k: int) -> None:
    """Where a running sum meets top_p to the last bits, one token more or less is right too."""
    found = candidates(path, logits, top_p=top_p, top_k=top_k)
    shares = np.zeros(len(logits))
    kept = plain_candidates(logits, top_k)
    shares[kept] = np.exp(np.array(logits)[kept])
    shares /= shares.sum()
    order = sorted(kept, key=lambda token: -logits[token])[: len(found)]
    assert found == sorted(order)
    assert shares[order].sum() >= top_p - 1e-6
    assert shares[order[:-1]].sum() < top_p + 1e-6


@every_path
def test_borders(path: str) -> None:
    """A tiny top_p keeps the first alone; of a flat vocabulary nothing can be left aside, and the lowest ids stay."""
    assert candidates(path, [1.0, 2.0, 2.0], top_p=1e-300) == [1]
    flat = np.zeros(5000, np.float32)
    assert candidates(path, flat, top_p=0.5) == list(range(2500))
    assert candidates(path, flat, top_k=7) == list(range(7))
    assert candidates(path, flat) == list(range(5000))


@every_path
@settings(deadline=None)
@given(st.integers(1, 3 * STRETCH + 1), st.floats(0, 1, exclude_max=True), st.integers(0, 2**32 - 1))
def test_a_draw_is_the_inverse_of_the_running_sum(path: str, size: int, u: float, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(scale=2, size=size).astype(np.float32)
    running = np.cumsum(np.exp(logits.astype(np.float64) - logits.max()))
    [token] = choose(path, logits, [u])
    slack = 1e-5 * running[-1]
    assert running[token] > u * running[-1] - slack
    assert token == 0 or running[token - 1] <= u * running[-1] + slack


@every_path
@pytest.mark.parametrize("size", [1, STRETCH, STRETCH + 1, 2 * STRETCH])
def test_the_last_number_draws_no_impossible_token(path: str, size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    logits[0] = 0.0
    assert choose(path, logits, [1 - 2**-53]) == [0]
    assert choose(path, np.zeros(size), [1 - 2**-53, 0.0]) == [size - 1, 0]


@every_path
def test_faint_tokens_are_never_drawn(path: str) -> None:
    assert set(choose(path, [-90.0, 0.0, -np.inf], [0.0, 2**-53, 0.5, 1 - 2**-53])) == {1}


@every_path
def test_greedy_takes_the_first_of_the_highest(path: str) -> None:
    rng = np.random.default_rng(1)
    for size in (1, 63, 64, 65, 1000):
        logits = np.round(rng.normal(scale=2, size=size)).astype(np.float32)
        assert choose(path, logits, [0.5], temperature=0) == [int(logits.argmax())]
    assert choose(path, [-np.inf, -np.inf], [0.5], temperature=0) == [0]


@every_path
@pytest.mark.parametrize("place", [0, 63, 64, 130])
def test_damage_is_told_by_the_highest_logit(path: str, place: int) -> None:
    logits = np.zeros((2, 131), np.float32)
    logits[1, place] = np.nan
    ones = np.ones(2)
    sampler = _native.RowSampler(runtime(path))
    for temperature in (0 * ones, ones):
        _, highest = sampler.choose(logits, temperature, np.zeros(2, np.int32), ones, 0 * ones, 0.5 * ones)
        assert highest[0] == 0 and np.isnan(highest[1])


def test_paths_and_threads_choose_alike() -> None:
    """exp is the same bits on every path, and a row is one thread's."""
    rng = np.random.default_rng(2)
    logits, uniforms = rng.normal(scale=3, size=3000).astype(np.float32), rng.random(50).tolist()
    settings_of_rows: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 40, "top_p": 0.95},
        {"min_p": 0.02},
    ]
    for params in settings_of_rows:
        found = [choose(path, logits, uniforms, **params) for path in _native.available_paths()]
        assert all(tokens == found[0] for tokens in found)
        assert len(set(found[0])) > 5


def test_arrays_that_do_not_fit_are_refused() -> None:
    sampler, ones = _native.RowSampler(runtime("portable")), np.ones(2)
    zeros = np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="top_p has 1 entries and the logits' rows 2"):
        sampler.choose(np.zeros((2, 5), np.float32), ones, zeros, ones[:1], ones, ones)
    with pytest.raises(TypeError, match="not contiguous"):
        sampler.choose(np.zeros((5, 2), np.float32).T, ones, zeros, ones, ones, ones)
