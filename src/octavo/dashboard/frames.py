"""``FrameSource``: the pool, the requests and the decisions of a scheduler as frames that a page can draw.

A frame is a dict ready for JSON: a *snapshot* holds everything, a *delta* what changed since the frame before it. The
same source serves the engine and a simulation: it looks at the scheduler between two steps and listens to its records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from octavo.core.events import Copied, Evicted, PoolState, Preempted, RareEvent, StepRecord, Waste
from octavo.dashboard.blocks import (
    BEAM_ROWS,
    FINDABLE,
    LIVE,
    NAME_BYTES,
    BlockColumns,
    Held,
    pack,
    running_numbers,
)
from octavo.memory.allocator import Allocator
from octavo.memory.paged import PagedAllocator
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.sequence import Sequence
from octavo.telemetry.lines import event_line
from octavo.telemetry.metrics import Metrics

WAITING_MAX = 100
"""Waiting requests that a frame lists; it counts all."""
LOG_MAX = 400
"""Events that one frame tells; of more it tells the latest and counts the others."""
LISTED_MAX = 256
"""Blocks that one event names."""


def _superblock(allocator: Allocator) -> int | None:
    """Blocks of a superblock; None where any block is as good as another."""
    blocks = allocator.superblock if isinstance(allocator, PagedAllocator) else 1
    return blocks if blocks > 1 else None


class FrameSource:
    """A sink, too: give it to the engine (``emit``) while frames are wanted, or it knows no events and no waste.

    Not thread-safe: to be used where the scheduler is. ``now`` is the engine's clock.
    """

    def __init__(self, scheduler: Scheduler, metrics: Metrics | None = None) -> None:
        """``metrics``, where there are any, add totals and times to first token to the frames."""
        self._scheduler = scheduler
        self._metrics = metrics
        self._sequence = 0
        self._now = 0.0
        self._since: float | None = None
        """When it first looked: what was cached then had been released before."""
        allocator = scheduler.allocator
        self._columns = BlockColumns(allocator)
        self._changed: NDArray[np.intp] = np.zeros(0, np.intp)
        self._released = np.zeros(allocator.num_blocks)
        """When each cached block was seen to be released."""
        self._names = np.zeros((allocator.num_blocks, NAME_BYTES), np.uint8)
        self._renamed: set[int] = set()
        """Blocks that lost their content since the latest frame: what they hold now may have another name."""
        self._step: int | None = None
        self._waste = Waste(0, 0, 0, 0)
        self._log: list[dict[str, Any]] = []
        self._untold = 0
        self._told: list[dict[str, Any]] = []
        self._told_missing = 0
        self._known: dict[int, dict[str, Any]] = {}
        """What was told of each request, by number."""
        self._new: list[dict[str, Any]] = []
        self._borrowed: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        """Request number -> (positions, blocks) of the table entries whose block has another owner."""
        self._borrowed_flat: tuple[NDArray[np.intp], ...] = (np.zeros(0, np.intp),) * 3
        self._lent: set[int] = set()
        """Requests whose ``_borrowed`` the latest frame changed."""

    # ------------------------------------------------------------------ listening

    def emit(self, record: StepRecord, now: float) -> None:
        self._step, self._waste = record.plan.step, record.waste
        for event in record.events:
            if isinstance(event, Copied):
                for copy in event.copies:
                    line = f"Copied block {copy[0]} to {copy[1]}: one of its holders writes"
                    self._note("Copied", None, line, now)
                    self._log[-1]["blocks"] = list(copy)
                continue
            self._note(type(event).__name__, _request_of(event), event_line(event), now)
            if isinstance(event, Evicted):
                self._log[-1]["blocks"] = list(event.blocks[:LISTED_MAX])
                self._renamed.update(event.blocks)
            elif isinstance(event, Preempted):
                self._log[-1]["requester"] = event.requester
        if len(self._log) > 2 * LOG_MAX:
            self._untold += len(self._log) - LOG_MAX
            del self._log[:-LOG_MAX]

    def _note(self, kind: str, request_id: str | None, line: str, now: float) -> None:
        self._log.append({"step": self._step, "time": now, "kind": kind, "request": request_id, "line": line})

    # ------------------------------------------------------------------ looking

    def snapshot(self, now: float) -> dict[str, Any]:
        """Look, and tell everything."""
        self.advance(now)
        return self.whole()

    def delta(self, now: float) -> dict[str, Any]:
        """Look, and tell what changed since the look before."""
        self.advance(now)
        return self.changes()

    def advance(self, now: float) -> None:
        """Look at the scheduler. ``changes`` and ``whole`` tell of the latest look, as often as they are asked."""
        if self._since is None:
            self._since = now
        self._sequence += 1
        self._now = now
        held = Held.of(self._scheduler)
        self._look_at_blocks(held, now)
        self._look_at_requests()
        self._look_at_borrowed(held)
        self._told_missing = self._untold + max(0, len(self._log) - LOG_MAX)
        self._told, self._log, self._untold = self._log[-LOG_MAX:], [], 0

    def _look_at_blocks(self, held: Held, now: float) -> None:
        allocator = self._scheduler.allocator
        old, new = self._columns, BlockColumns.read(allocator, held)
        changed = new.changes_from(old)
        if isinstance(allocator, PagedAllocator):
            findable = (new.flags & FINDABLE) > 0
            fresh = findable & ((old.flags & FINDABLE) == 0)
            if self._renamed:
                again = np.fromiter(self._renamed, np.intp)
                fresh[again] |= findable[again]
                changed[again] = True
            self._renamed.clear()
            numbers = np.flatnonzero(fresh)
            if numbers.size:
                names = allocator.cache.names
                data = b"".join([names[block][:NAME_BYTES] for block in numbers.tolist()])
                self._names[numbers] = np.frombuffer(data, np.uint8).reshape(-1, NAME_BYTES)
            idle = findable & ((new.flags & LIVE) == 0)
            was_idle = (old.flags & (LIVE | FINDABLE)) == FINDABLE
            self._released[idle & (~was_idle | fresh)] = now
        self._columns, self._changed = new, np.flatnonzero(changed)

    def _look_at_requests(self) -> None:
        known, seen, new = self._known, dict[int, dict[str, Any]](), []
        running = self._scheduler.running
        here = [
            *zip(running_numbers(self._scheduler), running.sequences, strict=True),
            *((one.arrival + 1, one) for one in self._scheduler.waiting.first(WAITING_MAX)),
        ]
        for number, sequence in here:
            told = known.get(number)
            if told is None or told["preemptions"] != sequence.preemptions:
                told = _description(number, sequence)
                new.append(told)
            elif told["cached"] != sequence.cached_tokens:
                told = {**told, "cached": sequence.cached_tokens}
                new.append(told)
            seen[number] = told
        self._known, self._new = seen, new

    def _look_at_borrowed(self, held: Held) -> None:
        lent = self._columns.owner[held.blocks] != held.numbers
        flat = held.numbers[lent], held.positions[lent], held.blocks[lent]
        if all(map(np.array_equal, flat, self._borrowed_flat)):
            self._lent = set()
            return
        self._borrowed_flat = flat
        numbers, positions, blocks = flat
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        bounds = [*starts.tolist(), len(numbers)]
        borrowed = {
            int(numbers[start]): (positions[start:stop], blocks[start:stop])
            for start, stop in pairwise(bounds)
        }
        before, self._borrowed = self._borrowed, borrowed
        self._lent = {number for number in before if number not in borrowed}
        for number, table in borrowed.items():
            if number not in before or not all(map(np.array_equal, table, before[number])):
                self._lent.add(number)

    # ------------------------------------------------------------------ telling

    def whole(self) -> dict[str, Any]:
        """A snapshot of the latest look."""
        return self._frame("snapshot", None, self._known.values(), self._borrowed)

    def changes(self) -> dict[str, Any]:
        """The delta of the latest look."""
        return self._frame("delta", self._changed, self._new, self._lent)

    @property
    def moved(self) -> bool:
        """Whether the latest look saw anything new."""
        return bool(self._changed.size or self._new or self._told or self._lent)

    def _frame(
        self,
        kind: str,
        which: NDArray[np.intp] | None,
        requests: Iterable[dict[str, Any]],
        borrowed: Iterable[int],
    ) -> dict[str, Any]:
        scheduler, allocator = self._scheduler, self._scheduler.allocator
        state, running = allocator.state(), scheduler.running
        count = running.count
        idle = self._now - self._released
        empty = np.zeros(0, np.intp)
        waiting = scheduler.waiting.first(WAITING_MAX)
        return {
            "kind": kind,
            "sequence": self._sequence,
            "step": self._step,
            "time": self._now,
            "since": self._since,
            "pool": {
                **_counts(state),
                "block_size": allocator.block_size,
                "allocator": allocator.name,
                "superblock": _superblock(allocator),
                "caching": allocator.caching,
            },
            "blocks": self._columns.packed(which, idle, self._names),
            "requests": list(requests),
            "running": {
                "number": running_numbers(scheduler),
                "computed": running.computed[:count].tolist(),
                "known": running.known[:count].tolist(),
                "blocks": allocator.table.num_blocks[running.row[:count]].tolist(),
            },
            "waiting": {"number": [one.arrival + 1 for one in waiting], "count": len(scheduler.waiting)},
            "borrowed": [
                [number, *map(pack, self._borrowed.get(number, (empty, empty)))] for number in borrowed
            ],
            "figures": self._figures(state),
            "log": self._told,
            "log_missing": self._told_missing,
        }

    def _figures(self, state: PoolState) -> dict[str, Any]:
        scheduler = self._scheduler
        waste = self._waste if scheduler.running.count else Waste(0, 0, 0, self._waste.external)
        figures: dict[str, Any] = {
            **_counts(state),
            **structs.asdict(waste),
            "running": scheduler.running.count,
            "waiting": len(scheduler.waiting),
        }
        if self._metrics is not None:
            ttft = self._metrics.histograms["time_to_first_token_seconds"]
            lookups = self._metrics.lookups
            figures["totals"] = asdict(self._metrics.totals)
            figures["lookups"] = {
                "blocks": lookups.blocks,
                "hits": lookups.hits,
                "misses": dict(lookups.misses),
            }
            figures["ttft"] = {"count": ttft.count, "sum": ttft.sum}
        return figures


def _counts(state: PoolState) -> dict[str, int]:
    return {"total": state.total, "live": state.live, "cached": state.cached, "free": state.free}


def _request_of(event: RareEvent) -> str | None:
    """The request that an event is about, where there is one."""
    return getattr(event, "request_id", None)


def _description(number: int, sequence: Sequence) -> dict[str, Any]:
    """What stays the same while a request runs."""
    own = sequence.arrival + 1
    return {
        "number": number,
        "name": str(own) if number == own else f"{own}, beam {number % BEAM_ROWS}",
        "id": sequence.request_id,
        "prompt": sequence.prompt_tokens,
        "limit": sequence.limit,
        "cached": sequence.cached_tokens,
        "priority": sequence.request.priority,
        "preemptions": sequence.preemptions,
    }
