"""From step records to answers: each running request's text, and the requests that a stop string ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.events import (
    Admitted,
    BeamAnswer,
    BeamsDecided,
    Damaged,
    Finished,
    Forked,
    Preempted,
    StepRecord,
)
from octavo.core.plan import FinishReason, TokenLogprobs
from octavo.core.request import Request
from octavo.text.stop import TextStream


@dataclass(slots=True)
class Completion:
    """The growing answer to one request. ``text`` only ever grows, and never holds part of a stop string."""

    request: Request
    stream: TextStream
    added_at: float
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.RUNNING
    first_token_at: float | None = None
    last_token_at: float | None = None
    cached_tokens: int = 0
    blocks_used: int = 0
    """Most blocks at once; of one of several answers to a prompt, the most that they held together until it ended."""
    preemptions: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    beam: BeamAnswer | None = None
    """What a beam search found; None before it is over, and for sampled answers."""
    replayed: int = 0
    """Tokens at the end of ``token_ids`` that a restart threw away and that will come again, the same ones: a
    request's tokens depend on its seed and its positions alone."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finished(self) -> bool:
        return self.finish_reason != FinishReason.RUNNING

    @property
    def stop_reason(self) -> str | int | None:
        """What ended it: a stop string, a token id of ``stop_token_ids``, or None (the model's own end, a limit)."""
        if self.stream.matched is not None:
            return self.stream.matched
        last = self.token_ids[-1] if self.token_ids else None
        named = self.finish_reason == FinishReason.STOP and last in self.request.sampling.stop_token_ids
        return last if named else None

    def push(self, token: int, reason: FinishReason, logprobs: TokenLogprobs | None, now: float) -> bool:
        """Take one sampled token; true if its text completes a stop string."""
        if self.replayed:
            assert token == self.token_ids[-self.replayed], "a restarted request must repeat its tokens"
            self.replayed -= 1
            return False
        self.token_ids.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        self.first_token_at = now if self.first_token_at is None else self.first_token_at
        self.last_token_at = now
        if reason == FinishReason.STOP:
            return False  # a stop token's text is not part of the answer
        text, stopped = self.stream.push(token)
        if text:
            self.pieces.append(text)
        return stopped

    def take_beam(self, answer: BeamAnswer, now: float) -> None:
        """The whole answer at once."""
        self.beam = answer
        for i, token in enumerate(answer.token_ids, start=1):
            ends = answer.stopped and i == len(answer.token_ids)
            self.push(token, FinishReason.STOP if ends else FinishReason.RUNNING, None, now)

    def take_prompt_logprobs(self, computed: int, chunk: tuple[TokenLogprobs, ...]) -> None:
        """Those of the prompt tokens from ``computed + 1`` on; a chunk that is computed again after a preemption
        replaces itself."""
        del self.prompt_logprobs[computed:]
        self.prompt_logprobs.extend(chunk)

    def end(self, reason: FinishReason) -> None:
        """Take the held-back rest of the text; it may complete a stop string, which is then why the answer ended."""
        rest, stopped = self.stream.flush()
        self.finish_reason = FinishReason.STOP if stopped else reason
        if rest:
            self.pieces.append(rest)


class CompletionBoard:
    """A Sink that keeps the unfinished completions by request id.

    A stop string can only be seen in text, one layer above the scheduler: such requests gather in ``stopped`` and the
    owner of the engine ends them before the next step (so no token follows the one that completed the string).
    """

    def __init__(self) -> None:
        self.completions: dict[str, Completion] = {}
        self._searches: dict[str, list[Completion]] = {}
        """The answers of each beam search, by the id under which it runs."""
        self.stopped: list[str] = []
        self.changed: list[Completion] = []
        """Completions that got a token or ended in the newest record."""

    def add(self, completion: Completion) -> None:
        self.completions[completion.request.request_id] = completion

    def add_search(self, request_id: str, completions: list[Completion]) -> None:
        self._searches[request_id] = completions

    def _of(self, request_id: str) -> list[Completion]:
        """The answers that an event is about."""
        if request_id in self._searches:
            return self._searches[request_id]
        completion = self.completions.get(request_id)
        return [] if completion is None else [completion]

    def emit(self, record: StepRecord, now: float) -> None:
        self.changed = []
        ends: list[Finished] = []
        forks: list[Forked] = []
        for event in record.events:
            if isinstance(event, Finished):
                ends.append(event)
            elif isinstance(event, Forked):
                forks.append(event)
            elif isinstance(event, (Admitted, Preempted, Damaged)):
                for completion in self._of(event.request_id):
                    _note(completion, event)
            elif isinstance(event, BeamsDecided):
                for completion, answer in zip(self._of(event.request_id), event.answers, strict=False):
                    completion.take_beam(answer, now)
        self._take_tokens(record, now)
        for fork in forks:
            self._share_prompt(fork)
        for end in ends:
            for completion in self._of(end.request_id):
                completion.blocks_used = max(completion.blocks_used, end.blocks, end.group_blocks)
                completion.end(_reason(completion, end))
                self.changed.append(completion)
            self.completions.pop(end.request_id, None)
            self._searches.pop(end.request_id, None)

    def _share_prompt(self, fork: Forked) -> None:
        """What the leader's prompt told belongs to each answer to it."""
        completion, leader = self.completions.get(fork.request_id), self.completions.get(fork.parent_id)
        if completion is not None and leader is not None:
            completion.cached_tokens = leader.cached_tokens
            completion.prompt_logprobs = list(leader.prompt_logprobs)

    def _take_tokens(self, record: StepRecord, now: float) -> None:
        plan, result = record.plan, record.result
        positions = plan.samples.nonzero()[0].tolist()
        told = zip(positions, result.token_ids.tolist(), record.finished.tolist(), strict=True)
        for position, token, ended in told:
            completion = self.completions.get(record.request_ids[position])
            if completion is None:
                continue
            reason = FinishReason(ended) if ended else FinishReason.RUNNING
            logprobs = result.logprobs.get(int(plan.rows[position])) if result.logprobs else None
            if completion.push(token, reason, logprobs, now):
                self.stopped.append(completion.request.request_id)
            if not ended:
                self.changed.append(completion)
        if result.prompt_logprobs:
            for row_index, row in enumerate(plan.rows.tolist()):
                completion = self.completions.get(record.request_ids[row_index])
                if completion is not None and row in result.prompt_logprobs:
                    completion.take_prompt_logprobs(
                        int(plan.computed[row_index]), result.prompt_logprobs[row]
                    )


def _note(completion: Completion, event: Admitted | Preempted | Damaged) -> None:
    if isinstance(event, Damaged):
        if not completion.preemptions:
            completion.cached_tokens -= event.tokens
    elif isinstance(event, Preempted):
        completion.preemptions += 1
        completion.blocks_used = max(completion.blocks_used, event.blocks_released)
        if completion.token_ids:  # a beam search has told none
            completion.replayed += event.tokens_discarded
    elif not event.resumed:
        completion.cached_tokens = event.cached_tokens


def _reason(completion: Completion, end: Finished) -> FinishReason:
    """A beam's own reason: the search has only one for all of them."""
    if completion.beam is None:
        return end.reason
    return FinishReason.STOP if completion.beam.stopped else FinishReason.LENGTH
