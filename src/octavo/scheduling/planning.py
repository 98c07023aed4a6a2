"""``Planner``: who computes what in the next step. It takes memory, preempts and admits; it advances nobody."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.events import Admitted, Blocked, Copied, Evicted, Forked, PoolState, Preempted, Spilled
from octavo.core.plan import NO_FORKS, RowStart, StepPlan
from octavo.scheduling.beams import carry_out
from octavo.scheduling.ledger import Ledger
from octavo.scheduling.policies import UNLIMITED, deal, victim
from octavo.scheduling.prefix_wait import PrefixWait
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.thrash import ThrashGuard


class Planner:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._config = ledger.config
        self._allocator = ledger.allocator
        self._running = ledger.running
        self._budget = ledger.config.max_num_batched_tokens or UNLIMITED
        self._step = 0
        self._steady = False
        """Whether every running sequence decodes one token in this step."""
        self._guard = ThrashGuard.of(ledger.config)
        self._wait = PrefixWait(ledger.running, ledger.allocator) if ledger.config.prefix_wait else None

    def plan(self) -> StepPlan:
        ledger = self._ledger
        ledger.external = 0
        if ledger.moves:
            carry_out(ledger)
        self._steady = False
        if self._config.order == "admission_first":
            residents = self._running.count
            left = self._admit(self._budget)
            self._serve(residents, left)
        else:
            left = self._serve(self._running.count, self._budget)
            self._admit(left)
        if ledger.forked:
            ledger.forked.clear()
        forks = self._fork() if ledger.leaders else NO_FORKS
        evicted = self._allocator.take_evicted()
        if evicted:
            ledger.events.append(Evicted(evicted))
        return self._freeze(forks)

    # ------------------------------------------------------------------ those who run

    def _serve(self, count: int, budget: int) -> int:
        """Schedule the ``count`` oldest running sequences and cover their tokens with blocks.

        Returns the tokens left of the budget: 0 after a preemption, so that no victim returns in the same step.
        """
        running, allocator = self._running, self._allocator
        if count == 0:
            return budget
        if running.backlog == count == running.count and count <= budget:  # everyone decodes
            self._steady = True
            running.scheduled[:count] = 1
            budget -= count
            if not allocator.unclean:
                short = (running.known[:count] > running.slots[:count]).nonzero()[0]
                return budget if not short.size or self._cover_decode(short) else 0
            stops = running.known[:count]
        else:
            scheduled = deal(running.known[:count] - running.computed[:count], budget)
            if self._ledger.leaders:
                self._keep_beams_together(scheduled)
            running.scheduled[:count] = scheduled
            stops = running.computed[:count] + scheduled
            budget -= int(scheduled.sum())
        lacking = stops > running.slots[:count]
        if allocator.unclean:
            unclean = np.isin(running.row[:count], list(allocator.unclean))
            lacking |= unclean & (running.scheduled[:count] > 0)
        short = lacking.nonzero()[0]
        return budget if not short.size or self._cover(short, stops) else 0

    def _cover_decode(self, short: NDArray[np.intp]) -> bool:
        """``_cover`` where everyone decodes, so that each of these wants one block more."""
        running, allocator = self._running, self._allocator
        served = allocator.grow_by_block(running.row[short])
        if served < len(short):
            running.slots[short[:served]] += allocator.block_size
            return self._cover(short[served:], running.known[: running.count])
        running.slots[short] += allocator.block_size
        return True

    def _cover(self, short: NDArray[np.intp], stops: NDArray[np.intp]) -> bool:
        """Blocks for the sequences at these positions, oldest first; whether nobody had to be preempted for it."""
        running, allocator = self._running, self._allocator
        alive: NDArray[np.bool_] | None = None
        while short.size:
            rows = running.row[short]
            served = allocator.grow(rows, running.computed[short], stops[short])
            running.slots[short[:served]] = allocator.table.num_blocks[rows[:served]] << self._ledger.shift
            short = short[served:]
            if not short.size:
                break
            if alive is None:
                alive = np.ones(running.count, np.bool_)
            position = victim(running.sequences, alive, self._config.queue)
            requester = running.ids[int(short[0])]
            if running.sequences[position].beams is None:
                self._preempt(position, requester)
                alive[position] = False
            else:
                alive[self._preempt_beams(position, requester)] = False
            short = short[alive[short]]
        if alive is None:
            return True
        # Positions were stable until here, whoever left.
        running.remove((~alive).nonzero()[0].tolist())
        return False

    def _keep_beams_together(self, scheduled: NDArray[np.intp]) -> None:
        """A search whose beams the budget would divide waits for the next step: a choice is between all of them. The
        oldest one's always fit (see ``door``)."""
        for leader in self._ledger.leaders:
            if leader.beams is None or len(leader.beams.rows) == 1:
                continue
            mine = [i for i, one in enumerate(self._running.sequences) if one.beams is leader.beams]
            if not scheduled[mine].all():
                scheduled[mine] = 0

    def _preempt(self, position: int, requester: str) -> None:
        ledger, running, allocator = self._ledger, self._running, self._allocator
        sequence, row = running.sequences[position], int(running.row[position])
        known, computed = int(running.known[position]), int(running.computed[position])
        before = allocator.state()
        if sequence.group is not None:
            sequence.group.measure(allocator.table)
        swapped = None
        if self._config.preemption == "swap":
            swapped = allocator.swap_out(row, computed, sequence.claim, self._config.swap_tokens_per_block)
        blocks = ledger.leave(sequence, row)
        discarded = 0
        if self._config.preemption == "restart":
            discarded = known - sequence.prompt_tokens
            sequence.restart(allocator.block_size)
        else:
            sequence.keep(ledger.tokens[row, sequence.prompt_tokens : known].copy(), swapped)
        self._push_back(sequence, requester, discarded, computed, blocks, before)

    def _preempt_beams(self, position: int, requester: str) -> list[int]:
        """Preempt a whole search; the positions of its rows. It starts again from its prompt, whatever ``preemption``
        says: its beams without the blocks that they share might not fit where they were."""
        ledger, running = self._ledger, self._running
        beams, group = running.sequences[position].beams, running.sequences[position].group
        assert beams is not None and beams.leader is not None and group is not None
        leader, before = beams.leader, self._allocator.state()
        positions = [i for i, sequence in enumerate(running.sequences) if sequence.beams is beams]
        known, computed = int(running.known[position]), int(running.computed[position])
        group.measure(self._allocator.table)
        blocks = sum(ledger.leave(running.sequences[i], int(running.row[i])) for i in positions)
        beams.restart()
        leader.restart(self._allocator.block_size)
        discarded = (known - leader.prompt_tokens) * len(positions)
        self._push_back(leader, requester, discarded, computed, blocks, before)
        return positions

    def _push_back(
        self,
        sequence: Sequence,
        requester: str,
        discarded: int,
        computed: int,
        blocks: int,
        before: PoolState,
    ) -> None:
        """A victim without a row waits again."""
        ledger = self._ledger
        sequence.preemptions += 1
        if self._guard is not None:
            self._guard.preempted(self._step)
        ledger.waiting.push(sequence)
        after = self._allocator.state()
        swapped = 0 if sequence.claim.swapped is None else sequence.claim.swapped.tokens
        lost = computed - swapped
        ledger.events.append(
            Preempted(sequence.request_id, requester, discarded, lost, blocks, before, after, swapped)
        )

    # ------------------------------------------------------------------ those who wait

    def _admit(self, budget: int) -> int:
        """Admit from the queue's head while rows, budget and memory suffice. Returns the tokens left of the budget."""
        ledger, running, allocator = self._ledger, self._running, self._allocator
        waiting = ledger.waiting
        if (guard := self._guard) is not None:
            ledger.events += guard.update(self._step, running.count, len(waiting))
            if guard.paused:
                return budget
        rows = self._config.max_num_seqs - running.count
        if ledger.leaders:
            rows -= ledger.rows_reserved
        while budget > 0 and rows > 0 and len(waiting):
            sequence = waiting.head()
            needed = 1 if sequence.group is None else 1 + sequence.spare_rows
            if needed > rows or (self._wait is not None and self._wait.holds(sequence)):
                break
            row = ledger.free_rows[-1]
            cached = allocator.admit(row, sequence.claim, self._headroom(), budget)
            if cached is None:
                assert running.count, "an empty pool takes whatever passed the door"
                if (found := allocator.blocked) is not None:
                    ledger.external = found.slots_free
                    counts = found.slots_needed, found.slots_free, found.runs_free, found.largest_run
                    ledger.events.append(Blocked(sequence.request_id, *counts))
                break
            waiting.pop()
            ledger.free_rows.pop()
            rows -= needed
            budget -= self._start(sequence, row, cached, budget)
        return budget

    def _headroom(self) -> int:
        """Blocks that an admission must leave: what is admitted into the last one is preempted by who runs already."""
        count = self._running.count
        if count == 0:
            return 0
        growth = count * self._config.headroom_tokens if self._allocator.grows else 0
        return max(self._config.watermark_blocks, -(-growth // self._allocator.block_size))

    def _start(self, sequence: Sequence, row: int, cached: int, budget: int) -> int:
        """Let an admitted sequence run. Returns the tokens of its first chunk."""
        ledger = self._ledger
        known = len(sequence.token_ids)
        # Of blocks that come from the tier it is not known yet whether they are intact.
        loading = self._allocator.offload.loading.get(row)
        chunk = 0 if loading is not None else min(known - cached, budget)
        blocks = int(self._allocator.table.num_blocks[row])
        ledger.tokens[row, :known] = sequence.token_ids
        self._running.append(sequence, row, cached, known, blocks << ledger.shift, chunk)
        if sequence.group is not None:
            sequence.group.rows.add(row)
            if sequence.beams is not None:
                sequence.beams.rows = [row]
            if sequence.leads:
                ledger.leaders.append(sequence)
        resumed = sequence.preemptions > 0
        loaded = 0 if loading is None else cached - (loading.first << ledger.shift)
        if not resumed:
            sequence.cached_tokens = cached
        ledger.started.append(RowStart(row, sequence.request, sequence.output, cached))
        ledger.events.append(
            Admitted(sequence.request_id, row, sequence.prompt_tokens, cached, blocks, resumed, loaded)
        )
        return chunk

    def _fork(self) -> NDArray[np.int32]:
        """A row for everyone whose leader's prompt this step completes, right behind the leader: they are as old as it.

        int32 [F, 2]: (leader's row, child's row).
        """
        ledger, running = self._ledger, self._running
        pairs: list[tuple[int, int]] = []
        for leader in list(ledger.leaders):
            if leader.beams is not None:
                continue
            position = running.sequences.index(leader)
            known = int(running.known[position])
            if int(running.computed[position] + running.scheduled[position]) < known:
                continue
            parent = int(running.row[position])
            for place, child in enumerate(leader.pending, start=1):
                row = ledger.free_rows.pop()
                pairs.append((parent, row))
                self._start_fork(leader, child, parent, row, position + place)
            ledger.leaders.remove(leader)
            leader.pending = []
        return np.array(pairs, np.int32) if pairs else NO_FORKS

    def _start_fork(self, leader: Sequence, child: Sequence, parent: int, row: int, position: int) -> None:
        ledger = self._ledger
        known = leader.prompt_tokens
        self._allocator.fork(parent, row)
        blocks = int(self._allocator.table.num_blocks[row])
        ledger.tokens[row, :known] = child.token_ids
        self._running.insert(position, child, row, known, known, blocks << ledger.shift)
        child.leader = None
        assert child.group is not None, "whoever forks is one of several answers"
        child.group.rows.add(row)
        ledger.forked.append((leader, child))
        ledger.started.append(RowStart(row, child.request, child.output, known))
        ledger.events.append(Forked(child.request_id, leader.request_id, row, known, blocks))

    # ------------------------------------------------------------------ the plan

    def _freeze(self, forks: NDArray[np.int32]) -> StepPlan:
        """The plan of what was scheduled. Arrays that equal those of other steps are shared; all are read-only."""
        ledger = self._ledger
        copies = self._allocator.take_copies()
        if len(copies):
            ledger.events.append(Copied(tuple((source, copy) for source, copy in copies.tolist())))
        transfers = self._allocator.offload.take()
        if transfers.names:
            ledger.events.append(Spilled(tuple(transfers.pairs[list(transfers.names), 0].tolist())))
        if self._steady and not ledger.started:
            chosen = self._running.all_decoding()
        else:
            chosen = self._running.scheduled_ones(ledger.tokens, forking=len(forks) > 0)
        ledger.ids, ledger.sampling = chosen.request_ids, chosen.sampling
        ledger.plan = plan = StepPlan(
            step=self._step,
            rows=chosen.rows,
            computed=chosen.computed,
            scheduled=chosen.scheduled,
            token_ids=chosen.token_ids,
            samples=chosen.samples,
            block_table=self._allocator.table.matrix,
            copies=copies,
            started=tuple(ledger.started),
            ended=tuple(ledger.ended),
            forks=forks,
            transfers=transfers.pairs,
            transfer_names=transfers.names,
        )
        self._step += 1
        ledger.started.clear()
        ledger.ended.clear()
        return plan
