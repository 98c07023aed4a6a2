"""``BeamSearch``: which continuations of one prompt live on. Knows candidates and scores, no row and no block.

Each running beam stands in a *place*, 0 to width - 1. ``advance`` takes the candidates of every place and says who
stands where afterwards: the scheduler turns that into forks, releases and copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.beam_params import BeamParams
from octavo.core.events import BeamAnswer
from octavo.core.plan import Candidates

History = Callable[[int], NDArray[np.int32]]
"""Place -> tokens generated there so far, int32 [O]."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A beam that goes on: the one in place ``parent`` with one token more."""

    parent: int
    token: int
    logprob: float
    """Sum over its tokens."""


@dataclass(frozen=True, slots=True)
class _Continuation:
    rank_score: float
    """What beams are chosen by: the log-probability less the penalty for what earlier groups took."""
    survivor: Survivor
    stops: bool


class _Group:
    """One of the groups of a diverse search; the only one of a plain search."""

    def __init__(self, width: int, params: BeamParams, max_tokens: int) -> None:
        self.beams: list[tuple[int, float]] = [(0, 0.0)]
        """(place, log-probability), best first."""
        self.finished: list[BeamAnswer] = []
        """At most ``width``, best first."""
        self.done = False
        self._width = width
        self._params = params
        self._max_tokens = max_tokens

    def advance(
        self,
        candidates: Sequence[Candidates],
        taken: Mapping[int, int],
        length: int,
        history: History,
    ) -> list[Survivor]:
        """``taken``: tokens of earlier groups in this step, and how often. ``length``: tokens of the new beams."""
        ranked = self._ranked(candidates, taken)
        last = length == self._max_tokens
        running: list[Survivor] = []
        for rank, found in enumerate(ranked):
            if found.stops or last:
                # An end counts where it is among the best continuations; behind them it would push out a better beam.
                if rank < self._width:
                    self._finish(found, length, history)
            elif len(running) < self._width:
                running.append(found.survivor)
            elif rank >= self._width:
                break
        self.done = last or not running or self._is_decided(running[0].logprob, length)
        return [] if self.done else running

    def _ranked(self, candidates: Sequence[Candidates], taken: Mapping[int, int]) -> list[_Continuation]:
        found = []
        for place, logprob in self.beams:
            columns = candidates[place]
            for token, step, stops in zip(
                columns.token_ids.tolist(), columns.logprobs.tolist(), columns.stops.tolist(), strict=True
            ):
                total = logprob + step
                penalty = self._params.diversity_penalty * taken.get(token, 0)
                found.append(_Continuation(total - penalty, Survivor(place, token, total), stops))
        # Stable: of equal ones the better parent's, of one parent's the likelier token.
        found.sort(key=lambda one: -one.rank_score)
        return found

    def _finish(self, found: _Continuation, length: int, history: History) -> None:
        last = found.survivor
        tokens = (*history(last.parent).tolist(), last.token)
        score = last.logprob / length**self._params.length_penalty
        self.finished.append(BeamAnswer(tokens, last.logprob, score, found.stops))
        self.finished.sort(key=lambda answer: -answer.score)
        del self.finished[self._width :]

    def _is_decided(self, best: float, length: int) -> bool:
        """Whether the finished beams stay as they are. ``best``: log-probability of the best running one."""
        if len(self.finished) < self._width:
            return False
        params = self._params
        if params.early_stopping is True:
            return True
        hopeful = params.early_stopping == "never" and params.length_penalty > 0
        reach = self._max_tokens if hopeful else length
        hope: float = best / reach**params.length_penalty
        return hope <= self.finished[-1].score


class BeamSearch:
    """From the step that completes the prompt until every group is decided."""

    def __init__(self, params: BeamParams, max_tokens: int) -> None:
        """``max_tokens``: output tokens at which every beam ends."""
        self.length = 0
        """Tokens of each running beam."""
        self._groups = [
            _Group(params.width // params.groups, params, max_tokens) for _ in range(params.groups)
        ]

    @property
    def done(self) -> bool:
        return all(group.done for group in self._groups)

    def advance(self, candidates: Sequence[Candidates], history: History) -> list[Survivor]:
        """One token further. ``candidates[i]`` are place i's; the i-th survivor stands in place i from now on."""
        self.length += 1
        taken: Counter[int] = Counter()
        survivors: list[Survivor] = []
        for group in self._groups:
            if group.done:
                continue
            going_on = group.advance(candidates, taken, self.length, history)
            taken.update(survivor.token for survivor in going_on)
            group.beams = [(len(survivors) + i, survivor.logprob) for i, survivor in enumerate(going_on)]
            survivors += going_on
        return survivors

    def answers(self, count: int) -> tuple[BeamAnswer, ...]:
        """The ``count`` best finished beams of all groups, best first."""
        found = [answer for group in self._groups for answer in group.finished]
        return tuple(sorted(found, key=lambda answer: -answer.score)[:count])
