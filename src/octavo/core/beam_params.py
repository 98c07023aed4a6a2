"""``BeamParams``: how a beam search goes. Names and meanings are those of transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from octavo.core.errors import RequestError

WIDTH_MAX = 128


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Raises RequestError, naming field and value, for a value outside its range."""

    width: int = 1
    """Beams that are kept at each step, in all groups together."""
    length_penalty: float = 1.0
    """A finished beam's score is its log-probability divided by its length to this power: above 0 favours long ones."""
    early_stopping: bool | Literal["never"] = False
    """When a group ends: as soon as it has as many finished beams as it is wide (true); when no running beam is better,
    at its present length, than the worst of these (false); when none can become so (never)."""
    groups: int = 1
    """Diverse beam search (Vijayakumar et al. 2016): groups that search one after the other in each step."""
    diversity_penalty: float = 0.0
    """Subtracted from a token's log-probability, when beams are chosen, once for each beam of an earlier group that
    took the same token in this step; it stays out of the beams' own scores."""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= WIDTH_MAX:
            raise RequestError(
                f"the beam width is {self.width}; it must be from 1 to {WIDTH_MAX}", param="beam_width"
            )
        if not math.isfinite(self.length_penalty):
            raise RequestError("length_penalty must be a finite number", param="length_penalty")
        if self.early_stopping not in (True, False, "never"):
            raise RequestError(
                f"early_stopping is {self.early_stopping!r}; it must be true, false or 'never'",
                param="early_stopping",
            )
        if self.groups < 1 or self.width % self.groups:
            raise RequestError(
                f"{self.width} beams cannot be divided into {self.groups} groups; num_beam_groups must divide the"
                " beam width",
                param="num_beam_groups",
            )
        if not (math.isfinite(self.diversity_penalty) and self.diversity_penalty >= 0):
            raise RequestError("diversity_penalty must be a number of at least 0", param="diversity_penalty")
        if self.diversity_penalty and self.groups == 1:
            raise RequestError("diversity_penalty needs num_beam_groups above 1", param="diversity_penalty")
