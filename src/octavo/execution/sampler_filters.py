"""min_p, top_k and top_p: which tokens may be drawn, without sorting the vocabulary."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams

Scaled = NDArray[np.float64]
Ids = NDArray[np.int64]


def filtered_candidates(scaled: Scaled, params: SamplingParams) -> Ids:
    """Ids of the tokens that min_p, then top_k, then top_p leave: int64 [n], n >= 1.

    ``scaled`` float64 [V]: logits over temperature, the highest at 0. In order of falling logit, equal ones by id; at
    a border between equal logits the lower ids stay.
    """
    ids: Ids | None = None
    if params.min_p > 0:
        ids = np.flatnonzero(scaled >= math.log(params.min_p))
    if 0 < params.top_k < (len(scaled) if ids is None else len(ids)):
        ids = _highest(scaled, ids, params.top_k)
    if params.top_p < 1:
        return _nucleus(scaled, ids, params.top_p)
    return _sorted(scaled, np.arange(len(scaled)) if ids is None else ids)


def _sorted(scaled: Scaled, ids: Ids) -> Ids:
    """``ids``, given in rising order, by falling logit; a stable sort leaves equal ones by id."""
    return ids[np.argsort(-scaled[ids], kind="stable")]


def _highest(scaled: Scaled, ids: Ids | None, k: int) -> Ids:
    """The k highest, ids rising. A partition by value and one comparison cost half of an argpartition."""
    values = scaled if ids is None else scaled[ids]
    border = np.partition(values, len(values) - k)[len(values) - k]
    kept = np.flatnonzero(values >= border)
    if len(kept) > k:  # more than k only where logits equal the border's: the lowest ids of those stay
        above = values[kept] > border
        at_border = np.flatnonzero(~above)
        above[at_border[: k - int(above.sum())]] = True
        kept = kept[above]
    return kept if ids is None else ids[kept]


def _nucleus(scaled: Scaled, ids: Ids | None, top_p: float) -> Ids:
    """The fewest of the most likely tokens whose share reaches ``top_p``, most likely first.

    Tokens less likely than a cut are left aside before sorting. Whether the rest holds enough is checked, so the cut is
    a guess about speed and never about the answer.
    """
    weights = np.exp(scaled if ids is None else scaled[ids])
    total = weights.sum()
    cut = (1.0 - top_p) * total / 256
    while True:
        kept = np.flatnonzero(weights >= cut)
        order = kept[np.argsort(-weights[kept], kind="stable")]
        running = np.cumsum(weights[order])
        if running[-1] >= top_p * total:
            count = int(np.searchsorted(running, top_p * total, side="left")) + 1
            return order[:count] if ids is None else ids[order[:count]]
        if len(kept) == len(weights):  # the two sums differ in their last bits
            return order if ids is None else ids[order]
        cut = cut / 64 if cut > 1e-12 * total else 0.0
