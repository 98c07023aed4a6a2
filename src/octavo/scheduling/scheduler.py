"""``Scheduler``: continuous batching over an allocator. ``plan()`` acquires memory, ``apply()`` advances sequences.

Invariants
1. The oldest running sequence (position 0) is in every plan of a decode-first scheduler and is never a victim.
   Admission first with a token budget may pass it over, but only while new rows are admitted, so a bounded number
   of times.
2. Memory is taken for tokens of this plan alone (a contiguous allocator's chunk excepted).
3. A queue's head is never skipped, and everything queued fits an empty pool: what waits is admitted in the end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.events import (
    Admitted,
    Blocked,
    Evicted,
    PoolState,
    Preempted,
    RareEvent,
    Refused,
    StepRecord,
    Waste,
)
from octavo.core.plan import FinishReason, RowStart, StepPlan, StepResult
from octavo.core.request import Request
from octavo.memory import Allocator, HashChain
from octavo.scheduling.door import check
from octavo.scheduling.policies import UNLIMITED, WaitingQueue, deal, victim
from octavo.scheduling.running import Running
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.thrash import ThrashGuard


class Scheduler:
    """Not thread-safe. Calls alternate: ``plan``, ``apply``; ``add`` and ``finish`` may come at any time."""

    def __init__(self, config: SchedulerConfig, allocator: Allocator) -> None:
        """The allocator must be fresh and have a row for each of ``config.max_num_seqs`` sequences."""
        assert len(allocator.table.num_blocks) >= config.max_num_seqs, "a row for each running sequence"
        self.config = config
        self.allocator = allocator
        self.max_len = min(config.max_model_len, allocator.max_len)
        """Tokens of the longest sequence: the smaller of the model's and the pool's limit."""
        rows = config.max_num_seqs
        self.running = Running(rows)
        self.waiting = WaitingQueue(config.queue)
        # np.zeros commits no memory until a row is written to.
        size = allocator.block_size
        self._blocks = np.zeros((rows, -(-self.max_len // size), size), np.int32)
        self.tokens = self._blocks.reshape(rows, -1)
        """int32 [max_num_seqs, >= max_len]: known tokens of each row. ``_blocks`` is the same, block by block."""
        self._budget = config.max_num_batched_tokens or UNLIMITED
        self._shift = allocator.block_size.bit_length() - 1
        self._by_id: dict[str, Sequence] = {}
        self._free_rows = list(range(rows - 1, -1, -1))
        self._arrivals = 0
        self._step = 0
        self._events: list[RareEvent] = []
        self._started: list[RowStart] = []
        self._ended: list[int] = []
        self._doomed: list[tuple[Sequence, FinishReason]] = []
        """Finished from outside while their step was running; they leave when it is applied."""
        self._external = 0
        """Free slots that the head of the queue could not use in this step."""
        self._steady = False
        """Whether every running sequence decodes one token in this step."""
        self._plan: StepPlan | None = None
        self._ids: tuple[str, ...] = ()
        self._sampling: slice | NDArray[np.intp] = slice(0, 0)
        """Positions of the running sequences that sample in the plan."""
        self._guard = ThrashGuard.of(config)

    # ------------------------------------------------------------------ the queue

    @property
    def has_unfinished(self) -> bool:
        return bool(self.running.count or len(self.waiting))

    @property
    def num_running(self) -> int:
        return self.running.count

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def pool_state(self) -> PoolState:
        return self.allocator.state()

    def check(self, request: Request) -> None:
        """Raise RequestError for an empty prompt, ContextLengthError for a request that can never fit."""
        check(request, self.config.max_model_len, self.allocator.pool_len)

    def add(self, request: Request) -> None:
        """Queue a request. Raises what ``check`` raises, and RequestError for an id that is in use."""
        assert request.prompt_token_ids.dtype == np.int32, "names of blocks are taken from the bytes"
        if request.request_id in self._by_id:
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")
        try:
            self.check(request)
        except ContextLengthError as error:
            self._events.append(Refused(request.request_id, error.message))
            raise
        named = request.sampling.max_tokens
        limit = self.max_len if named is None else len(request.prompt_token_ids) + named
        chain = HashChain(request.cache_salt)
        sequence = Sequence(request, self._arrivals, limit, chain)
        self._arrivals += 1
        self._by_id[request.request_id] = sequence
        self.waiting.push(sequence)

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request now, whatever it is doing. False if it is unknown or has ended.

        While its step is running, its blocks stay until the step is applied; nobody else can be using them.
        """
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.queued:
            self.waiting.withdraw(sequence)
            self._events.append(sequence.finished(reason, len(sequence.output)))
        elif self._plan is not None:
            self._doomed.append((sequence, reason))
        else:
            self._end({self.running.sequences.index(sequence): reason})
        return True

    # ------------------------------------------------------------------ plan

    def plan(self) -> StepPlan | None:
        """The next step, its memory taken. An empty one if there are only ends or events to tell; None if nothing.

        Must be followed by ``apply`` of the same plan.
        """
        assert self._plan is None, "the previous plan was not applied"
        work = self.has_unfinished
        if not (work or self._ended or self._events):
            return None
        self._external = 0
        self._steady = False
        if self.config.order == "admission_first":
            residents = self.running.count
            left = self._admit(self._budget)
            self._serve(residents, left)
        else:
            left = self._serve(self.running.count, self._budget)
            self._admit(left)
        evicted = self.allocator.take_evicted()
        if evicted:
            self._events.append(Evicted(evicted))
        self._plan = plan = self._freeze()
        assert plan.num_tokens or not work, "a step makes progress when there is work"
        return plan

    def _serve(self, count: int, budget: int) -> int:
        """Schedule the ``count`` oldest running sequences and cover their tokens with blocks.

        Returns the tokens left of the budget: 0 after a preemption, so that no victim returns in the same step.
        """
        running = self.running
        if count == 0:
            return budget
        if running.backlog == count == running.count and count <= budget:  # everyone decodes
            self._steady = True
            running.scheduled[:count] = 1
            budget -= count
            if not self.allocator.unclean:
                short = (running.known[:count] > running.slots[:count]).nonzero()[0]
                return budget if not short.size or self._cover_decode(short) else 0
            stops = running.known[:count]
        else:
            scheduled = deal(running.known[:count] - running.computed[:count], budget)
            running.scheduled[:count] = scheduled
            stops = running.computed[:count] + scheduled
            budget -= int(scheduled.sum())
        lacking = stops > running.slots[:count]
        if self.allocator.unclean:
            unclean = np.isin(running.row[:count], list(self.allocator.unclean))
            lacking |= unclean & (running.scheduled[:count] > 0)
        short = lacking.nonzero()[0]
        return budget if not short.size or self._cover(short, stops) else 0

    def _cover_decode(self, short: NDArray[np.intp]) -> bool:
        """``_cover`` where everyone decodes, so that each of these wants one block more."""
        running = self.running
        served = self.allocator.grow_by_block(running.row[short])
        if served < len(short):
            running.slots[short[:served]] += self.allocator.block_size
            return self._cover(short[served:], running.known[: running.count])
        running.slots[short] += self.allocator.block_size
        return True

    def _cover(self, short: NDArray[np.intp], stops: NDArray[np.intp]) -> bool:
        """Blocks for the sequences at these positions, oldest first; whether nobody had to be preempted for it."""
        running, allocator = self.running, self.allocator
        alive: NDArray[np.bool_] | None = None
        while short.size:
            rows = running.row[short]
            served = allocator.grow(rows, running.computed[short], stops[short])
            running.slots[short[:served]] = allocator.table.num_blocks[rows[:served]] << self._shift
            short = short[served:]
            if not short.size:
                break
            if alive is None:
                alive = np.ones(running.count, np.bool_)
            position = victim(running.sequences, alive, self.config.queue)
            self._preempt(position, requester=running.ids[int(short[0])])
            alive[position] = False
            short = short[short != position]
        if alive is None:
            return True
        # Positions were stable until here, whoever left.
        running.remove((~alive).nonzero()[0].tolist())
        return False

    def _preempt(self, position: int, requester: str) -> None:
        running = self.running
        sequence, row = running.sequences[position], int(running.row[position])
        known, computed = int(running.known[position]), int(running.computed[position])
        before = self.allocator.state()
        blocks = self.allocator.release(row)
        discarded = 0
        if self.config.preemption == "restart":
            discarded = known - sequence.prompt_tokens
            sequence.restart(self.allocator.block_size)
        else:
            sequence.keep(self.tokens[row, sequence.prompt_tokens : known].copy())
        sequence.preemptions += 1
        if self._guard is not None:
            self._guard.preempted(self._step)
        self._vacate(row)
        self.waiting.push(sequence)
        after = self.allocator.state()
        self._events.append(
            Preempted(sequence.request_id, requester, discarded, computed, blocks, before, after)
        )

    def _vacate(self, row: int) -> None:
        self._free_rows.append(row)
        for i, start in enumerate(self._started):
            if start.row == row:  # admitted in this very plan: no executor has heard of it
                del self._started[i]
                return
        self._ended.append(row)

    def _admit(self, budget: int) -> int:
        """Admit from the queue's head while rows, budget and memory suffice. Returns the tokens left of the budget."""
        running, waiting, allocator = self.running, self.waiting, self.allocator
        if (guard := self._guard) is not None:
            self._events += guard.update(self._step, running.count, len(waiting))
            if guard.paused:
                return budget
        while budget > 0 and running.count < self.config.max_num_seqs and len(waiting):
            sequence, row = waiting.head(), self._free_rows[-1]
            headroom = self.config.watermark_blocks if running.count else 0
            cached = allocator.admit(row, sequence.claim, headroom, budget)
            if cached is None:
                assert running.count, "an empty pool takes whatever passed the door"
                if (found := allocator.blocked) is not None:
                    self._external = found.slots_free
                    counts = found.slots_needed, found.slots_free, found.runs_free, found.largest_run
                    self._events.append(Blocked(sequence.request_id, *counts))
                break
            waiting.pop()
            self._free_rows.pop()
            budget -= self._start(sequence, row, cached, budget)
        return budget

    def _start(self, sequence: Sequence, row: int, cached: int, budget: int) -> int:
        """Let an admitted sequence run. Returns the tokens of its first chunk."""
        known = len(sequence.token_ids)
        chunk = min(known - cached, budget)
        blocks = int(self.allocator.table.num_blocks[row])
        self.tokens[row, :known] = sequence.token_ids
        self.running.append(sequence, row, cached, known, blocks << self._shift, chunk)
        if sequence.preemptions == 0:
            sequence.cached_tokens = cached
        self._started.append(RowStart(row, sequence.request, sequence.output, cached))
        resumed = sequence.preemptions > 0
        self._events.append(
            Admitted(sequence.request_id, row, sequence.prompt_tokens, cached, blocks, resumed)
        )
        return chunk

    def _freeze(self) -> StepPlan:
        """The plan of what was scheduled. Arrays that equal those of other steps are shared; all are read-only."""
        if self._steady and not self._started:
            chosen = self.running.all_decoding()
        else:
            chosen = self.running.scheduled_ones(self.tokens)
        self._ids, self._sampling = chosen.request_ids, chosen.sampling
        plan = StepPlan(
            step=self._step,
            rows=chosen.rows,
            computed=chosen.computed,
            scheduled=chosen.scheduled,
            token_ids=chosen.token_ids,
            samples=chosen.samples,
            block_table=self.allocator.table.matrix,
            copies=self.allocator.take_copies(),
            started=tuple(self._started),
            ended=tuple(self._ended),
        )
        self._step += 1
        self._started.clear()
        self._ended.clear()
        return plan

    # ------------------------------------------------------------------ apply

    def apply(self, plan: StepPlan, result: StepResult) -> StepRecord:
        """Advance the sequences of the latest plan by its result, end those that are done, and say what happened."""
        assert plan is self._plan, "only the latest plan can be applied, and only once"
        self._plan = None
        running, count = self.running, self.running.count
        who = self._sampling
        sampled = len(result.token_ids)
        before = running.computed[:count] >> self._shift if self.allocator.caching else None
        running.computed[:count] += running.scheduled[:count]
        known = running.known[who]
        assert sampled == len(known) == len(result.stopped), "one token for each sampling row"
        self.tokens[running.row[who], known] = result.token_ids
        running.newest[who] = result.token_ids
        running.known[who] += 1
        running.backlog += sampled - plan.num_tokens
        running.written += plan.num_tokens
        if before is not None:
            self._publish(before)
        waste = self.allocator.waste(
            running.row[:count], running.computed[:count], running.written, self._external
        )
        full = running.known[who] >= running.limit[who]
        if self._doomed or np.count_nonzero(full) or np.count_nonzero(result.stopped):
            finished = self._retire(full, result.stopped)
        else:
            finished = np.zeros(sampled, np.uint8)
        return self._record(plan, result, finished, waste)

    def abandon(self, plan: StepPlan) -> None:
        """Forget the latest plan because its executor failed: its requests end with ERROR, all others go on.

        Whatever the executor wrote lies in blocks that these requests alone held and that nobody can find.
        """
        assert plan is self._plan, "only the latest plan can be abandoned, and only once"
        self._plan = None
        running = self.running
        lost = np.flatnonzero(np.isin(running.row[: running.count], plan.rows)).tolist()
        reasons = dict.fromkeys(lost, FinishReason.ERROR)
        for sequence, reason in self._doomed:
            reasons[running.sequences.index(sequence)] = reason
        self._doomed.clear()
        self._end(reasons)

    def _publish(self, first: NDArray[np.intp]) -> None:
        """Let the blocks that this step filled be found. ``first``: full blocks before it, of each sequence."""
        running = self.running
        last = running.computed[: running.count] >> self._shift
        filled = (last > first).nonzero()[0]
        if filled.size:
            sequences = running.sequences
            chains = [sequences[i].chain for i in filled.tolist()]
            self.allocator.publish(running.row[filled], first[filled], last[filled], chains, self._blocks)

    def _retire(self, full: NDArray[np.bool_], stopped: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """End the sequences that are done; uint8 [S] with the reason of each sampling row."""
        running = self.running
        finished = full * np.uint8(FinishReason.LENGTH)
        finished[stopped] = FinishReason.STOP
        sampling = np.arange(running.count)[self._sampling]
        for sequence, reason in self._doomed:
            finished[sampling == running.sequences.index(sequence)] = reason
        done = finished.nonzero()[0]
        reasons = {int(sampling[i]): FinishReason(int(finished[i])) for i in done.tolist()}
        for sequence, reason in self._doomed:  # those in the middle of their prompt, too
            reasons[running.sequences.index(sequence)] = reason
        self._doomed.clear()
        self._end(reasons)
        return finished

    def _end(self, reasons: dict[int, FinishReason]) -> None:
        """Remove the running sequences at these positions and give their memory back."""
        running = self.running
        for position, reason in reasons.items():
            sequence, row = running.sequences[position], int(running.row[position])
            blocks = self.allocator.release(row)
            if self._by_id.get(sequence.request_id) is sequence:
                del self._by_id[sequence.request_id]
            self._vacate(row)
            output = int(running.known[position]) - sequence.prompt_tokens
            self._events.append(sequence.finished(reason, output, blocks))
        running.remove(list(reasons))

    def _record(
        self, plan: StepPlan, result: StepResult, finished: NDArray[np.uint8], waste: Waste
    ) -> StepRecord:
        events = tuple(self._events)
        self._events.clear()
        return StepRecord(
            plan=plan,
            result=result,
            request_ids=self._ids,
            finished=finished,
            events=events,
            pool=self.allocator.state(),
            running=self.running.count,
            waiting=len(self.waiting),
            waste=waste,
        )
