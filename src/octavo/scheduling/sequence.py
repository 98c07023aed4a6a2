"""``Sequence``: one answer on its way through the scheduler, and ``Group``: the answers of one request.

``Beams`` are the rows of a beam search.

An object an answer, never one a step. Of a request with n answers the first is the *leader*: it alone is queued and
computes the prompt, and then the others, until then *pending*, fork from it and go their own ways.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.beam_params import BeamParams
from octavo.core.events import Finished
from octavo.core.plan import FinishReason
from octavo.core.request import Request
from octavo.memory import BlockTable, Claim, HashChain, Offload, Swapped
from octavo.scheduling.beam_search import BeamSearch

NO_TOKENS: NDArray[np.int32] = np.zeros(0, np.int32)
NO_TOKENS.setflags(write=False)


class Group:
    """Counts the blocks of the answers of one request, each once however many of them hold it."""

    __slots__ = ("blocks_peak", "rows")

    def __init__(self) -> None:
        self.rows: set[int] = set()
        """Rows that its answers hold."""
        self.blocks_peak = 0
        """Most distinct blocks at once, as far as measured."""

    def measure(self, table: BlockTable) -> None:
        """To be called before an answer leaves its row: between two of these moments the blocks only become more."""
        distinct = len(np.unique(np.concatenate([table.row(row) for row in self.rows])))
        self.blocks_peak = max(self.blocks_peak, distinct)


class Beams:
    """A beam search on its way: one sequence, the leader, queues for it, and stands among its rows while it runs."""

    __slots__ = ("leader", "max_tokens", "params", "rows", "search")

    def __init__(self, params: BeamParams, max_tokens: int) -> None:
        self.params = params
        self.max_tokens = max_tokens
        self.leader: Sequence | None = None
        self.search = BeamSearch(params, max_tokens)
        self.rows: list[int] = []
        """Row of each place of the search; the leader's alone until the prompt is computed, none in the queue."""

    @property
    def spare_rows(self) -> int:
        """Rows that it may need beyond those that it has, or beyond its first."""
        return self.params.width - max(1, len(self.rows))

    def restart(self) -> None:
        """It lost its rows, and with them every beam's keys and values. The same search will find the same beams."""
        self.rows = []
        self.search = BeamSearch(self.params, self.max_tokens)


class Sequence:
    __slots__ = (
        "arrival",
        "beams",
        "cached_tokens",
        "chain",
        "claim",
        "group",
        "leader",
        "limit",
        "output",
        "pending",
        "preemptions",
        "queued",
        "request",
        "request_id",
        "token_ids",
    )

    def __init__(
        self, request: Request, arrival: int, limit: int, chain: HashChain, group: Group | None = None
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival
        """Position in the order of ``add``; unique."""
        self.limit = limit
        """Tokens at which it ends by length: prompt + max_tokens, or the longest sequence."""
        self.chain = chain
        self.output: NDArray[np.int32] = NO_TOKENS
        """int32 [O]: generated tokens kept through the latest preemption (a running one's are in the token matrix)."""
        self.token_ids: NDArray[np.int32] = request.prompt_token_ids
        """int32 [P + O]: what is known when it is next admitted."""
        self.preemptions = 0
        self.cached_tokens = 0
        """Prompt tokens found in the pool at its first admission."""
        self.queued = False
        self.group = group
        """None for the only answer of its request."""
        self.leader: Sequence | None = None
        """Whose prompt it waits for; None once it has a place of its own."""
        self.pending: list[Sequence] = []
        """The answers that fork from this one when its prompt is computed. Their rows are kept free."""
        self.beams: Beams | None = None
        """The search whose row this is; None for a sampled answer."""
        self.claim = self._claim()
        """What it brings to the door when it is next admitted."""

    @property
    def leads(self) -> bool:
        """Whether rows are kept for others besides its own."""
        return bool(self.pending) or (self.beams is not None and self.beams.leader is self)

    @property
    def spare_rows(self) -> int:
        """How many."""
        return len(self.pending) if self.beams is None else self.beams.spare_rows

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    def _claim(self, resumed: bool = False, swapped: Swapped | None = None) -> Claim:
        # Prompt log-probabilities need every prompt position computed, so nothing is looked up for them.
        lookup = self.request.sampling.prompt_logprobs is None
        return Claim(self.request_id, self.token_ids, self.limit, self.chain, lookup, resumed, swapped)

    def finished(self, reason: FinishReason, output_tokens: int, blocks: int = 0) -> Finished:
        """``blocks``: what its row held at the end; 0 for one that ended without a row."""
        return Finished(
            self.request_id,
            reason,
            self.prompt_tokens,
            output_tokens,
            self.preemptions,
            self.cached_tokens,
            blocks,
            0 if self.group is None else self.group.blocks_peak,
        )

    def pass_on(self) -> Sequence | None:
        """Its place to the next of those that wait for its prompt; None if there are none."""
        if not self.pending:
            return None
        heir, *others = self.pending
        self.pending = []
        heir.leader, heir.pending = None, others
        for other in others:
            other.leader = heir
        return heir

    def keep(self, output: NDArray[np.int32], swapped: Swapped | None = None) -> None:
        """Resume from the prompt and this output. The names of its full blocks stay valid.

        ``swapped``: what waits in the second tier, if anything.
        """
        self.output = output
        prompt = self.request.prompt_token_ids
        self.token_ids = np.concatenate((prompt, output)) if len(output) else prompt
        self.claim = self._claim(resumed=True, swapped=swapped)

    def unswap(self, offload: Offload) -> None:
        """What it has in the second tier, if anything, is given up: it ends in the queue, or recomputes."""
        if self.claim.swapped is not None:
            offload.drop(self.claim.swapped)
            self.claim = self._claim(resumed=True)

    def restart(self, block_size: int) -> None:
        """Resume from the prompt alone."""
        self.output = NO_TOKENS
        self.token_ids = self.request.prompt_token_ids
        self.chain.truncate(self.prompt_tokens // block_size)
        self.claim = self._claim(resumed=True)
