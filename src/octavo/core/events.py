"""What happened. One ``StepRecord`` a step holds arrays; an object of its own is for rare things."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.core.plan import FinishReason, StepPlan, StepResult


class PoolState(Struct, frozen=True):
    """live + cached + free == total, after every step."""

    live: int
    cached: int
    free: int

    @property
    def total(self) -> int:
        return self.live + self.cached + self.free


class TierState(Struct, frozen=True):
    """held + spilled + free == total, after every step: blocks of the second tier."""

    held: int
    """Preempted requests wait for them."""
    spilled: int
    """Content that the pool forgot, and that can still be found."""
    free: int

    @property
    def total(self) -> int:
        return self.held + self.spilled + self.free


class Waste(Struct, frozen=True):
    """Slots that are held and hold no token, by cause (Kwon et al. 2023, section 3.1), and the ones that do."""

    written: int
    """Slots that hold computed tokens; a shared slot counts once."""
    reserved: int
    """Slots that the running requests may still write: held now, of use later."""
    internal: int
    """Slots inside an allocation that no token of their request can fill: rounding, the partial block's rest."""
    external: int
    """Free slots that the head of the queue cannot use although enough are free."""


class Admitted(Struct, frozen=True):
    request_id: str
    row: int
    prompt_tokens: int
    cached_tokens: int
    blocks: int
    """Blocks the row holds now."""
    resumed: bool
    """Whether the request had been preempted."""
    loaded_tokens: int = 0
    """Those of the cached tokens that come from the second tier."""


class Preempted(Struct, frozen=True):
    """``requester`` needed a block; ``request_id``, the victim, lost its row."""

    request_id: str
    requester: str
    tokens_discarded: int
    """Generated tokens thrown away (restart), else 0."""
    tokens_to_recompute: int
    """Tokens whose keys and values are lost (before any prefix hit)."""
    blocks_released: int
    pool_before: PoolState
    pool_after: PoolState
    tokens_swapped: int = 0
    """Tokens whose keys and values wait in the second tier (swap); none of these is to recompute."""


class Refused(Struct, frozen=True):
    """The request can never fit and was not queued."""

    request_id: str
    message: str


class Blocked(Struct, frozen=True):
    """The head of the queue did not fit although enough slots were free: external fragmentation."""

    request_id: str
    slots_needed: int
    slots_free: int
    runs_free: int
    largest_run: int


class Evicted(Struct, frozen=True):
    """Cached blocks lost their content to make room in this step."""

    blocks: tuple[int, ...]


class Spilled(Struct, frozen=True):
    """Content of evicted blocks went to the second tier in this step."""

    blocks: tuple[int, ...]
    """Blocks of the pool, as in ``Evicted``; those that the tier had from before are not copied again."""


class Damaged(Struct, frozen=True):
    """Blocks of the second tier were not what had been written to them: a request computes these tokens again."""

    request_id: str
    tokens: int
    """Of those that its ``Admitted`` told as loaded."""


class Finished(Struct, frozen=True):
    request_id: str
    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    cached_tokens: int
    """Prompt tokens found in the pool at first admission."""
    blocks: int = 0
    """Blocks of the row when it ended; 0 for a request that ended in the queue."""
    group_blocks: int = 0
    """Most distinct blocks that the answers of its request have held together until now; 0 where there is but one."""


class Forked(Struct, frozen=True):
    """A row takes over all blocks of another: one of several answers whose prompt is computed, or a beam that has two
    continuations among the best."""

    request_id: str
    parent_id: str
    """The request whose row it was; of a beam its own."""
    row: int
    tokens: int
    """Tokens that it need not compute."""
    blocks: int
    """Blocks that the row shares, the partial one too."""


class BeamAnswer(Struct, frozen=True):
    """A finished beam."""

    token_ids: tuple[int, ...]
    """Its end token included, if it has one."""
    logprob: float
    """Sum over its tokens."""
    score: float
    """The same over its length to the power of the length penalty."""
    stopped: bool
    """Whether it ended with an end token, and not by its length."""


class BeamsDecided(Struct, frozen=True):
    """A beam search is over; its ``Finished`` follows."""

    request_id: str
    answers: tuple[BeamAnswer, ...]
    """As many as were asked for, best first."""


class Copied(Struct, frozen=True):
    """Blocks that several rows held were copied in this step, because one of the rows writes into them."""

    copies: tuple[tuple[int, int], ...]
    """(source, destination) blocks, as in the plan."""


class AdmissionPaused(Struct, frozen=True):
    """Preemptions came too often, so nobody is admitted for a while."""

    preemptions: int
    """Within the last ``window`` steps."""
    window: int
    running: int
    waiting: int


class AdmissionResumed(Struct, frozen=True):
    """The pressure has fallen."""

    steps: int
    """How long admission paused."""
    waiting: int


RareEvent = (
    Admitted
    | Preempted
    | Refused
    | Blocked
    | Evicted
    | Spilled
    | Damaged
    | Forked
    | Copied
    | BeamsDecided
    | Finished
    | AdmissionPaused
    | AdmissionResumed
)


class StepRecord(Struct, frozen=True, eq=False):
    """Everything a step did. ``request_ids[i]`` is the request of ``plan.rows[i]``."""

    plan: StepPlan
    result: StepResult
    request_ids: tuple[str, ...]
    finished: NDArray[np.uint8]
    """uint8 [S]: FinishReason of each sampling row, in the plan's order."""
    events: tuple[RareEvent, ...]
    """Rare events since the previous record, in the order in which they happened."""
    pool: PoolState
    running: int
    waiting: int
    waste: Waste = Waste(0, 0, 0, 0)
    """While the step ran: its tokens written, its finished rows not yet gone. The four add up to the slots in use,
    and without ``external`` to the slots held."""
