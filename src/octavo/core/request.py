"""``Request``: what a client asked for. It has no field for its true output length (rule 4: no peeking)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    _choices: tuple[Request, ...] = field(default=(), init=False, repr=False)
    """Made when they are first asked for: scheduler, server and recording each ask, and eight cost 0.3 ms."""

    def choices(self) -> tuple[Request, ...]:
        """Its answers as requests: itself where one is sampled, else one an answer, with an id and a seed of its own.

        Choice i of request ``x`` is ``x-i`` and has seed + i: alone, that request would give the same answer.
        """
        sampling = self.sampling
        if sampling.n == 1 and sampling.beam is None:
            return (self,)
        if not self._choices:
            object.__setattr__(self, "_choices", tuple(map(self._choice, range(sampling.n))))
        return self._choices

    def _choice(self, i: int) -> Request:
        seed = self.sampling.seed
        sampling = replace(self.sampling, n=1, beam=None, seed=None if seed is None else seed + i)
        return replace(self, request_id=f"{self.request_id}-{i}", sampling=sampling)

    def runs(self) -> tuple[Request, ...]:
        """What the scheduler knows it by, in plans and events: its choices, but of a beam search itself, because no
        beam is an answer before the search is over."""
        return (self,) if self.sampling.beam is not None else self.choices()
