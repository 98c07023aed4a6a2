"""``Applier``: what a step's result changes. It advances sequences, publishes blocks and ends what is done."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import Damaged, StepRecord, Waste
from octavo.core.plan import FinishReason, StepPlan, StepResult
from octavo.scheduling.beams import decide
from octavo.scheduling.ledger import Ledger


class Applier:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._allocator = ledger.allocator
        self._running = ledger.running

    def apply(self, plan: StepPlan, result: StepResult) -> StepRecord:
        ledger, running = self._ledger, self._running
        count, who, shift = running.count, ledger.sampling, ledger.shift
        sampled = len(result.token_ids)
        before = running.computed[:count] >> shift if self._allocator.caching else None
        running.computed[:count] += running.scheduled[:count]
        known = running.known[who]
        assert sampled == len(known) == len(result.stopped), "one token for each sampling row"
        ledger.tokens[running.row[who], known] = result.token_ids
        running.newest[who] = result.token_ids
        running.known[who] += 1
        running.backlog += sampled - plan.num_tokens
        running.written += plan.num_tokens
        if self._allocator.offload.loading:
            self._settle(plan, result, before)
        if before is not None:
            self._publish(before)
            for leader, child in ledger.forked:
                child.chain.digests = leader.chain.digests.copy()
        waste = self._allocator.waste(
            running.row[:count], running.computed[:count], running.written, ledger.external
        )
        full = running.known[who] >= running.limit[who]
        if ledger.doomed or np.count_nonzero(full) or np.count_nonzero(result.stopped):
            finished = self._retire(full, result.stopped)
        else:
            finished = np.zeros(sampled, np.uint8)
        if result.candidates:
            for leader in ledger.leaders.copy():
                if leader.beams is not None and leader.beams.rows[0] in result.candidates:
                    decide(ledger, leader, result.candidates)
        return self._record(plan, result, finished, waste)

    def abandon(self, plan: StepPlan) -> None:
        ledger, running = self._ledger, self._running
        if len(plan.transfers):
            self._distrust(plan)
        taking_part = [*plan.rows.tolist(), *(start.row for start in plan.started)]
        lost = np.flatnonzero(np.isin(running.row[: running.count], taking_part)).tolist()
        reasons = dict.fromkeys(lost, FinishReason.ERROR)
        for sequence, reason in ledger.doomed:
            reasons[running.sequences.index(sequence)] = reason
        ledger.doomed.clear()
        ledger.end(reasons)

    def _settle(self, plan: StepPlan, result: StepResult, first: NDArray[np.intp] | None) -> None:
        """Blocks have come from the second tier. Who got a damaged one computes from there on; the intact ones are
        published like computed ones. ``first`` as in ``_publish``."""
        ledger, running, offload = self._ledger, self._running, self._allocator.offload
        damaged = {int(plan.transfers[i, 0]) - offload.first for i in result.damaged}
        for row, (number, intact) in offload.settle(damaged).items():
            position = int((running.row[: running.count] == row).argmax())
            sequence, computed = running.sequences[position], int(running.computed[position])
            if first is not None:
                first[position] = number
            lost = computed - min(computed, (number + intact) << ledger.shift)
            if not lost:
                continue
            running.computed[position] -= lost
            running.backlog += lost
            running.written -= lost
            if not sequence.preemptions:
                sequence.cached_tokens -= lost
            self._allocator.lookups.done[row] = number + intact
            ledger.events.append(Damaged(sequence.request_id, lost))

    def _distrust(self, plan: StepPlan) -> None:
        """Nobody knows whether the plan's transfers were made."""
        forgotten = self._allocator.offload.distrust(plan.transfers)
        waiting = self._ledger.waiting
        for sequence in waiting.first(len(waiting)):
            swapped = sequence.claim.swapped
            if swapped is not None and not forgotten.isdisjoint(swapped.blocks):
                sequence.unswap(self._allocator.offload)

    def _publish(self, first: NDArray[np.intp]) -> None:
        """Let the blocks that this step filled be found. ``first``: full blocks before it, of each sequence."""
        running = self._running
        last = running.computed[: running.count] >> self._ledger.shift
        filled = (last > first).nonzero()[0]
        if filled.size:
            sequences = running.sequences
            chains = [sequences[i].chain for i in filled.tolist()]
            self._allocator.publish(
                running.row[filled], first[filled], last[filled], chains, self._ledger.blocks
            )

    def _retire(self, full: NDArray[np.bool_], stopped: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """End the sequences that are done; uint8 [S] with the reason of each sampling row."""
        ledger, running = self._ledger, self._running
        finished = full * np.uint8(FinishReason.LENGTH)
        finished[stopped] = FinishReason.STOP
        sampling = np.arange(running.count)[ledger.sampling]
        for sequence, reason in ledger.doomed:
            finished[sampling == running.sequences.index(sequence)] = reason
        done = finished.nonzero()[0]
        reasons = {int(sampling[i]): FinishReason(int(finished[i])) for i in done.tolist()}
        for sequence, reason in ledger.doomed:  # those in the middle of their prompt, too
            reasons[running.sequences.index(sequence)] = reason
        ledger.doomed.clear()
        ledger.end(reasons)
        return finished

    def _record(
        self, plan: StepPlan, result: StepResult, finished: NDArray[np.uint8], waste: Waste
    ) -> StepRecord:
        ledger = self._ledger
        events = tuple(ledger.events)
        ledger.events.clear()
        return StepRecord(
            plan=plan,
            result=result,
            request_ids=ledger.ids,
            finished=finished,
            events=events,
            pool=self._allocator.state(),
            running=self._running.count,
            waiting=len(ledger.waiting),
            waste=waste,
        )
