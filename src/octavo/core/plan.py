"""``StepPlan`` and ``StepResult``: what goes to an executor and what comes back.

Flat arrays, so that a thousand running rows cost no thousand objects. A *row* is a line of the block table; a
request keeps its row from admission until it ends or is preempted. R = rows in this step, T = their tokens.

Here and in ``events`` values are structs: frozen as dataclasses can be, and made in a tenth of the time, which counts
for half a dozen a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from octavo.core.request import Request

NO_FORKS: NDArray[np.int32] = np.zeros((0, 2), np.int32)
NO_FORKS.setflags(write=False)
NO_TRANSFERS: NDArray[np.int32] = np.zeros((0, 2), np.int32)
NO_TRANSFERS.setflags(write=False)


class FinishReason(IntEnum):
    """Why a request ended. RUNNING (0) means it has not."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


class RowStart(Struct, frozen=True):
    """A request takes a row in this step: new, or resumed after a preemption."""

    row: int
    request: Request
    output_token_ids: NDArray[np.int32]
    """int32 [O]: tokens generated before a preemption and kept (recompute); empty for a new request."""
    cached_tokens: int
    """Leading tokens whose keys and values the row has already: found in the pool, or shared with the row it forks."""


class StepPlan(Struct, frozen=True, eq=False):
    """One step's work. Frozen: an executor may keep it, nobody may change it."""

    step: int
    rows: NDArray[np.int32]
    """int32 [R]: block-table row of each scheduled sequence."""
    computed: NDArray[np.int32]
    """int32 [R]: tokens computed before this step = position of its first scheduled token."""
    scheduled: NDArray[np.int32]
    """int32 [R]: tokens of the sequence in this step, at least 1; 0 for a row that forks in it (see ``forks``)."""
    token_ids: NDArray[np.int32]
    """int32 [T], T = scheduled.sum(): input tokens, row after row."""
    samples: NDArray[np.bool_]
    """bool [R]: whether the last scheduled token is the sequence's newest, so that one is sampled after it."""
    block_table: NDArray[np.int32]
    """int32 [max_num_seqs, max_blocks], physical block numbers: the table itself, valid until the next ``plan()``."""
    copies: NDArray[np.int32]
    """int32 [C, 2]: (source, destination) blocks to copy before anything is written (copy-on-write)."""
    started: tuple[RowStart, ...]
    """Rows that take a request in this step, before it runs."""
    ended: tuple[int, ...]
    """Rows that lost their request (finished, aborted, preempted) since the last plan; may be in ``started`` too."""
    forks: NDArray[np.int32] = NO_FORKS
    """int32 [F, 2]: (parent, child) rows. The parent's prompt is complete with this step, the child shares its blocks,
    computes nothing yet, and samples its own first token from the parent's logits."""
    transfers: NDArray[np.int32] = NO_TRANSFERS
    """int32 [M, 2]: (source, destination) blocks to copy between the pool and the second tier, in this order and before
    ``copies``. Block t of the tier has the number that follows the pool's last one by t + 1; one that is copied onto
    itself has lost its content. A row that waits for its blocks is in ``started`` now and computes in a later step."""
    transfer_names: Mapping[int, bytes] = field(default_factory=dict)
    """Transfer -> name of the content that it takes to the tier, to be found by it again; a victim's have none."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class TokenLogprobs(Struct, frozen=True, eq=False):
    """Natural log-probabilities at one position, of the raw logits (before penalties and temperature)."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token of the vocabulary."""
    top_ids: NDArray[np.int32]
    """int32 [k], most likely first."""
    top_logprobs: NDArray[np.float32]
    """float32 [k]."""


class Candidates(Struct, frozen=True, eq=False):
    """The likeliest next tokens of one beam, likeliest first: ``count`` of them, where the vocabulary has as many."""

    token_ids: NDArray[np.int32]
    """int32 [C]."""
    logprobs: NDArray[np.float32]
    """float32 [C]: natural logarithms, over the whole vocabulary."""
    stops: NDArray[np.bool_]
    """bool [C]: whether the beam ends with this token."""

    @staticmethod
    def count(width: int, ends: int) -> int:
        """C for a search of ``width`` beams with ``ends`` end tokens: were all of these among the best continuations,
        or all tokens of earlier groups, ``width`` others would be left."""
        return max(2, 1 + ends) * width


class StepResult(Struct, frozen=True, eq=False):
    """S = number of rows whose ``samples`` is true, in the plan's order."""

    token_ids: NDArray[np.int32]
    """int32 [S]: the sampled tokens; of a beam, whose next token the search chooses, the likeliest."""
    stopped: NDArray[np.bool_]
    """bool [S]: whether the executor ends the request with this token (a stop token; simulated: the scripted end)."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """Row -> the sampled token's, for requests that asked."""
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Row -> those of the prompt tokens that this step's chunk predicts, for requests that asked."""
    candidates: Mapping[int, Candidates] = field(default_factory=dict)
    """Row -> what a beam search chooses from, for every sampling row of one."""
    damaged: tuple[int, ...] = ()
    """Transfers of the plan whose source, a block of the tier, did not hold what had been written to it."""
