"""What a step's price depends on: a few sums over its plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from octavo.core.plan import StepPlan


class PlanFeatures(NamedTuple):
    """Counts of one step; everything that a cost model may look at."""

    tokens: int
    """Tokens that are computed."""
    sequences: int
    """Rows that compute something."""
    sampled: int
    """Rows whose logits are computed."""
    kv_tokens: int
    """Tokens whose keys and values are read: of each row all that it has at the step's end, once."""
    pairs: int
    """(query, key) pairs of causal attention, per head and layer."""
    copied_blocks: int = 0
    """Blocks that are copied before the step (copy-on-write)."""
    transferred_blocks: int = 0
    """Blocks that are copied between the pool and the second tier before the step."""


def features(plan: StepPlan) -> PlanFeatures:
    sequences = len(plan.rows)
    tokens = plan.num_tokens
    if tokens == sequences and not len(
        plan.forks
    ):  # one token each: it looks at everything before it and at itself
        context = int(np.add.reduce(plan.computed, dtype=np.int64)) + tokens
        return PlanFeatures(
            tokens,
            sequences,
            int(np.count_nonzero(plan.samples)),
            context,
            context,
            len(plan.copies),
            len(plan.transfers),
        )
    computed, scheduled = plan.computed.astype(np.int64), plan.scheduled.astype(np.int64)
    pairs = int((scheduled * computed + scheduled * (scheduled + 1) // 2).sum())
    context = int((computed + scheduled)[scheduled > 0].sum())
    forks = len(plan.forks)
    sampled = int(np.count_nonzero(plan.samples)) - forks
    return PlanFeatures(
        tokens, sequences - forks, sampled, context, pairs, len(plan.copies), len(plan.transfers)
    )
