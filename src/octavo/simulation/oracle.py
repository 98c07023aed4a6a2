"""Chunk sizes that know the true output lengths: what no real allocator can be, and what the real ones are measured by.

The lengths come from the workload through the simulation, never through ``Request`` (rule 4: no peeking).
"""

from __future__ import annotations

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.memory import Buddy, Claim, ContiguousAllocator, FirstFit
from octavo.simulation.requests import SimulatedRequest


class TrueLengths:
    """Output tokens of the requests that are on their way. Forget each one when it has ended."""

    def __init__(self) -> None:
        self._output: dict[str, int] = {}

    def learn(self, simulated: SimulatedRequest) -> None:
        named = simulated.request.sampling.max_tokens
        for request_id, output, _ in simulated.scripts():
            self._output[request_id] = output if named is None else min(output, named)

    def forget(self, request_id: str) -> None:
        self._output.pop(request_id, None)

    def of(self, request_id: str) -> int:
        """True output tokens of a request."""
        return self._output[request_id]

    def exact(self, claim: Claim) -> int:
        """Prompt and true output (``claim`` is a request's first: a contiguous chunk is never preempted)."""
        return min(len(claim.token_ids) + self._output[claim.request_id], claim.limit)

    def output_rounded_up(self, claim: Claim) -> int:
        """Prompt and the true output rounded up to a power of two: at most twice what is needed (Orca's Pow2)."""
        output = self._output[claim.request_id]
        return min(len(claim.token_ids) + (1 << (output - 1).bit_length()), claim.limit)


def oracle_allocator(
    cache: CacheConfig,
    config: SchedulerConfig,
    lengths: TrueLengths,
    *,
    round_up: bool = False,
    guess: bool = False,
) -> ContiguousAllocator:
    """A contiguous allocator over true lengths. ``round_up``: the chunk to a power of two; ``guess``: the output."""
    return ContiguousAllocator(
        "oracle",
        cache.num_blocks,
        cache.block_size,
        Buddy(cache.num_blocks) if cache.placement == "buddy" else FirstFit(cache.num_blocks),
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        chunk_size=lengths.output_rounded_up if guess else lengths.exact,
        round_up=round_up,
    )
