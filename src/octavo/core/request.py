"""``Request``: what a client asked for. It has no field for its true output length (rule 4: no peeking)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.constraint import Constraint
from octavo.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    request_id: str
    """Unique among unfinished requests."""
    prompt_token_ids: NDArray[np.int32]
    """int32 [P], P >= 1; never written to."""
    sampling: SamplingParams
    priority: int = 0
    """Lower is served first under the priority queue."""
    cache_salt: str | None = None
    """Requests with different salts never share cached blocks."""
    constraint: Constraint | None = None
    """Limits the tokens that may be generated; None allows all."""
