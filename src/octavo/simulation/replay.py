"""A recorded run again: the recorded requests and results through a fresh scheduler, decision by decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.core.errors import RequestError
from octavo.core.events import Finished, StepRecord
from octavo.core.plan import StepPlan
from octavo.scheduling.scheduler import Scheduler
from octavo.simulation.content import content_key
from octavo.simulation.driver import build_scheduler
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import ANSWER
from octavo.telemetry.recording_reader import Abandoned, Added, Ended, Recording, Stepped


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out otherwise."""

    step: int
    what: str
    """The plan's field, or ``events``, ``pool``, ``finished``, ``no step``."""
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.what} was {self.recorded} and is {self.replayed}"


def written_blocks(plan: StepPlan, block_size: int) -> list[list[int]]:
    """The physical blocks into which each row of a plan writes."""
    begins = (plan.computed // block_size).tolist()
    ends = (-(-(plan.computed + plan.scheduled) // block_size)).tolist()
    return [
        plan.block_table[row, begin:end].tolist()
        for row, begin, end in zip(plan.rows.tolist(), begins, ends, strict=True)
    ]


def differing(recorded: StepPlan, replayed: StepPlan, block_size: int) -> Iterator[Difference]:
    """What two plans decide differently: everything but the table's entries that neither writes to."""

    def tell(what: str, a: object, b: object) -> Difference:
        return Difference(recorded.step, what, str(a), str(b))

    for name in ("step", "ended"):
        if getattr(recorded, name) != getattr(replayed, name):
            yield tell(name, getattr(recorded, name), getattr(replayed, name))
    same_shape = True
    for name in ("rows", "computed", "scheduled", "samples", "token_ids", "copies", "forks", "transfers"):
        a, b = getattr(recorded, name), getattr(replayed, name)
        if not np.array_equal(a, b):
            same_shape = False
            yield tell(name, a.tolist(), b.tolist())
    starts = [
        [
            (start.row, start.request.request_id, len(start.output_token_ids), start.cached_tokens)
            for start in plan.started
        ]
        for plan in (recorded, replayed)
    ]
    if starts[0] != starts[1]:
        yield tell("started", starts[0], starts[1])
    if same_shape:
        blocks = [written_blocks(plan, block_size) for plan in (recorded, replayed)]
        if blocks[0] != blocks[1]:
            yield tell("blocks", blocks[0], blocks[1])


class Replay:
    """A recording, step by step. Raises ConfigError for one that is damaged, where the damage is."""

    def __init__(self, path: Path) -> None:
        self.recording = Recording(path)
        cache = self.recording.header.cache
        self.scheduler = build_scheduler(cache, self.recording.header.scheduler)
        self.scheduler.allocator.offload.tier.adopt(self.recording.header.tier)
        self.steps = 0
        """Steps that agree with the recorded ones."""
        self.differences: list[Difference] = []
        """Of the first step that has any. Decisions after it differ because of it, so the replay ends there."""
        self._items = self.recording.items()
        self._size = cache.block_size

    def step(self) -> tuple[StepRecord, float] | None:
        """The next step, replayed, and when it was recorded; None at the end or at a difference."""
        if self.differences:
            return None
        for item in self._items:
            if isinstance(item, Added):
                with suppress(RequestError):  # its refusal is an event of the next record
                    self.scheduler.add(item.request)
            elif isinstance(item, Ended):
                self.scheduler.finish(item.request_id, item.reason)
            elif isinstance(item, Abandoned):
                self.differences = _abandon(item.plan, self.scheduler, self._size)
                if self.differences:
                    return None
                self.steps += 1
            else:
                record, self.differences = _compare(item.record, self.scheduler, self._size)
                if record is None or self.differences:
                    return None
                self.steps += 1
                return record, item.at
        return None


def replay_recording(path: Path) -> tuple[int, list[Difference]]:
    """(steps that agree, differences of the first step that has any). No difference: the run is reproduced."""
    replay = Replay(path)
    while replay.step() is not None:
        pass
    return replay.steps, replay.differences


def _plan(
    recorded: StepPlan, scheduler: Scheduler, block_size: int
) -> tuple[StepPlan | None, list[Difference]]:
    """The plan again, and what it decides differently; None where there is nothing to do."""
    plan = scheduler.plan()
    if plan is None:
        return None, [Difference(recorded.step, "no step", f"{len(recorded.rows)} rows", "nothing to do")]
    return plan, list(differing(recorded, plan, block_size))


def _abandon(recorded: StepPlan, scheduler: Scheduler, block_size: int) -> list[Difference]:
    """Plan the step and compare; its executor failed, so there is no result."""
    plan, found = _plan(recorded, scheduler, block_size)
    if plan is not None and not found:
        scheduler.abandon(plan)
    return found


def _compare(
    recorded: StepRecord, scheduler: Scheduler, block_size: int
) -> tuple[StepRecord | None, list[Difference]]:
    """Plan the step, compare, and if nothing differs apply the recorded result and compare again."""
    step = recorded.plan.step
    plan, found = _plan(recorded.plan, scheduler, block_size)
    if plan is None or found:
        return None, found
    record = scheduler.apply(plan, recorded.result)
    if not np.array_equal(recorded.finished, record.finished):
        found.append(Difference(step, "finished", str(recorded.finished), str(record.finished)))
    for what in ("events", "pool", "running", "waiting", "waste"):
        a, b = getattr(recorded, what), getattr(record, what)
        if a != b:
            found.append(Difference(step, what, str(a), str(b)))
    return record, found


def recorded_requests(path: Path) -> Iterator[SimulatedRequest]:
    """The requests of a recording with their times and true lengths, for a run under other settings.

    A request that had not ended when the recording did is played with what it had; one that never got a token with 1.
    """
    outputs: dict[str, int] = {}
    for item in Recording(path).items():
        if isinstance(item, Stepped):
            for event in item.record.events:
                if isinstance(event, Finished):
                    outputs[event.request_id] = event.output_tokens
    for number, item in enumerate(item for item in Recording(path).items() if isinstance(item, Added)):
        assert isinstance(item, Added)
        lengths = [max(outputs.get(run.request_id, 1), 1) for run in item.request.runs()]
        several = tuple(lengths) if len(lengths) > 1 else ()
        yield SimulatedRequest(item.at, item.request, max(lengths), content_key(ANSWER, number), several)
