"""Which of a step's tokens get logits: the newest of each row that samples, and those that score a prompt.

A row that forks computes no token: it is sampled from the logits of its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import StepPlan
from octavo.core.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPrompt:
    """A part of a prompt whose log-probabilities were asked for, and that this step's logits predict."""

    row: int
    request: Request
    rows: slice
    """Its rows of the logits."""
    positions: NDArray[np.int32]
    """int32 [n]: position of each; the token after it is in the prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class LogitRows:
    """The rows of a step's logits, in their order: each scheduled row's, row after row."""

    tokens: NDArray[np.int32]
    """int32 [L]: flat token indices."""
    sampled: NDArray[np.intp]
    """[S]: which of the L each sampling row is sampled from, in the plan's order."""
    prompts: tuple[ScoredPrompt, ...]


def logit_rows(plan: StepPlan, scoring: Mapping[int, Request]) -> LogitRows:
    """``scoring``: row -> request, for the rows whose request asked for the log-probabilities of its prompt."""
    ends = np.cumsum(plan.scheduled, dtype=np.int32)
    if not len(plan.forks) and (not scoring or scoring.keys().isdisjoint(plan.rows.tolist())):
        newest = ends[plan.samples] - np.int32(1)
        return LogitRows(newest, np.arange(len(newest)), ())
    parents = dict(plan.forks[:, ::-1].tolist())
    tokens: list[int] = []
    sampled: list[int] = []
    place: dict[int, int] = {}
    """Row -> which of the logits are its newest token's. A parent stands in front of its forks."""
    prompts: list[ScoredPrompt] = []
    columns = (plan.rows, plan.computed, plan.scheduled, plan.samples, ends)
    for row, computed, scheduled, samples, end in zip(*(column.tolist() for column in columns), strict=True):
        if (request := scoring.get(row)) is not None:
            # A token at position p predicts the one at p + 1: of a prompt, all but the last token predict one of it.
            scored = min(scheduled, len(request.prompt_token_ids) - 1 - computed)
            if scored > 0:
                positions = np.arange(computed, computed + scored, dtype=np.int32)
                prompts.append(
                    ScoredPrompt(row, request, slice(len(tokens), len(tokens) + scored), positions)
                )
                tokens.extend(range(end - scheduled, end - scheduled + scored))
        if samples and row in parents:
            sampled.append(place[parents[row]])
        elif samples:
            place[row] = len(tokens)
            sampled.append(len(tokens))
            tokens.append(end - 1)
    return LogitRows(np.array(tokens, np.int32), np.array(sampled, np.intp), tuple(prompts))
