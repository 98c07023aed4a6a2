"""``Workload``: where the driver gets requests from. Open loops know their arrivals; closed ones wait for answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.simulation.content import VOCABULARY, Segment, content_key, content_tokens
from octavo.simulation.random_numbers import Uniform
from octavo.simulation.requests import SimulatedRequest, make_request

PROMPT, ANSWER, SHARED = 1, 2, 3
"""First parts of content keys: own text of a prompt, an answer, text that many prompts share."""


class Workload(Protocol):
    """Hands out each request once it has arrived. Lazy: a trace of a million requests needs no memory for them."""

    def take(self, now_s: float, waiting: int) -> SimulatedRequest | None:
        """The next request that has arrived by ``now_s``, or None. ``waiting``: requests queued at the scheduler."""

    def next_arrival_s(self) -> float | None:
        """When the next request arrives. None: there is no more, or it depends on an answer that is not there yet."""

    def finished(self, request_id: str, now_s: float, output_tokens: int) -> None:
        """The answer is complete."""

    def refused(self, request_id: str, now_s: float) -> None:
        """The request could never fit, and no answer will come."""


class OpenLoop:
    """Requests that arrive whatever happens to the earlier ones; ``requests`` in the order of their arrival."""

    def __init__(self, requests: Iterator[SimulatedRequest]) -> None:
        self._requests = requests
        self._next = next(requests, None)

    def take(self, now_s: float, waiting: int) -> SimulatedRequest | None:
        found = self._next
        if found is None or found.arrival_s > now_s:
            return None
        self._next = next(self._requests, None)
        assert self._next is None or self._next.arrival_s >= found.arrival_s, (
            "requests come in order of arrival"
        )
        return found

    def next_arrival_s(self) -> float | None:
        return None if self._next is None else self._next.arrival_s

    def finished(self, request_id: str, now_s: float, output_tokens: int) -> None:
        """Nothing depends on an answer."""

    def refused(self, request_id: str, now_s: float) -> None:
        """Nothing depends on an answer."""


class Saturated(OpenLoop):
    """A queue that is never empty: requests come as soon as fewer than ``backlog`` wait, whatever their arrival says.

    ``backlog`` of at least the rows of the block table looks to the scheduler like an infinite queue.
    """

    def __init__(self, requests: Iterator[SimulatedRequest], backlog: int) -> None:
        super().__init__(requests)
        self._backlog = backlog
        self._now = 0.0

    def take(self, now_s: float, waiting: int) -> SimulatedRequest | None:
        found = self._next
        if found is None or waiting >= self._backlog:
            return None
        self._next = next(self._requests, None)
        self._now = now_s
        return replace(found, arrival_s=now_s)

    def next_arrival_s(self) -> float | None:
        return None if self._next is None else self._now


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A system prompt in front of every prompt."""

    tokens: int
    groups: int = 1
    """Different system prompts; each request belongs to one, all as likely."""
    included: bool = False
    """Whether a prompt's length already counts it (such a prompt keeps at least one token of its own)."""

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.groups < 1:
            raise ConfigError(
                f"a shared prefix of {self.tokens} tokens in {self.groups} groups; need at least 0 and 1",
                param="--shared-prefix",
            )

    def segments(self, prompt_tokens: int, own_key: int, rng: Uniform | None) -> tuple[Segment, ...]:
        """The shared part and the request's own."""
        group = 0 if self.groups == 1 or rng is None else int(rng.random() * self.groups)
        shared = min(self.tokens, prompt_tokens - 1) if self.included else self.tokens
        own = prompt_tokens - shared if self.included else prompt_tokens
        return Segment(content_key(SHARED, group), shared), Segment(own_key, own)


NO_PREFIX = SharedPrefix(0)


def synthetic(
    arrivals: Iterator[float],
    lengths: Iterator[tuple[int, int]],
    *,
    limit: int | None = None,
    prefix: SharedPrefix = NO_PREFIX,
    groups_rng: Uniform | None = None,
    max_tokens: int | None = None,
    vocabulary: int = VOCABULARY,
    name: str = "request",
) -> Iterator[SimulatedRequest]:
    """Requests with these arrivals and (prompt, output) lengths, numbered from 0; ``limit`` of them or endless.

    ``max_tokens`` is what every client declares; the answer ends there at the latest. None declares nothing.
    """
    numbers: Iterator[int] = count() if limit is None else iter(range(limit))
    for number, arrival_s, (prompt, output) in zip(numbers, arrivals, lengths, strict=False):
        segments = prefix.segments(prompt, content_key(PROMPT, number), groups_rng)
        yield make_request(
            arrival_s,
            f"{name}-{number}",
            content_tokens(segments, vocabulary),
            output,
            content_key(ANSWER, number),
            max_tokens=max_tokens,
        )


def answer_tokens(answer_key: int, output_tokens: int, vocabulary: int = VOCABULARY) -> NDArray[np.int32]:
    """int32 [output_tokens]: what the simulated executor answers to a request with this key."""
    return content_tokens([Segment(answer_key, output_tokens)], vocabulary)
