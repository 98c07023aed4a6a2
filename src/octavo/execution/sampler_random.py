"""One random number for each (seed, position), and no state between them."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 / golden ratio: the step of SplitMix64 (Steele, Lea & Flood 2014), whose generator this is."""


def _mix(x: int) -> int:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53. Any integer is a seed; it is taken modulo 2**64.

    The seed is mixed before it starts the sequence, because clients choose neighbouring seeds (0, 1, 2, ...), whose
    sequences must not be shifted copies of each other. Plain integers: one number a token, and NumPy's generators cost
    ten times as much to set up.
    """
    start = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((start + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53
