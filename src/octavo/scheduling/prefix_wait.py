"""``PrefixWait``: requests that arrive together with the same prefix compute it once.

The second of them would find nothing, because the first has not computed it yet, and would compute all of it beside the
first. If it waits until the first is done, it finds the blocks, and both are sooner.
"""

from __future__ import annotations

from octavo.memory import Allocator
from octavo.scheduling.running import Running
from octavo.scheduling.sequence import Sequence

SPARED_LEAST = 0.5
"""Share of the tokens it would have to compute that waiting must spare a request. Below, a step more is the greater
loss: a request that shares a short system prompt alone does not wait for it."""


class PrefixWait:
    """Holds the queue's head back while a running row is computing the blocks that the head misses first.

    It never hangs. The row runs, so that it computes, ends or is preempted in a bounded number of steps, and holds
    nobody back afterwards; and while the head waits, nobody overtakes it to become the next one that it would wait for.
    (To let others pass would use what is left of the budget, but a queue that skips its head is no longer first come,
    first served: preempted requests could not find their place by arrival alone.)
    """

    def __init__(self, running: Running, allocator: Allocator) -> None:
        self._running = running
        self._lookups = allocator.lookups
        self._size = allocator.block_size
        self._held: Sequence | None = None
        """The latest one that was held back."""

    def holds(self, head: Sequence) -> bool:
        """Whether the head had better wait for a step."""
        running = self._running
        if running.backlog == running.count:  # everyone decodes: nobody computes a prompt
            return False
        if head.claim.swapped is not None:  # it has its blocks in the second tier
            return False
        coming = self._lookups.awaited(head.claim)
        if coming is None:
            return False
        found, blocks = coming
        missing = len(head.token_ids) - found * self._size
        if blocks * self._size < SPARED_LEAST * missing:
            return False
        if head is not self._held:
            self._held = head
            self._lookups.totals.waits += 1
        return True
