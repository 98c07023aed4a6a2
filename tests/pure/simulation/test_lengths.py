"""Length distributions, and empirical ones brought to stated means."""

from __future__ import annotations

import statistics
from itertools import islice

import numpy as np
import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.lengths import Empirical, fixed, independent, log_normal, parse_length, uniform
from octavo.simulation.random_numbers import stream


def test_uniform_reaches_both_ends_evenly() -> None:
    rng, draw = stream(1, "u"), uniform(3, 6)
    values = [draw(rng) for _ in range(8_000)]
    assert sorted(set(values)) == [3, 4, 5, 6]
    assert all(values.count(v) == pytest.approx(2_000, rel=0.1) for v in set(values))


def test_log_uniform_and_log_normal() -> None:
    rng = stream(1, "l")
    values = [parse_length("loguniform:1000:10000")(rng) for _ in range(20_000)]
    assert (min(values), max(values)) == (1000, 10000)
    assert statistics.fmean(values) == pytest.approx(9_000 / np.log(10), rel=0.02)
    normals = [parse_length("lognormal:256:0.7")(rng) for _ in range(20_000)]
    assert statistics.median(normals) == pytest.approx(256, rel=0.03)
    assert statistics.pstdev(np.log(normals)) == pytest.approx(0.7, rel=0.03)
    assert {log_normal(10, 3.0, 5, 20)(rng) for _ in range(200)} <= set(range(5, 21))


def test_fixed_and_pairs() -> None:
    assert list(islice(independent(fixed(5), parse_length("7"), stream(1, "x")), 2)) == [(5, 7), (5, 7)]


PAIRS = [(10, 100), (20, 50), (300, 400), (50, 60), (1000, 20)]


def test_empirical_draws_what_was_measured() -> None:
    found = list(islice(Empirical(PAIRS).endless(stream(1, "e")), 4_000))
    assert set(found) == set(PAIRS)
    assert all(found.count(pair) == pytest.approx(800, rel=0.12) for pair in PAIRS)
    assert Empirical(PAIRS).means == (276.0, 126.0)


def test_tilting_reaches_the_stated_means_exactly_with_measured_pairs() -> None:
    tilted = Empirical(PAIRS, (161.31, 130.5))
    assert tilted.means == (pytest.approx(161.31, rel=1e-9), pytest.approx(130.5, rel=1e-9))
    assert tilted.weights.sum() == pytest.approx(1.0)
    assert (tilted.weights > 0).all()
    found = list(islice(tilted.endless(stream(1, "e")), 20_000))
    assert set(found) == set(PAIRS)
    assert statistics.fmean(p for p, _ in found) == pytest.approx(161.31, rel=0.05)


def test_tilting_to_the_own_means_changes_nothing() -> None:
    assert Empirical(PAIRS, (276.0, 126.0)).weights == pytest.approx(np.full(5, 0.2))


@pytest.mark.parametrize("means", [(2_000.0, 100.0), (5.0, 100.0), (900.0, 350.0)])
def test_means_outside_the_pairs_are_refused(means: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="no reweighting"):
        Empirical(PAIRS, means)


@pytest.mark.parametrize(
    "text", ["", "0", "-4", "uniform:5:2", "uniform:5", "lognormal:0:1", "normal:1:2", "3.5", "fixed:"]
)
def test_bad_lengths_are_named(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_length(text)


def test_no_pairs_or_empty_ones_are_refused() -> None:
    with pytest.raises(ConfigError):
        Empirical([])
    with pytest.raises(ConfigError):
        Empirical([(5, 0)])
