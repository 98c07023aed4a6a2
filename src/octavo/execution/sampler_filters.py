"""min_p, top_k and top_p: which tokens may be drawn, without sorting the vocabulary."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams

Scaled = NDArray[np.float32]
Ids = NDArray[np.int64]

FAINTEST = np.float32(-80.0)
"""Tokens less likely than e**-80 of the first are never drawn. A random number has 53 bits and could not tell them from
0, while exponentials that leave float32's normal range cost twenty times as much as others."""
STRETCH = 256
"""Tokens whose weights are summed as one when a token is drawn."""


def filtered_candidates(scaled: Scaled, params: SamplingParams) -> Ids | None:
    """Ids of the tokens that min_p, then top_k, then top_p leave: int64 [n], n >= 1, rising; None for all.

    ``scaled`` float32 [V]: logits over temperature, the highest at 0. At a border between equal logits the lower ids
    stay.
    """
    ids: Ids | None = None
    if params.min_p > 0:
        ids = np.flatnonzero(scaled >= math.log(params.min_p))
    if 0 < params.top_k < (len(scaled) if ids is None else len(ids)):
        values = scaled if ids is None else scaled[ids]
        border = np.partition(values, len(values) - params.top_k)[len(values) - params.top_k]
        ids = _highest(values, ids, params.top_k, border)
    if params.top_p < 1:
        ids = _nucleus(scaled if ids is None else scaled[ids], ids, params.top_p)
    return ids


def _highest(values: Scaled, ids: Ids | None, count: int, border: np.float32) -> Ids:
    """The ``count`` highest, where ``border`` is the lowest of them. ``values`` float32 [n] are those of ``ids``.

    Finding the border first and comparing costs half of an argpartition, and needs no order among the others.
    """
    kept = np.flatnonzero(values >= border)
    if len(kept) > count:  # there are more only where several equal the border: the lowest ids of those stay
        stays = values[kept] > border
        at_border = np.flatnonzero(~stays)
        stays[at_border[: count - np.count_nonzero(stays)]] = True
        kept = kept[stays]
    return kept if ids is None else ids[kept]


def _nucleus(values: Scaled, ids: Ids | None, top_p: float) -> Ids:
    """The fewest of the most likely tokens whose share reaches ``top_p``. ``values`` float32 [n] are those of ``ids``.

    Tokens far less likely than the first are left aside before sorting. Whether the others hold enough is checked, so
    the distance is a guess about speed and never about the answer.
    """
    wanted = top_p * float(weights(values).sum())
    near = values
    for distance in (5.0, 10.0):
        likely = values[np.flatnonzero(values >= -distance)]
        if float(weights(likely).sum()) >= wanted:
            near = likely
            break
    falling = np.sort(near)[::-1]
    running = np.cumsum(weights(falling).astype(np.float64))
    # The two sums may differ in their last bits; where they do, all of them are the nucleus.
    count = min(int(np.searchsorted(running, wanted, side="left")) + 1, len(falling))
    return _highest(values, ids, count, falling[count - 1])


def draw(scaled: Scaled, u: float) -> int:
    """Place of the first value at which the running sum of weights exceeds ``u`` x their sum.

    ``scaled`` float32 [n], the highest at 0; ``u`` in [0, 1). The sum runs over the sums of stretches and then within
    one: a running sum of a whole vocabulary is one long chain of additions, and would take longer than all else.
    """
    likelihoods = weights(scaled)
    sums = np.add.reduceat(likelihoods, np.arange(0, len(likelihoods), STRETCH)).astype(np.float64)
    running = np.cumsum(sums)
    target = u * float(running[-1])
    stretch = _first_above(running, target)
    rest = target - (float(running[stretch - 1]) if stretch else 0.0)
    start = stretch * STRETCH
    inner = np.cumsum(likelihoods[start : start + STRETCH].astype(np.float64))
    return start + _first_above(inner, rest)


def _first_above(running: NDArray[np.float64], target: float) -> int:
    """First place whose running sum exceeds ``target``, and never one that adds nothing: rounding may have carried
    ``target`` up to the last sum or beyond it."""
    below = min(target, float(np.nextafter(running[-1], 0.0)))
    return int(np.searchsorted(running, below, side="right"))


def weights(scaled: Scaled) -> Scaled:
    """exp(``scaled``), and 0 below ``FAINTEST``. The shape stays."""
    if scaled.min() >= FAINTEST:
        exact: Scaled = np.exp(scaled)
        return exact
    result: Scaled = np.exp(np.maximum(scaled, FAINTEST))
    result *= scaled >= FAINTEST
    return result
