"""What a beam search finds in a simulation, where there is no model: next tokens with made-up likelihoods.

Of the tokens that may follow, the j-th likeliest has probability (1 - r) r^j, where r is the square of a number that
content, position and newest token draw uniformly between 0 and 1: most tokens are nearly certain and some are open, as
with language models. How often beams part follows from that; nothing is fitted. (SmolLM2-135M's own searches of 58
tokens share 41.6, 61.0 and 66.5 % of their blocks with 2, 4 and 6 beams; these, on such lengths, 42, 61 and 67 %.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import Candidates
from octavo.simulation.content import content_key, tokens_at

_RATIO_MIN, _RATIO_MAX = 1e-6, 0.999


def simulated_candidates(
    answer_key: int, position: int, newest: int, count: int, *, last: bool, vocabulary: int
) -> Candidates:
    """The ``count`` likeliest tokens at ``position`` of an answer, after ``newest``. ``last``: whether they end it."""
    key = content_key(answer_key, position, newest)
    ratio = min(max((key / 2**64) ** 2, _RATIO_MIN), _RATIO_MAX)
    ranks = np.arange(min(count, vocabulary))
    keys: NDArray[np.uint64] = np.full(len(ranks), key, np.uint64)
    tokens = tokens_at(keys, ranks, vocabulary)
    logprobs = math.log1p(-ratio) + ranks * math.log(ratio)
    return Candidates(tokens, logprobs.astype(np.float32), np.full(len(ranks), last))
