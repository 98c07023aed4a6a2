"""Statistics of streams: exact while few, close and flat when many."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.simulation.random_numbers import normal, stream
from octavo.simulation.streaming import Quantiles, Series


def test_few_values_are_exact() -> None:
    quantiles = Quantiles()
    for value in [4.0, 1.0, 3.0, 2.0]:
        quantiles.add(value)
    assert quantiles.summary() == {
        "mean": 2.5,
        "p50": 2.5,
        "p95": pytest.approx(3.85),
        "p99": pytest.approx(3.97),
        "max": 4.0,
    }
    assert (quantiles.count, quantiles.smallest) == (4, 1.0)


def test_no_values() -> None:
    assert Quantiles().summary((50,)) == {"mean": 0.0, "p50": 0.0, "max": 0.0}
    assert math.isnan(Quantiles().percentile(50))
    assert math.isnan(Quantiles().mean)


def test_many_values_are_close_and_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantiles, "EXACT", 1_000)
    rng = stream(1, "values")
    values = np.array([math.exp(3 * normal(rng)) for _ in range(30_000)] + [0.0] * 300)
    quantiles = Quantiles()
    quantiles.add_many(values)
    assert quantiles.mean == pytest.approx(values.mean())
    for percent in (5, 50, 95, 99):
        assert quantiles.percentile(percent) == pytest.approx(
            np.percentile(values, percent), rel=0.005, abs=1e-9
        )
    assert quantiles.percentile(0) == 0.0
    assert quantiles.percentile(100) == pytest.approx(values.max(), rel=0.005)
    assert len(quantiles._values) == 0
    assert quantiles._buckets is not None
    assert len(quantiles._buckets) < 6_000


def test_a_series_keeps_its_means_when_it_gets_coarser() -> None:
    series = Series(("a", "b"), width=1.0, points=2)
    for second in range(4):
        series.add(second, (second, 1.0))
    assert [row["time"] for row in series.rows()] == [0.5, 1.5, 2.5, 3.5]
    series.add(4.0, (10.0, 3.0), weight=0.5)
    assert series.width == 2.0
    assert series.rows() == [
        {"time": 1.0, "a": 0.5, "b": 1.0},
        {"time": 3.0, "a": 2.5, "b": 1.0},
        {"time": 5.0, "a": 10.0, "b": 3.0},
    ]
    series.add(31.0, (2.0, 2.0))
    assert series.width == 8.0
    assert len(series.rows()) == 2, "empty buckets are left out"
