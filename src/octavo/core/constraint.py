"""``Constraint``: which tokens a request may generate next, wherever that follows from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TokenMask(Protocol):
    """The state of one running request's constraint. Depends on the generated tokens alone."""

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Set the logits float32 [V] of forbidden tokens to -inf, in place; at least one token stays allowed."""

    def advance(self, token_id: int) -> None:
        """This token was generated."""


class Constraint(Protocol):
    """Checked and compiled; shared between the runs of a request before and after a preemption."""

    def start(self, output_token_ids: NDArray[np.int32]) -> TokenMask:
        """The state after these tokens, int32 [O]: those that the request generated before and kept."""

    def gave_up(self, output_token_ids: NDArray[np.int32]) -> bool:
        """Whether an answer of these tokens, int32 [O], which ended by itself, ended because its constraint's work went
        over a limit: it is not complete then."""
