"""``Ledger``: who waits, who runs in which row, and what is to be told of it. Planning and applying share it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.core.config import SchedulerConfig
from octavo.core.events import RareEvent
from octavo.core.plan import FinishReason, RowStart, StepPlan
from octavo.memory import Allocator
from octavo.scheduling.policies import WaitingQueue
from octavo.scheduling.running import Running
from octavo.scheduling.sequence import Sequence


class Ledger:
    """State, and the few operations by which sequences leave it from either half of a step."""

    def __init__(self, config: SchedulerConfig, allocator: Allocator) -> None:
        rows, size = config.max_num_seqs, allocator.block_size
        self.config = config
        self.allocator = allocator
        self.max_len = min(config.max_model_len, allocator.max_len)
        """Tokens of the longest sequence: the smaller of the model's and the pool's limit."""
        self.shift = size.bit_length() - 1
        """log2 of the block size."""
        self.running = Running(rows)
        self.waiting = WaitingQueue(config.queue)
        # np.zeros commits no memory until a row is written to.
        self.blocks = np.zeros((rows, -(-self.max_len // size), size), np.int32)
        """int32 [max_num_seqs, blocks, block_size]: known tokens of each row, block by block."""
        self.tokens = self.blocks.reshape(rows, -1)
        """The same, end to end: int32 [max_num_seqs, >= max_len]."""
        self.by_id: dict[str, Sequence] = {}
        self.free_rows = list(range(rows - 1, -1, -1))
        self.events: list[RareEvent] = []
        """Since the previous record."""
        self.started: list[RowStart] = []
        """For the plan that is being made."""
        self.ended: list[int] = []
        """Rows that lost their request since the latest plan."""
        self.doomed: list[tuple[Sequence, FinishReason]] = []
        """Finished from outside while their step was running; they leave when it is applied."""
        self.plan: StepPlan | None = None
        """The one that is running."""
        self.ids: tuple[str, ...] = ()
        """Request of each of its rows."""
        self.sampling: slice | NDArray[np.intp] = slice(0, 0)
        """Positions of the running sequences that sample in it."""
        self.external = 0
        """Free slots that the head of the queue could not use in it."""

    def vacate(self, row: int) -> None:
        """A row's sequence has left it."""
        self.free_rows.append(row)
        for i, start in enumerate(self.started):
            if start.row == row:  # admitted in this very plan: no executor has heard of it
                del self.started[i]
                return
        self.ended.append(row)

    def end(self, reasons: Mapping[int, FinishReason]) -> None:
        """Remove the running sequences at these positions and give their memory back."""
        running = self.running
        for position, reason in reasons.items():
            sequence, row = running.sequences[position], int(running.row[position])
            blocks = self.allocator.release(row)
            if self.by_id.get(sequence.request_id) is sequence:
                del self.by_id[sequence.request_id]
            self.vacate(row)
            output = int(running.known[position]) - sequence.prompt_tokens
            self.events.append(sequence.finished(reason, output, blocks))
        running.remove(list(reasons))
