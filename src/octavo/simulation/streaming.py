"""Statistics of streams that are too long to keep: memory stays flat however many values come."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Quantiles:
    """Mean, extremes and percentiles of values >= 0.

    Exact (linear interpolation between neighbours) up to ``EXACT`` values. Beyond that they are counted in buckets
    whose borders grow by a constant factor, and a percentile is right to ``ERROR`` of its value.
    """

    EXACT = 1 << 16
    ERROR = 0.0025
    SMALLEST = 1e-9
    """Values below count as 0."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = 0.0
        self._values = array("d")
        self._buckets: dict[int, int] | None = None
        self._step = math.log((1 + self.ERROR) / (1 - self.ERROR))

    def add(self, value: float) -> None:
        assert value >= 0.0 and math.isfinite(value)
        self.count += 1
        self.total += value
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        if self._buckets is not None:
            bucket = self._bucket(value)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        else:
            self._values.append(value)
            if self.count > self.EXACT:
                self._fold()

    def add_many(self, values: NDArray[np.float64]) -> None:
        for value in values.tolist():
            self.add(value)

    def _bucket(self, value: float) -> int:
        return -(1 << 30) if value < self.SMALLEST else math.ceil(math.log(value) / self._step)

    def _fold(self) -> None:
        buckets: dict[int, int] = {}
        for value in self._values:
            bucket = self._bucket(value)
            buckets[bucket] = buckets.get(bucket, 0) + 1
        self._buckets = buckets
        self._values = array("d")

    @property
    def mean(self) -> float:
        """nan if there are no values."""
        return self.total / self.count if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """nan if there are no values."""
        if not self.count:
            return math.nan
        if self._buckets is None:
            return float(np.percentile(np.frombuffer(self._values, np.float64), percent))
        rank = percent / 100 * (self.count - 1)
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed > rank:
                # Half way (in relative terms) between the bucket's borders.
                middle = (
                    0.0
                    if bucket == -(1 << 30)
                    else 2 * math.exp(bucket * self._step) / (1 + math.exp(self._step))
                )
                return min(max(middle, self.smallest), self.largest)
        raise AssertionError("a percentile lies within the values")

    def summary(self, percents: Sequence[float] = (50, 95, 99)) -> dict[str, float]:
        """``mean``, ``p50`` and so on, ``max``; 0 where there are no values."""
        if not self.count:
            return dict.fromkeys(["mean", *(f"p{percent:g}" for percent in percents), "max"], 0.0)
        return {
            "mean": self.mean,
            **{f"p{percent:g}": self.percentile(percent) for percent in percents},
            "max": self.largest,
        }


class Series:
    """Means of several quantities over time, in at most ``2 * points`` buckets of equal width.

    Buckets start ``width`` long; when there are too many, neighbours merge and the width doubles.
    """

    def __init__(self, names: Sequence[str], *, width: float = 1.0, points: int = 256) -> None:
        self.names = tuple(names)
        self.width = width
        self._most = 2 * points
        self._sums = np.zeros((self._most, len(self.names) + 1))
        """Of each bucket the weighted sums and, last, the weights."""
        self._used = 0
        self._open = 0
        """Bucket whose sums are still being collected in ``_fresh``, which is quicker than adding to an array."""
        self._fresh = [0.0] * (len(self.names) + 1)

    def add(self, time: float, values: Sequence[float], weight: float = 1.0) -> None:
        """``weight``: how long (or how often) these values held."""
        bucket = int(time / self.width)
        if bucket != self._open:
            self._flush()
            while bucket >= self._most:
                self._merge()
                bucket = int(time / self.width)
            self._open = bucket
        fresh = self._fresh
        total = fresh.pop() + weight
        self._fresh = [sum_ + value * weight for sum_, value in zip(fresh, values, strict=True)]
        self._fresh.append(total)

    def _flush(self) -> None:
        if self._fresh[-1] > 0:
            self._sums[self._open] += self._fresh
            self._used = max(self._used, self._open + 1)
            self._fresh = [0.0] * len(self._fresh)

    def mean(self, name: str) -> float:
        """Over all time; 0 if nothing was added."""
        self._flush()
        totals = self._sums.sum(axis=0)
        return float(totals[self.names.index(name)] / totals[-1]) if totals[-1] else 0.0

    def _merge(self) -> None:
        half = self._most // 2
        self._sums[:half] = self._sums.reshape(half, 2, -1).sum(axis=1)
        self._sums[half:] = 0.0
        self._used = (self._used + 1) // 2
        self.width *= 2

    def rows(self) -> list[dict[str, float]]:
        """``{"time": middle of the bucket, name: mean, ...}`` for every bucket that has something in it."""
        self._flush()
        return [
            {
                "time": (i + 0.5) * self.width,
                **dict(zip(self.names, (sums[:-1] / sums[-1]).tolist(), strict=True)),
            }
            for i, sums in enumerate(self._sums[: self._used])
            if sums[-1] > 0
        ]
