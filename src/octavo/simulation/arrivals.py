"""When requests arrive. Each process is an endless iterator of times in seconds, ascending, from 0 on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat

from octavo.core.errors import ConfigError
from octavo.simulation.random_numbers import Uniform, exponential, gamma


def _positive(value: float, what: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{what} is {value}; it must be a finite number above 0", param="--arrivals")
    return value


def at_once() -> Iterator[float]:
    """Everything is there from the start."""
    return repeat(0.0)


def fixed_rate(rate: float) -> Iterator[float]:
    """One every 1 / ``rate`` seconds, the first at 0."""
    _positive(rate, "the arrival rate")
    return (i / rate for i in count())


def poisson(rate: float, rng: Uniform) -> Iterator[float]:
    """``rate`` requests a second on average, independent of each other."""
    mean = 1.0 / _positive(rate, "the arrival rate")
    return _accumulate(lambda: exponential(rng, mean))


def gamma_arrivals(rate: float, burstiness: float, rng: Uniform) -> Iterator[float]:
    """Gamma-distributed gaps. ``burstiness`` is the gamma's shape, as load generators call it: 1 is Poisson, below 1
    comes in bursts, above 1 is more regular. The gaps' coefficient of variation is 1 / sqrt(burstiness)."""
    _positive(burstiness, "the burstiness")
    scale = 1.0 / (_positive(rate, "the arrival rate") * burstiness)
    return _accumulate(lambda: gamma(rng, burstiness) * scale)


def rate_curve(rates: Sequence[float], window_s: float, rng: Uniform) -> Iterator[float]:
    """Poisson with ``rates[i]`` requests a second in the i-th window of ``window_s`` seconds, the curve repeating.

    Raises ConfigError for a negative rate or a curve without any arrivals.
    """
    _positive(window_s, "the window of a rate curve")
    for i, rate in enumerate(rates):
        if not (math.isfinite(rate) and rate >= 0):
            raise ConfigError(f"rate {i} of the curve is {rate}; it must be at least 0", param="--arrivals")
    _positive(sum(rates), "the sum of a rate curve")
    return _follow(rates, window_s, rng)


def _follow(rates: Sequence[float], window_s: float, rng: Uniform) -> Iterator[float]:
    """Unit-rate arrivals, mapped through the inverse of the curve's integral."""
    window, spent = 0, 0.0  # ``spent`` seconds of this window are over
    while True:
        owed = exponential(rng, 1.0)
        while (available := rates[window % len(rates)] * (window_s - spent)) < owed:
            owed -= available
            window, spent = window + 1, 0.0
        spent += owed / rates[window % len(rates)]
        yield window * window_s + spent


def _accumulate(gap: Callable[[], float]) -> Iterator[float]:
    now = 0.0
    while True:
        now += gap()
        yield now


def parse_arrivals(text: str, rng: Uniform) -> Iterator[float]:
    """``all``, ``fixed:RATE``, ``poisson:RATE`` or ``gamma:RATE:BURSTINESS``. Raises ConfigError."""
    name, *numbers = text.split(":")
    wanted = {"all": 0, "fixed": 1, "poisson": 1, "gamma": 2}
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = [math.nan]
    if wanted.get(name) != len(numbers) or any(math.isnan(value) for value in values):
        raise ConfigError(
            f"arrivals {text!r} are not known; use all, fixed:RATE, poisson:RATE or gamma:RATE:BURSTINESS",
            param="--arrivals",
        )
    if name == "all":
        return at_once()
    if name == "fixed":
        return fixed_rate(values[0])
    return poisson(values[0], rng) if name == "poisson" else gamma_arrivals(values[0], values[1], rng)
