"""Log-probabilities of raw logits, as users see them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import Candidates, TokenLogprobs


def token_logprobs(logits: NDArray[np.float32], token_id: int, count: int) -> TokenLogprobs:
    """Those of ``token_id`` and of the ``count`` most likely tokens, from ``logits`` float32 [V].

    Exponentials in float32, their sum in float64: exact to about 1e-6. Tokens of equal logit rank by id, so that
    ranks and the top list always agree.
    """
    log_sum = _log_sum(logits)
    value = logits[token_id]
    rank = 1 + int(np.count_nonzero(logits > value)) + int(np.count_nonzero(logits[:token_id] == value))
    top = _most_likely(logits, min(count, len(logits)))
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(value) - log_sum,
        rank=rank,
        top_ids=top.astype(np.int32),
        top_logprobs=(logits[top].astype(np.float64) - log_sum).astype(np.float32),
    )


def candidates(
    logits: NDArray[np.float32], count: int, ends: frozenset[int], ends_allowed: bool
) -> Candidates:
    """The ``count`` likeliest next tokens of a beam, from ``logits`` float32 [V].

    ``ends``: tokens that end it; where they are not allowed (yet), others take their place.
    """
    log_sum = _log_sum(logits)
    if not ends_allowed and len(ends) < len(logits):
        logits = logits.copy()
        logits[sorted(ends)] = -np.inf
    top = _most_likely(logits, min(count, len(logits)))
    top = top[np.isfinite(logits[top])]
    return Candidates(
        token_ids=top.astype(np.int32),
        logprobs=(logits[top].astype(np.float64) - log_sum).astype(np.float32),
        stops=np.isin(top, list(ends)),
    )


FAINTEST = np.float32(-80.0)
"""Below this, exponentials leave float32's normal range and cost twenty times as much, for nothing in a sum."""


def _weights(scaled: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(``scaled``), and 0 below ``FAINTEST``."""
    if scaled.min() >= FAINTEST:
        exact: NDArray[np.float32] = np.exp(scaled)
        return exact
    result: NDArray[np.float32] = np.exp(np.maximum(scaled, FAINTEST))
    result *= scaled >= FAINTEST
    return result


def _log_sum(logits: NDArray[np.float32]) -> float:
    """Logarithm of the sum of all exponentials."""
    highest = logits.max()
    return float(highest) + math.log(float(_weights(logits - highest).sum(dtype=np.float64)))


def _most_likely(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids int64 [count] by falling logit, equal ones by id."""
    if count == 0:
        return np.empty(0, np.int64)
    border = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= border)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]
