"""How often each token occurred in one request, and the penalties that follow from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams


class PenaltyTable:
    """The tokens seen so far, once each, with their number in the output.

    Two arrays that grow by doubling and a dict from token to place: a token costs the same however long the output is,
    and the memory is that of the distinct tokens, not of a vocabulary per row.
    """

    def __init__(self, params: SamplingParams, prompt_ids: NDArray[np.int32]) -> None:
        """``prompt_ids`` int32 [n]: the distinct tokens of the prompt (for the repetition penalty), or none."""
        self._params = params
        self._size = len(prompt_ids)
        self._ids = np.zeros(max(64, 2 * self._size), np.int64)
        self._ids[: self._size] = prompt_ids
        self._counts = np.zeros(len(self._ids), np.float32)
        self._place = {token: place for place, token in enumerate(prompt_ids.tolist())}

    @classmethod
    def for_request(cls, request: Request, output_token_ids: NDArray[np.int32]) -> PenaltyTable | None:
        """The table of ``request`` after ``output_token_ids`` int32 [O]; None where it has no penalty."""
        params = request.sampling
        repetition = params.repetition_penalty != 1
        if not (repetition or params.presence_penalty or params.frequency_penalty):
            return None
        table = cls(params, np.unique(request.prompt_token_ids) if repetition else np.empty(0, np.int32))
        for token in output_token_ids.tolist():
            table.add_output(token)
        return table

    def add_output(self, token: int) -> None:
        """One more ``token`` was generated."""
        place = self._place.get(token)
        if place is None:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            place = self._place[token] = self._size
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Change ``logits`` float32 [V] in place: repetition first, then frequency and presence."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        values = logits[ids]
        factor = self._params.repetition_penalty
        if factor != 1:
            values = np.where(values > 0, values / factor, values * factor)
        values -= self._params.frequency_penalty * counts
        values -= self._params.presence_penalty * (counts > 0)
        logits[ids] = values
