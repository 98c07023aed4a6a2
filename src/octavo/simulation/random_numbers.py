"""Sources of chance. Every one is seeded; the same seed gives the same workload on any machine.

Only uniform numbers are taken from a generator whose sequence its authors promise to keep (``random.Random.random``,
mulberry32); everything else is computed from them here. NumPy's generators promise no such thing across versions.
"""

from __future__ import annotations

import math
from random import Random
from typing import Protocol

MASK32 = 0xFFFFFFFF


class Uniform(Protocol):
    def random(self) -> float:
        """A number in [0, 1)."""


class Mulberry32:
    """The 32-bit generator of the article's page: one stream, the same on any machine."""

    def __init__(self, seed: int) -> None:
        self._state = seed & MASK32

    def random(self) -> float:
        self._state = (self._state + 0x6D2B79F5) & MASK32
        t = self._state
        t = ((t ^ (t >> 15)) * (t | 1)) & MASK32
        t = (t ^ (t + (((t ^ (t >> 7)) * (t | 61)) & MASK32))) & MASK32
        return (t ^ (t >> 14)) / 4294967296


def stream(seed: int, purpose: str) -> Random:
    """A generator of its own for each purpose, so that another arrival rate does not change the lengths."""
    return Random(f"{seed}:{purpose}")


def exponential(rng: Uniform, mean: float) -> float:
    return -mean * math.log1p(-rng.random())


def normal(rng: Uniform) -> float:
    """Standard normal by Box-Muller; uses two uniform numbers."""
    radius = math.sqrt(-2.0 * math.log1p(-rng.random()))
    return radius * math.cos(2.0 * math.pi * rng.random())


def gamma(rng: Uniform, shape: float) -> float:
    """Gamma with this shape and scale 1 (Marsaglia and Tsang 2000; shapes below 1 by their boost)."""
    if shape < 1.0:
        return gamma(rng, shape + 1.0) * math.exp(math.log1p(-rng.random()) / shape)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(rng)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log1p(-rng.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v
