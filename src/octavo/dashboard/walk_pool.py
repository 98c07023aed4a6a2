"""``WalkPool``: the product's scheduler and paged allocator on a pool small enough to read, driven step by step.

What the walk tells is read off here, between two steps; nothing in it is asserted by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import RareEvent, StepRecord
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.dashboard.frames import FrameSource
from octavo.engine.engine import Engine
from octavo.memory import sizing
from octavo.memory.paged import PagedAllocator
from octavo.scheduling.scheduler import Scheduler
from octavo.simulation.content import Segment, content_key, content_tokens
from octavo.simulation.driver import build_scheduler
from octavo.simulation.executor import SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.model_specs import KNOWN
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import ANSWER
from octavo.telemetry.sinks import FanOut

SPEC = KNOWN["smollm2-135m"]
CACHE = CacheConfig(num_blocks=12, block_size=4)
SCHEDULER = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=None, max_model_len=48)
STEPS_MAX = 200
"""More than the whole walk takes: a moment that never comes is a mistake in the story."""

E = TypeVar("E", bound=RareEvent)


@dataclass(frozen=True, slots=True)
class Row:
    """A running request between two steps."""

    request_id: str
    blocks: tuple[int, ...]
    """Its block table."""
    computed: int
    """Tokens with keys and values in these blocks."""
    preemptions: int


class WalkPool:
    """Between two steps, always."""

    def __init__(self) -> None:
        self.scheduler: Scheduler = build_scheduler(CACHE, SCHEDULER)
        allocator = self.scheduler.allocator
        assert isinstance(allocator, PagedAllocator)
        self.allocator = allocator
        self.records: list[StepRecord] = []
        """Of the steps since the latest stop."""
        self._clock = VirtualClock()
        self._executor = SimulatedExecutor(self._clock, StepCost(), max_num_seqs=SCHEDULER.max_num_seqs)
        self._source = FrameSource(self.scheduler)
        self._engine = Engine(self.scheduler, self._executor, self._clock, FanOut([self._source, self]))
        self._keys: dict[str, int] = {}

    def emit(self, record: StepRecord, now: float) -> None:
        """A sink, too: keeps what happened."""
        self.records.append(record)

    # ------------------------------------------------------------------ what happens

    def ask(self, request_id: str, segments: list[Segment], *output_tokens: int) -> int:
        """A request arrives and wants as many answers as lengths are given; returns the tokens of its prompt."""
        prompt = content_tokens(segments)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=max(output_tokens), ignore_eos=True, n=len(output_tokens)
        )
        request = Request(request_id, prompt, sampling)
        for choice, length in zip(request.choices(), output_tokens, strict=True):
            key = self._keys[choice.request_id] = content_key(ANSWER, len(self._keys))
            self._executor.expect(SimulatedRequest(self._clock.now(), choice, length, key))
        self._engine.add(request)
        return len(prompt)

    def answer(self, request_id: str, tokens: int) -> Segment:
        """The first tokens of what a request was or will be answered, so that a later prompt can repeat them."""
        return Segment(self._keys[request_id], tokens)

    def step(self) -> StepRecord:
        record = self._engine.step()
        assert record is not None, "the story goes on while somebody runs"
        return record

    def step_until(self, found: Callable[[StepRecord], bool]) -> StepRecord:
        """Steps until one of which ``found`` is true; returns its record."""
        for _ in range(STEPS_MAX):
            record = self.step()
            if found(record):
                return record
        raise AssertionError("a moment of the story never came")

    def step_until_event(self, kind: type[E], request_id: str | None = None) -> E:
        """Steps until such an event (of this request); returns it."""
        wanted: list[E] = []

        def found(record: StepRecord) -> bool:
            for event in record.events:
                if isinstance(event, kind) and request_id in (None, getattr(event, "request_id", None)):
                    wanted.append(event)
            return bool(wanted)

        self.step_until(found)
        return wanted[0]

    # ------------------------------------------------------------------ what is to be seen

    @property
    def steps(self) -> int:
        return int(self._clock.now())

    def rows(self) -> list[Row]:
        """The running requests, oldest first."""
        running, table = self.scheduler.running, self.allocator.table
        return [
            Row(
                sequence.request_id,
                tuple(table.row(int(running.row[place])).tolist()),
                int(running.computed[place]),
                sequence.preemptions,
            )
            for place, sequence in enumerate(running.sequences)
        ]

    def row(self, request_id: str) -> Row:
        return next(row for row in self.rows() if row.request_id == request_id)

    def waiting(self) -> list[str]:
        """Requests that hold nothing, the next one first."""
        return [sequence.request_id for sequence in self.scheduler.waiting.first(SCHEDULER.max_num_seqs)]

    def cached(self) -> list[int]:
        """Cached blocks, the one that is evicted first at the front."""
        blocks: list[int] = self.allocator.pool.eviction_order().tolist()
        return blocks

    def cells(self) -> list[dict[str, Any]]:
        """Every block: its state, who holds it, how full it is."""
        cells: list[dict[str, Any]] = [
            {"state": "free", "holders": [], "filled": 0, "slots": CACHE.block_size}
            for _ in range(CACHE.num_blocks)
        ]
        for block in self.cached():
            cells[block] |= {"state": "cached", "filled": CACHE.block_size}
        for row in self.rows():
            for place, block in enumerate(row.blocks):
                cell = cells[block]
                filled = min(max(row.computed - place * CACHE.block_size, 0), CACHE.block_size)
                cell["state"] = "live"
                cell["holders"].append(row.request_id)
                cell["filled"] = max(cell["filled"], filled)
        return cells

    def told(self) -> list[str]:
        """What the scheduler decided since the latest call, a line each, in the words of the page's log."""
        return [entry["line"] for entry in self._source.delta(self._clock.now())["log"]]


def block_bytes() -> int:
    return sizing.block_bytes(SPEC, CACHE.block_size)
