"""``Sequence``: one answer on its way through the scheduler, and ``Group``: the answers of one request.

An object an answer, never one a step. Of a request with n answers the first is the *leader*: it alone is queued and
computes the prompt, and then the others, until there *pending*, fork from it and go their own ways.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import Finished
from octavo.core.plan import FinishReason
from octavo.core.request import Request
from octavo.memory import BlockTable, Claim, HashChain

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


class Sequence:
    __slots__ = (
        "arrival",
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
        self.claim = self._claim()
        """What it brings to the door when it is next admitted."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    def _claim(self) -> Claim:
        # Prompt log-probabilities need every prompt position computed, so nothing is looked up for them.
        lookup = self.request.sampling.prompt_logprobs is None
        return Claim(self.request_id, self.token_ids, self.limit, self.chain, lookup)

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

    def keep(self, output: NDArray[np.int32]) -> None:
        """Resume from the prompt and this output. The names of its full blocks stay valid."""
        self.output = output
        prompt = self.request.prompt_token_ids
        self.token_ids = np.concatenate((prompt, output)) if len(output) else prompt
        self.claim = self._claim()

    def restart(self, block_size: int) -> None:
        """Resume from the prompt alone."""
        self.output = NO_TOKENS
        self.token_ids = self.request.prompt_token_ids
        self.chain.truncate(self.prompt_tokens // block_size)
        self.claim = self._claim()
