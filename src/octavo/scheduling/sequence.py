"""``Sequence``: one request on its way through the scheduler. An object a request, never one a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import Finished
from octavo.core.plan import FinishReason
from octavo.core.request import Request
from octavo.memory import Claim, HashChain

NO_TOKENS: NDArray[np.int32] = np.zeros(0, np.int32)
NO_TOKENS.setflags(write=False)


class Sequence:
    __slots__ = (
        "arrival",
        "cached_tokens",
        "chain",
        "claim",
        "limit",
        "output",
        "preemptions",
        "queued",
        "request",
        "request_id",
        "token_ids",
    )

    def __init__(self, request: Request, arrival: int, limit: int, chain: HashChain) -> None:
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
        self.queued = True
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
        """``blocks``: what its row held at the end; 0 for one that ended in the queue."""
        return Finished(
            self.request_id,
            reason,
            self.prompt_tokens,
            output_tokens,
            self.preemptions,
            self.cached_tokens,
            blocks,
        )

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
