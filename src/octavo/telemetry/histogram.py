"""``ArrayHistogram``: a Prometheus histogram that takes a whole step's values in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
"""Seconds to a first token."""
TOKEN_TIME = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
"""Seconds between tokens."""
REQUEST_TIME = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
"""Seconds of a request or a part of it."""
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Tokens of a prompt or an answer."""
STEP_TOKENS = tuple(float(1 << power) for power in range(15))
"""Tokens of a step."""
COUNTS = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class ArrayHistogram:
    """A value v falls into the first bucket whose bound is at least v, as in Prometheus. One thread observes."""

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds rise"
        self.name = name
        self.documentation = documentation
        self._bounds = np.array(bounds)
        self._labels = [*map(str, bounds), "+Inf"]
        self._counts: NDArray[np.int64] = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    @property
    def sum(self) -> float:
        return self._sum

    def observe(self, value: float) -> None:
        self._counts[self._bounds.searchsorted(value)] += 1
        self._sum += value

    def observe_many(self, values: ArrayLike) -> None:
        """float [n]"""
        array = np.asarray(values, np.float64)
        np.add.at(self._counts, self._bounds.searchsorted(array), 1)
        self._sum += float(array.sum())

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it) of each bucket, as Prometheus wants them."""
        return list(zip(self._labels, np.cumsum(self._counts).tolist(), strict=True))
