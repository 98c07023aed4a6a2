"""Arrival processes have their rates, their burstiness and their order."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.arrivals import (
    at_once,
    fixed_rate,
    gamma_arrivals,
    parse_arrivals,
    poisson,
    rate_curve,
)
from octavo.simulation.random_numbers import stream


def gaps(arrivals: Iterator[float], count: int = 20_000) -> list[float]:
    times = list(islice(arrivals, count))
    assert all(a <= b for a, b in pairwise(times))
    return [b - a for a, b in zip([0.0, *times], times, strict=False)]


def test_simple_ones_are_exact() -> None:
    assert list(islice(at_once(), 3)) == [0.0, 0.0, 0.0]
    assert list(islice(fixed_rate(4.0), 4)) == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_mean_and_variation(burstiness: float) -> None:
    found = gaps(gamma_arrivals(5.0, burstiness, stream(3, "arrivals")))
    mean = statistics.fmean(found)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(found) / mean == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_gaps() -> None:
    found = gaps(poisson(2.0, stream(3, "arrivals")))
    assert statistics.fmean(found) == pytest.approx(0.5, rel=0.03)
    assert statistics.pstdev(found) == pytest.approx(0.5, rel=0.03)


def test_a_rate_curve_is_followed_and_repeats() -> None:
    times = list(islice(rate_curve([10.0, 0.0, 2.0], 100.0, stream(1, "arrivals")), 24_000))
    counts = [0, 0, 0]
    for time in times:
        counts[int(time / 100.0) % 3] += 1
    assert counts[1] == 0
    assert counts[0] / counts[2] == pytest.approx(5.0, rel=0.06)
    assert times[-1] == pytest.approx(6_000.0, rel=0.03)  # 1,200 a round of 300 s


@pytest.mark.parametrize(
    "text", ["", "poison:1", "poisson", "poisson:x", "gamma:1", "fixed:0", "poisson:-1", "gamma:1:0"]
)
def test_bad_arrivals_are_named(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_arrivals(text, stream(1, "x"))
    assert error.value.param == "--arrivals"


def test_parsed_arrivals_are_the_same_process() -> None:
    assert list(islice(parse_arrivals("poisson:2", stream(5, "a")), 9)) == list(
        islice(poisson(2.0, stream(5, "a")), 9)
    )
    assert list(islice(parse_arrivals("all", stream(5, "a")), 2)) == [0.0, 0.0]


@pytest.mark.parametrize(("rates", "window"), [([0.0], 1.0), ([-1.0, 3.0], 1.0), ([1.0], 0.0)])
def test_bad_curves_are_named(rates: list[float], window: float) -> None:
    with pytest.raises(ConfigError):
        rate_curve(rates, window, stream(1, "x"))
