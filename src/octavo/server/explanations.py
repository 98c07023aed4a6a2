"""Why a prompt was not found in the pool, in words for whoever sent it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from octavo.core.events import StepRecord
from octavo.core.request import Request
from octavo.engine.engine import Engine
from octavo.memory.lookup import Eviction, Lookup, Miss
from octavo.telemetry.sinks import FanOut

STEPS_MAX = 1 << 16
"""Steps whose time is remembered: the latest ones."""


class Explainer:
    """A sink that remembers when steps took place, and the words for what the allocator's lookups say."""

    def __init__(self, engine: Engine) -> None:
        """Listens to the engine from now on."""
        self._lookups = engine.scheduler.allocator.lookups
        self._steps = np.full(STEPS_MAX, -1, np.int64)
        self._times = np.zeros(STEPS_MAX)
        engine.sink = FanOut((engine.sink, self))

    def emit(self, record: StepRecord, now: float) -> None:
        place = record.plan.step % STEPS_MAX
        self._steps[place], self._times[place] = record.plan.step, now

    def of(self, requests: Sequence[Request]) -> list[dict[str, Any] | None]:
        """One a prompt; None where so many came since that it is forgotten, or where it was never let in."""
        recent = self._lookups.recent
        found = (
            next((lookup for run in request.runs() if (lookup := recent.get(run.request_id))), None)
            for request in requests
        )
        return [None if lookup is None else self.words(lookup) for lookup in found]

    def of_job(self, job_id: str) -> list[dict[str, Any]]:
        """Of every remembered prompt of a request, by the id of its answer or by its own. In the engine's thread."""
        inside = f"{job_id}-"
        found = [
            lookup
            for request_id, lookup in self._lookups.recent.items()
            if request_id == job_id or request_id.startswith(inside)
        ]
        return [self.words(lookup) for lookup in found]

    def words(self, lookup: Lookup) -> dict[str, Any]:
        """As JSON. Tells nothing of others that has another salt than this prompt."""
        return {
            "request_id": lookup.request_id,
            "block_size": lookup.block_size,
            "prompt_tokens": lookup.prompt_tokens,
            "cached_tokens": lookup.hits * lookup.block_size,
            "tokens_below_block": lookup.tokens_below_block,
            "not_looked_up": lookup.unasked,
            "blocks": [] if lookup.unasked else list(self._runs(lookup)),
            "possible_cached_tokens": {
                "without_evictions": lookup.ever,
                "by_token": lookup.ever_by_token,
            },
        }

    def _runs(self, lookup: Lookup) -> Iterator[dict[str, Any]]:
        """Neighbouring blocks of one fate together."""
        in_pool = lookup.hits - lookup.loaded
        if in_pool:
            yield {"first": 0, "count": in_pool, "found": "hit"}
        if lookup.loaded:
            yield {"first": in_pool, "count": lookup.loaded, "found": "second_tier"}
        evictions = iter(lookup.evictions)
        fates = [
            (_told(miss), next(evictions) if miss == Miss.EVICTED else None)
            for miss in lookup.misses.tolist()
        ]
        first = lookup.hits
        for (miss, eviction), group in groupby(fates):
            count = len(list(group))
            run: dict[str, Any] = {"first": first, "count": count, "found": miss.name.lower()}
            if eviction is not None:
                run["evicted"] = self._eviction(eviction, lookup)
            if miss == Miss.BEING_COMPUTED:
                run["computed_by"] = lookup.computing or None
            yield run
            first += count

    def _eviction(self, eviction: Eviction, lookup: Lookup) -> dict[str, Any]:
        return {
            "step": eviction.step,
            "steps_before": lookup.step - eviction.step,
            "seconds_before": self._seconds(eviction.step, lookup.step),
            "idle_steps": eviction.idle_steps,
            "request_id": eviction.taker if eviction.taker_root == lookup.root else None,
        }

    def _seconds(self, first: int, last: int) -> float | None:
        """Between the end of one step and that of the step before another; None if that is forgotten."""
        known = [step for step in (first, last - 1) if step >= 0 and self._steps[step % STEPS_MAX] == step]
        if len(known) < 2:
            return None
        times = self._times
        return round(float(times[(last - 1) % STEPS_MAX] - times[first % STEPS_MAX]), 6)


def _told(miss: int) -> Miss:
    """What whoever sent the prompt may know. That others with a salt have sent the same is none of their business."""
    return Miss.NEVER_SEEN if miss == Miss.FOREIGN_SALT else Miss(miss)
