"""How long prompts and answers are, in tokens (at least 1)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.simulation.random_numbers import Uniform, normal

Length = Callable[[Uniform], int]
"""Draws one length."""


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message, param="--prompt-tokens or --output-tokens")


def fixed(tokens: int) -> Length:
    _check(tokens >= 1, f"a fixed length of {tokens} tokens; it must be at least 1")
    return lambda rng: tokens


def uniform(low: int, high: int) -> Length:
    """Every length from ``low`` to ``high`` is as likely."""
    _check(1 <= low <= high, f"uniform lengths from {low} to {high}; need 1 <= low <= high")
    return lambda rng: low + int((high - low + 1) * rng.random())


def log_uniform(low: int, high: int) -> Length:
    """The logarithm is uniform between those of ``low`` and ``high``."""
    _check(1 <= low <= high, f"log-uniform lengths from {low} to {high}; need 1 <= low <= high")
    return lambda rng: math.floor(low * (high / low) ** rng.random() + 0.5)


def log_normal(median: float, sigma: float, low: int = 1, high: int = 1 << 20) -> Length:
    """exp(normal) with this median and standard deviation of the logarithm, cut to [low, high]."""
    _check(
        median >= 1 and sigma >= 0, f"lognormal median {median}, sigma {sigma}; need median >= 1, sigma >= 0"
    )
    _check(1 <= low <= high, f"lognormal lengths cut to {low}..{high}; need 1 <= low <= high")
    return lambda rng: min(max(math.floor(median * math.exp(sigma * normal(rng)) + 0.5), low), high)


def parse_length(text: str) -> Length:
    """``N``, ``fixed:N``, ``uniform:LOW:HIGH``, ``loguniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA``."""
    name, *numbers = text.split(":") if ":" in text else ["fixed", text]
    wanted = {"fixed": 1, "uniform": 2, "loguniform": 2, "lognormal": 2}
    try:
        values = [float(number) if name == "lognormal" else int(number) for number in numbers]
    except ValueError:
        values = []
    if wanted.get(name) != len(values) or not all(math.isfinite(value) for value in values):
        raise ConfigError(
            f"length {text!r} is not known; use N, uniform:LOW:HIGH, loguniform:LOW:HIGH or lognormal:MEDIAN:SIGMA",
            param="--prompt-tokens or --output-tokens",
        )
    if name == "lognormal":
        return log_normal(values[0], values[1])
    whole = [int(value) for value in values]
    if name == "fixed":
        return fixed(whole[0])
    return uniform(whole[0], whole[1]) if name == "uniform" else log_uniform(whole[0], whole[1])


def independent(prompt: Length, output: Length, rng: Uniform) -> Iterator[tuple[int, int]]:
    """Endless (prompt, output) pairs, drawn one after the other from one stream."""
    while True:
        yield prompt(rng), output(rng)


class Empirical:
    """(prompt, output) pairs drawn with replacement from measured ones, by weight.

    With ``means`` the weights are tilted so that the expected pair is exactly that: of all reweightings with these
    means, exponential tilting strays least from the measured distribution (in relative entropy), and every pair that is
    drawn was really measured. Scaling the lengths would have made pairs that nobody sent.
    """

    def __init__(
        self, pairs: Sequence[tuple[int, int]] | NDArray[np.int64], means: tuple[float, float] | None = None
    ) -> None:
        """Raises ConfigError without pairs, or if ``means`` lie outside what the pairs span."""
        self.pairs = np.asarray(pairs, np.int64).reshape(-1, 2)
        _check(len(self.pairs) > 0, "no lengths were given to draw from")
        _check(int(self.pairs.min()) >= 1, "a measured length is below 1 token")
        count = len(self.pairs)
        weights = np.full(count, 1.0 / count) if means is None else tilted(self.pairs, means)
        self.weights = weights
        """float64 [n], sums to 1."""
        self._cumulative = np.cumsum(weights).tolist()

    @property
    def means(self) -> tuple[float, float]:
        """Expected prompt and output length of a draw."""
        prompt, output = self.weights @ self.pairs
        return float(prompt), float(output)

    def draw(self, rng: Uniform) -> tuple[int, int]:
        chosen = min(bisect_right(self._cumulative, rng.random()), len(self._cumulative) - 1)
        return int(self.pairs[chosen, 0]), int(self.pairs[chosen, 1])

    def endless(self, rng: Uniform) -> Iterator[tuple[int, int]]:
        while True:
            yield self.draw(rng)


def tilted(pairs: NDArray[np.int64], means: tuple[float, float]) -> NDArray[np.float64]:
    """Weights proportional to exp(theta . pair) with this expected pair; theta by damped Newton on the convex dual."""
    target = np.asarray(means, np.float64)
    scale = np.maximum(pairs.std(axis=0), 1e-9)
    offset = (pairs - target) / scale
    theta = np.zeros(2)

    def dual(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        exponents = offset @ at
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        return top + math.log(float(weights.sum())), weights / weights.sum()

    value, weights = dual(theta)
    for _ in range(100):
        gradient = weights @ offset
        if float(np.abs(gradient * scale).max()) < 1e-9 * max(1.0, float(np.abs(target).max())):
            return weights
        hessian = (offset * weights[:, None]).T @ offset - np.outer(gradient, gradient) + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        length = 1.0
        while length > 1e-6 and dual(theta - length * step)[0] > value - 1e-4 * length * float(
            gradient @ step
        ):
            length /= 2
        theta = theta - length * step
        value, weights = dual(theta)
    raise ConfigError(
        f"no reweighting of these {len(pairs)} lengths has the means {means[0]} and {means[1]}; they span"
        f" {pairs.min(axis=0).tolist()} to {pairs.max(axis=0).tolist()}",
        param="--mean-lengths",
    )
