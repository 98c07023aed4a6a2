"""``SimulatedRequest``: a request, and beside it what only the simulation may know (rule 4: no peeking)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.simulation.content import content_key


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRequest:
    """The scheduler sees ``request`` alone. Executor and oracle allocator are told the rest by the workload."""

    arrival_s: float
    """Seconds (or steps, on a clock of steps) since the start of the run; may lie in the past when it is taken."""
    request: Request
    output_tokens: int
    """Tokens after which the simulated executor ends it, at least 1. max_tokens may end it before."""
    answer_key: int
    """Content of its answer: token i is ``tokens_at(answer_key, i)``. Of several, the first one's."""
    choice_tokens: tuple[int, ...] = ()
    """``output_tokens`` of each answer, where there are several and they differ."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def scripts(self) -> Iterator[tuple[str, int, int]]:
        """(request id, output tokens, content) of each of its answers, each with a content of its own."""
        for i, run in enumerate(self.request.runs()):
            tokens = self.choice_tokens[i] if self.choice_tokens else self.output_tokens
            yield run.request_id, tokens, content_key(self.answer_key, i) if i else self.answer_key


def make_request(
    arrival_s: float,
    request_id: str,
    prompt: NDArray[np.int32],
    output_tokens: int,
    answer_key: int,
    *,
    max_tokens: int | None = None,
    priority: int = 0,
) -> SimulatedRequest:
    """A greedy request without stop tokens of its own. ``prompt`` int32 [P] is kept, not copied."""
    assert output_tokens >= 1 and len(prompt) >= 1
    prompt.setflags(write=False)
    request = Request(request_id, prompt, _greedy(max_tokens), priority=priority)
    return SimulatedRequest(arrival_s, request, output_tokens, answer_key)


@lru_cache(maxsize=1024)
def _greedy(max_tokens: int | None) -> SamplingParams:
    """Most requests of a workload declare the same."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
