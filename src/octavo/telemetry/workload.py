"""The line that says what the pool means for the requests that really come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from octavo.core.events import Finished, StepRecord
from octavo.memory import sizing

SEEN_MIN = 100
"""Ended requests before anything is said of them."""
SEEN_MAX = 1000
"""Ended requests that are looked at: the latest ones."""
PERIOD_S = 60.0
"""Between two lines, at least."""
CHANGE = 0.25
"""A length that moved by more than this share of the one last told is worth a line."""


def at_percentile(values: Sequence[int], percent: float) -> int:
    """The smallest value that at least ``percent`` % of them do not exceed."""
    return int(np.percentile(np.array(values), percent, method="inverted_cdf"))


def workload_line(tokens: Sequence[int], blocks: Sequence[int], num_blocks: int, max_num_seqs: int) -> str:
    """``tokens`` (prompt + answer) and ``blocks`` of ended requests, one of each a request, in the same order."""
    lengths = [at_percentile(tokens, percent) for percent in (50, 95)]
    held = [
        sizing.concurrency(at_percentile(blocks, percent), num_blocks, max_num_seqs) for percent in (50, 95)
    ]
    flags = {
        "pool": "the pool (--kv-cache-memory-bytes)",
        "max_num_seqs": f"--max-num-seqs {max_num_seqs}",
    }
    middle, high = (flags[found.limit] for found in held)
    limit = (
        f"{middle} is the limit for both"
        if middle == high
        else f"{middle} is the limit at p50, {high} at p95"
    )
    return (
        f"Workload: the latest {len(tokens):,} requests had {lengths[0]:,} tokens at p50 and {lengths[1]:,} at p95, "
        f"prompt and answer; the pool holds {held[0].fitting:,} and {held[1].fitting:,} of these at once; {limit}"
    )


class WorkloadLine:
    """A sink: says how many of the requests that it saw the pool holds, when it knows enough and when that changed.

    Nothing is known of them at start, so this is not among the boot lines.
    """

    def __init__(self, write: Callable[[str], None], num_blocks: int, max_num_seqs: int) -> None:
        self._write = write
        self._num_blocks = num_blocks
        self._max_num_seqs = max_num_seqs
        self._tokens: deque[int] = deque(maxlen=SEEN_MAX)
        self._blocks: deque[int] = deque(maxlen=SEEN_MAX)
        self._look_at = -np.inf
        """Not before then; seconds of the engine's clock."""
        self._told: tuple[int, int] | None = None
        """p50 and p95 of the latest line."""

    def emit(self, record: StepRecord, now: float) -> None:
        ended = [event for event in record.events if isinstance(event, Finished) and event.blocks]
        for event in ended:
            self._tokens.append(event.prompt_tokens + event.output_tokens)
            self._blocks.append(event.blocks)
        if ended and len(self._tokens) >= SEEN_MIN and now >= self._look_at:
            self._look_at = now + PERIOD_S
            lengths = (at_percentile(self._tokens, 50), at_percentile(self._tokens, 95))
            if self._told is None or any(map(_moved, self._told, lengths)):
                self._told = lengths
                self._write(workload_line(self._tokens, self._blocks, self._num_blocks, self._max_num_seqs))


def _moved(before: int, now: int) -> bool:
    return abs(now - before) > CHANGE * before
