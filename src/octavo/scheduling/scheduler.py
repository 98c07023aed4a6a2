"""``Scheduler``: continuous batching over an allocator. ``plan()`` acquires memory, ``apply()`` advances sequences.

Invariants
1. The oldest running sequence (position 0) is in every plan of a decode-first scheduler and is never a victim; but
   whoever is admitted with blocks from the second tier computes from the next plan on.
   Admission first with a token budget may pass it over, but only while new rows are admitted, so a bounded number
   of times.
2. Memory is taken for tokens of this plan alone (a contiguous allocator's chunk excepted).
3. A queue's head is never skipped, and everything queued fits an empty pool: what waits is admitted in the end.

Here is who may come and who goes from outside; ``planning`` and ``applying`` are the two halves of a step.
"""

from __future__ import annotations

import numpy as np

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.events import PoolState, Refused, StepRecord
from octavo.core.plan import FinishReason, StepPlan, StepResult
from octavo.core.request import Request
from octavo.memory import Allocator, HashChain
from octavo.scheduling.applying import Applier
from octavo.scheduling.beams import carry_out
from octavo.scheduling.door import Limits, check
from octavo.scheduling.ledger import Ledger
from octavo.scheduling.planning import Planner
from octavo.scheduling.sequence import Beams, Group, Sequence


class Scheduler:
    """Not thread-safe. Calls alternate: ``plan``, ``apply``; ``add`` and ``finish`` may come at any time."""

    def __init__(self, config: SchedulerConfig, allocator: Allocator) -> None:
        """The allocator must be fresh and have a row for each of ``config.max_num_seqs`` sequences."""
        assert len(allocator.table.num_blocks) >= config.max_num_seqs, "a row for each running sequence"
        self.config = config
        self.allocator = allocator
        self._ledger = ledger = Ledger(config, allocator)
        self._planner = Planner(ledger)
        self._applier = Applier(ledger)
        self.max_len = ledger.max_len
        """Tokens of the longest sequence: the smaller of the model's and the pool's limit."""
        self.running = ledger.running
        self.waiting = ledger.waiting
        self.tokens = ledger.tokens
        """int32 [max_num_seqs, >= max_len]: known tokens of each row."""
        self._arrivals = 0
        self._limits = Limits(
            model_len=config.max_model_len,
            pool_len=allocator.pool_len,
            num_blocks=allocator.num_blocks,
            block_size=allocator.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            can_fork=allocator.can_fork,
        )

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

    @property
    def rows_reserved(self) -> int:
        """Rows that stay free for answers whose prompt another one computes."""
        return self._ledger.rows_reserved

    @property
    def in_flight(self) -> bool:
        """Whether a plan is running: made, and neither applied nor abandoned."""
        return self._ledger.plan is not None

    @property
    def forking(self) -> list[int]:
        """Rows of the plan that is running which fork in it."""
        plan = self._ledger.plan
        return [] if plan is None else plan.forks[:, 1].tolist()

    def check(self, request: Request) -> None:
        """Raise RequestError for an empty prompt or too many answers, ContextLengthError for what can never fit."""
        check(request, self._limits)

    def add(self, request: Request) -> None:
        """Queue a request. Raises what ``check`` raises, and RequestError for an id that is in use.

        From here on its answers go by the ids of ``request.choices()``.
        """
        assert request.prompt_token_ids.dtype == np.int32, "names of blocks are taken from the bytes"
        ledger = self._ledger
        choices = request.choices()
        for choice in (request, *choices):
            if choice.request_id in ledger.by_id:
                raise RequestError(f"request id {choice.request_id!r} is in use", param="request_id")
        try:
            self.check(request)
        except ContextLengthError as error:
            ledger.events.append(Refused(request.request_id, error.message))
            raise
        if request.sampling.beam is not None:
            self._add_search(request)
            return
        named = request.sampling.max_tokens
        limit = self.max_len if named is None else len(request.prompt_token_ids) + named
        group = Group() if len(choices) > 1 else None
        sequences = []
        for choice in choices:
            chain = HashChain(choice.cache_salt)
            sequences.append(Sequence(choice, self._arrivals, limit, chain, group))
            ledger.by_id[choice.request_id] = sequences[-1]
            self._arrivals += 1
        if group is not None and self.allocator.can_fork:
            leader, *others = sequences
            leader.pending = others
            for other in others:
                other.leader = leader
            sequences = [leader]
        for sequence in sequences:
            self.waiting.push(sequence)

    def _add_search(self, request: Request) -> None:
        params, prompt = request.sampling.beam, len(request.prompt_token_ids)
        assert params is not None
        longest = self._limits.longest_search(prompt, params.width)
        named = request.sampling.max_tokens
        tokens = longest - prompt if named is None else named
        # One beyond its last token: the search ends itself, for all its rows at once.
        leader = Sequence(
            request, self._arrivals, prompt + tokens + 1, HashChain(request.cache_salt), Group()
        )
        leader.beams = Beams(params, tokens)
        leader.beams.leader = leader
        self._arrivals += 1
        for one in (request, *request.choices()):
            self._ledger.by_id[one.request_id] = leader
        self.waiting.push(leader)

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request now, whatever it is doing; a beam search by any of its ids. False if it is not known any more.

        While its step is running, its blocks stay until the step is applied; nobody else can be using them.
        """
        ledger = self._ledger
        sequence = ledger.by_id.get(request_id)
        if sequence is None:
            return False
        ledger.forget(sequence)
        if ledger.moves:
            carry_out(ledger)
        if sequence.leader is not None:
            leader = sequence.leader
            leader.pending.remove(sequence)
            if not leader.leads and leader in ledger.leaders:  # it computes its prompt for nobody else now
                ledger.leaders.remove(leader)
            ledger.events.append(sequence.finished(reason, 0))
        elif sequence.queued:
            self.waiting.withdraw(sequence)
            sequence.unswap(self.allocator.offload)
            ledger.events.append(sequence.finished(reason, len(sequence.output)))
            ledger.pass_on(sequence, reason)
        elif ledger.plan is not None:
            ledger.doomed.append((sequence, reason))
        else:
            ledger.end({self.running.sequences.index(sequence): reason})
        return True

    # ------------------------------------------------------------------ a step

    def plan(self) -> StepPlan | None:
        """The next step, its memory taken. An empty one if there are only ends or events to tell; None if nothing.

        Must be followed by ``apply`` of the same plan.
        """
        ledger = self._ledger
        assert ledger.plan is None, "the previous plan was not applied"
        work = self.has_unfinished
        if not (work or ledger.ended or ledger.events or self.allocator.offload.pending):
            return None
        plan = self._planner.plan()
        assert plan.num_tokens or len(plan.transfers) or not work, "a step makes progress when there is work"
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> StepRecord:
        """Advance the sequences of the latest plan by its result, end those that are done, and say what happened."""
        assert plan is self._ledger.plan, "only the latest plan can be applied, and only once"
        self._ledger.plan = None
        return self._applier.apply(plan, result)

    def abandon(self, plan: StepPlan) -> None:
        """Forget the latest plan because its executor failed: its requests end with ERROR, all others go on.

        Whatever the executor wrote lies in blocks that these requests alone held and that nobody can find.
        """
        assert plan is self._ledger.plan, "only the latest plan can be abandoned, and only once"
        self._ledger.plan = None
        self._applier.abandon(plan)
