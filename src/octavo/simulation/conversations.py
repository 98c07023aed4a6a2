"""Closed loops: the next turn is asked some time after the previous answer was complete."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.simulation.content import VOCABULARY, Segment, content_key, content_tokens
from octavo.simulation.lengths import Length
from octavo.simulation.random_numbers import Uniform, exponential
from octavo.simulation.requests import SimulatedRequest, make_request
from octavo.simulation.workloads import ANSWER, NO_PREFIX, PROMPT, SharedPrefix, answer_tokens

NO_HISTORY: NDArray[np.int32] = np.zeros(0, np.int32)
NO_HISTORY.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and the length of its answer."""

    output_tokens: int
    think_s: float = 0.0
    """Seconds between the previous answer (or the conversation's start) and this turn."""
    segments: tuple[Segment, ...] = ()
    """Text of this turn: behind the history, or, where ``keep`` is 0, the whole prompt."""
    keep: int | None = None
    """Tokens of the history (earlier prompt and answer) that stand in front; None keeps all."""


@dataclass(slots=True)
class _Conversation:
    number: int
    turns: Iterator[Turn]
    history: NDArray[np.int32]
    asked: int = 0


class Conversations:
    """Conversations that start at given times and then go at the pace of their answers.

    With ``concurrency`` users, a conversation that is due starts only when fewer than that many are going on, and one
    that ends lets the next begin: what a load generator with a fixed number of clients does.
    """

    def __init__(
        self,
        conversations: Iterator[tuple[float, Iterator[Turn]]],
        *,
        concurrency: int | None = None,
        max_tokens: int | None = None,
        vocabulary: int = VOCABULARY,
    ) -> None:
        """``conversations``: (start in seconds, its turns), by start; each has at least one turn."""
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"--concurrency is {concurrency}; it must be at least 1", param="--concurrency")
        self._coming = conversations
        self._next = next(conversations, None)
        self._concurrency = concurrency
        self._max_tokens = max_tokens
        self._vocabulary = vocabulary
        self._due: list[tuple[float, int, _Conversation, Turn]] = []
        self._asking: dict[str, tuple[_Conversation, SimulatedRequest]] = {}
        self._started = 0
        self._ended = 0
        self._now = 0.0
        self.turns_unasked = 0
        """Turns behind a refused one: their conversation ended with it."""

    @property
    def active(self) -> int:
        """Conversations that have started and not ended."""
        return self._started - self._ended

    def _room(self) -> bool:
        return self._concurrency is None or self.active < self._concurrency

    def _begin(self, now_s: float) -> None:
        """Start what is due."""
        while self._next is not None and self._next[0] <= now_s and self._room():
            start_s, turns = self._next
            conversation = _Conversation(self._started, turns, NO_HISTORY)
            self._started += 1
            self._next = next(self._coming, None)
            # One that had to wait for a place starts when it gets it.
            self._ask_next(conversation, max(start_s, self._now if self._concurrency else start_s))

    def _ask_next(self, conversation: _Conversation, since_s: float) -> None:
        turn = next(conversation.turns, None)
        if turn is None:
            self._ended += 1
            return
        heapq.heappush(self._due, (since_s + turn.think_s, conversation.number, conversation, turn))

    def take(self, now_s: float, waiting: int) -> SimulatedRequest | None:
        self._begin(now_s)
        if not self._due or self._due[0][0] > now_s:
            return None
        due_s, _, conversation, turn = heapq.heappop(self._due)
        number = conversation.asked
        conversation.asked += 1
        history = conversation.history if turn.keep is None else conversation.history[: turn.keep]
        prompt = np.concatenate((history, content_tokens(turn.segments, self._vocabulary)))
        asked = make_request(
            due_s,
            f"conversation-{conversation.number}-turn-{number}",
            prompt,
            turn.output_tokens,
            content_key(ANSWER, conversation.number, number),
            max_tokens=self._max_tokens,
        )
        self._asking[asked.request_id] = conversation, asked
        return asked

    def next_arrival_s(self) -> float | None:
        times = [self._due[0][0]] if self._due else []
        if self._next is not None and self._room():
            times.append(max(self._next[0], self._now))
        return min(times, default=None)

    def finished(self, request_id: str, now_s: float, output_tokens: int) -> None:
        conversation, asked = self._asking.pop(request_id)
        self._now = now_s
        answer = answer_tokens(asked.answer_key, output_tokens, self._vocabulary)
        conversation.history = np.concatenate((asked.request.prompt_token_ids, answer))
        self._ask_next(conversation, now_s)

    def refused(self, request_id: str, now_s: float) -> None:
        """A conversation that has outgrown the model or the pool ends."""
        conversation, _ = self._asking.pop(request_id)
        self._now = now_s
        self._ended += 1
        self.turns_unasked += sum(1 for _ in conversation.turns)


def synthetic_turns(
    number: int,
    turns: int,
    new_tokens: Length,
    output_tokens: Length,
    rng: Uniform,
    *,
    think_s: float = 0.0,
    prefix: SharedPrefix = NO_PREFIX,
) -> Iterator[Turn]:
    """The turns of one conversation; ``think_s`` is the mean of exponential pauses (0: none)."""
    for turn in range(turns):
        own = content_key(PROMPT, number, turn)
        tokens = new_tokens(rng)
        segments = prefix.segments(tokens, own, rng) if turn == 0 else (Segment(own, tokens),)
        pause = exponential(rng, think_s) if turn and think_s else 0.0
        yield Turn(output_tokens(rng), pause, segments)


def synthetic_conversations(
    starts: Iterator[float],
    turns: Length,
    new_tokens: Length,
    output_tokens: Length,
    rng: Uniform,
    *,
    think_s: float = 0.0,
    prefix: SharedPrefix = NO_PREFIX,
    limit: int | None = None,
) -> Iterator[tuple[float, Iterator[Turn]]]:
    """Conversations for ``Conversations``. All lengths of one are drawn when it starts, in the order of the starts, so
    that they do not depend on how fast answers come."""
    for number, start_s in enumerate(starts):
        if number == limit:
            return
        count = turns(rng)
        drawn = list(
            synthetic_turns(number, count, new_tokens, output_tokens, rng, think_s=think_s, prefix=prefix)
        )
        yield start_s, iter(drawn)
