"""Chance is seeded and the same on any machine."""

from __future__ import annotations

import math
import statistics

import pytest

from octavo.simulation.random_numbers import Mulberry32, exponential, gamma, normal, stream


def test_mulberry32_has_the_published_sequence() -> None:
    """The first outputs of the 32-bit algorithm for seed 0 and for the article's, exactly."""
    rng = Mulberry32(0)
    assert [rng.random() for _ in range(3)] == [
        0.26642920868471265,
        0.0003297457005828619,
        0.2232720274478197,
    ]
    assert [Mulberry32(132848).random() for _ in range(2)] == [0.08046220382675529] * 2


def test_streams_of_a_seed_are_independent_and_repeat() -> None:
    first = [stream(7, "arrivals").random() for _ in range(2)]
    assert first[0] == first[1]
    assert stream(7, "lengths").random() != first[0]
    assert stream(8, "arrivals").random() != first[0]
    assert stream(0, "arrivals").random() == 0.38760878436702273


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_has_mean_and_variance_of_its_shape(shape: float) -> None:
    rng = stream(1, "gamma")
    values = [gamma(rng, shape) for _ in range(20_000)]
    assert statistics.fmean(values) == pytest.approx(shape, rel=0.05)
    assert statistics.pvariance(values) == pytest.approx(shape, rel=0.1)


def test_exponential_and_normal() -> None:
    rng = stream(1, "others")
    values = [exponential(rng, 3.0) for _ in range(20_000)]
    assert statistics.fmean(values) == pytest.approx(3.0, rel=0.03)
    assert statistics.median(values) == pytest.approx(3.0 * math.log(2), rel=0.04)
    normals = [normal(rng) for _ in range(20_000)]
    assert statistics.fmean(normals) == pytest.approx(0.0, abs=0.03)
    assert statistics.pstdev(normals) == pytest.approx(1.0, rel=0.03)
