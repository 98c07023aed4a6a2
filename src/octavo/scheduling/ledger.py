"""``Ledger``: who waits, who runs in which row, and what is to be told of it. Planning and applying share it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.core.config import SchedulerConfig
from octavo.core.events import RareEvent
from octavo.core.plan import FinishReason, RowStart, StepPlan
from octavo.memory import Allocator
from octavo.scheduling.beam_search import Survivor
from octavo.scheduling.policies import WaitingQueue
from octavo.scheduling.running import Running
from octavo.scheduling.sequence import Group, Sequence


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
        self.leaders: list[Sequence] = []
        """Running ones for whom more rows are kept than they have: others fork from them, or beams."""
        self.forked: list[tuple[Sequence, Sequence]] = []
        """(leader, child) of the plan that is running."""
        self.moves: list[tuple[Sequence, list[Survivor]]] = []
        """What beam searches decided and the next plan carries out."""
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

    @property
    def rows_reserved(self) -> int:
        """Rows that stay free for those who will fork."""
        return sum(leader.spare_rows for leader in self.leaders)

    def leave(self, sequence: Sequence, row: int) -> int:
        """Take a sequence's row and blocks from it; how many blocks it held."""
        if sequence.group is not None:
            sequence.group.rows.discard(row)
            if sequence.leads:
                self.leaders.remove(sequence)
        blocks = self.allocator.release(row)
        self.vacate(row)
        return blocks

    def vacate(self, row: int) -> None:
        """A row that holds nothing any more goes back to the free ones."""
        self.free_rows.append(row)
        for i, start in enumerate(self.started):
            if start.row == row:  # admitted in this very plan: no executor has heard of it
                del self.started[i]
                return
        self.ended.append(row)

    def end(self, reasons: Mapping[int, FinishReason]) -> None:
        """Remove the running sequences at these positions and give their memory back. A beam ends its whole search."""
        running = self.running
        if self.leaders:
            reasons = self._with_beams(reasons)
        measured: set[Group] = set()
        for position, reason in reasons.items():
            sequence, row = running.sequences[position], int(running.row[position])
            leads = True
            if (group := sequence.group) is not None:
                if group not in measured:  # before the first of them leaves
                    group.measure(self.allocator.table)
                    measured.add(group)
                leads = sequence.beams is None or sequence.leads
            computed = int(running.computed[position])
            self.allocator.lookups.ended(sequence.chain, sequence.prompt_tokens, self.tokens[row], computed)
            blocks = self.leave(sequence, row)
            if not leads:  # a search is told of once
                continue
            self.forget(sequence)
            output = int(running.known[position]) - sequence.prompt_tokens
            self.events.append(sequence.finished(reason, output, blocks))
            if sequence.pending:
                self.pass_on(sequence, reason)
        running.remove(list(reasons))

    def _with_beams(self, reasons: Mapping[int, FinishReason]) -> Mapping[int, FinishReason]:
        sequences = self.running.sequences
        searches = {id(sequences[i].beams): reason for i, reason in reasons.items() if sequences[i].beams}
        more = {i: searches[id(one.beams)] for i, one in enumerate(sequences) if id(one.beams) in searches}
        return {**reasons, **more}

    def forget(self, sequence: Sequence) -> None:
        """Its ids are free again."""
        if self.by_id.get(sequence.request_id) is sequence:
            del self.by_id[sequence.request_id]
        if sequence.beams is not None:
            for choice in sequence.request.choices():
                if self.by_id.get(choice.request_id) is sequence:
                    del self.by_id[choice.request_id]

    def pass_on(self, sequence: Sequence, reason: FinishReason) -> None:
        """A sequence has ended: those that wait for its prompt go on without it, or fail with it."""
        if reason == FinishReason.ERROR:
            for other in sequence.pending:
                del self.by_id[other.request_id]
                self.events.append(other.finished(reason, 0))
        elif (heir := sequence.pass_on()) is not None:
            self.waiting.push(heir)
