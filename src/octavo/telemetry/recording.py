"""``Recorder``: a sink that writes a run to JSON lines, from which every record can be read back.

A recording is a header and then, in the order in which things happened, one line for each of

    add        a request was handed to the engine (before the next step)
    end        a request was ended from outside (a client went away, a stop string)
    step       one step: plan, result, rare events, pool
    abandoned  a step whose executor failed: its plan; its requests end in the next step, if one follows

Of a step only what does not follow from the lines above it is written: rows that stay as they were, tokens that were
just sampled, a table's old blocks are left out, so that a steady decode step is a short line. The reader puts them
back. Log-probabilities are not recorded, and of a constrained request only that it was: its tokens are those that the
constraint allowed, so a replay, which takes them from here, does not need it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from msgspec import to_builtins
from numpy.typing import NDArray

from octavo.core.beam_params import BeamParams
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.events import StepRecord
from octavo.core.plan import FinishReason, RowStart, StepPlan
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams

FORMAT, VERSION = "octavo-recording", 1

DEFAULT_SAMPLING = SamplingParams()


def open_for_writing(path: Path) -> TextIO:
    """A new text file; gzip-compressed if its name ends in .gz. Raises ConfigError."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "wt", encoding="utf-8")
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="--record") from error


def sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """What a client asked for beyond the defaults, ready for JSON."""
    found: dict[str, Any] = {}
    for field in fields(SamplingParams):
        value = getattr(sampling, field.name)
        if value != getattr(DEFAULT_SAMPLING, field.name):
            if isinstance(value, BeamParams):
                value = asdict(value)
            found[field.name] = dict(value) if isinstance(value, Mapping) else value
    return found


def _start(start: RowStart) -> list[Any]:
    """Row, request, output tokens that it kept, computed tokens; and of a beam, which took them over, the tokens."""
    kept = start.output_token_ids.tolist()
    told = [start.row, start.request.request_id, len(kept), start.cached_tokens]
    return [*told, kept] if start.request.sampling.beam is not None else told


class Recorder:
    """Whoever owns the engine calls ``added`` and ``ended`` when it calls the engine; the engine calls ``emit``."""

    def __init__(
        self,
        file: TextIO,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        about: Mapping[str, str] | None = None,
        tier: Mapping[bytes, int] | None = None,
    ) -> None:
        """``about``: whatever a reader may want to know (model, machine, date); kept, not interpreted. ``tier``: name
        and block of what the second tier holds from before, the least recently used first. The caller owns ``file``
        and closes it."""
        self._file = file
        self._size = cache.block_size
        self._known: set[str] = set()
        self._searching: set[int] = set()
        """Rows of beam searches: what they compute does not follow from what was sampled."""
        self._unseen: set[int] = set()
        """Rows whose table was not written yet: of those that started, a beam may compute nothing for some steps."""
        self._rows: NDArray[np.int32] = np.zeros(0, np.int32)
        self._next: NDArray[np.int32] = np.zeros(0, np.int32)
        """int32 [R]: computed tokens of ``_rows`` after the previous step."""
        self._line(
            {
                "format": FORMAT,
                "version": VERSION,
                "cache": asdict(cache),
                "scheduler": asdict(scheduler),
                "about": dict(about or {}),
                **({"tier": [[name.hex(), block] for name, block in tier.items()]} if tier else {}),
            }
        )

    def _line(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")

    def added(self, request: Request, now: float) -> None:
        """A request is handed to the engine (which may still refuse it). Seconds on the engine's clock."""
        self._known.update(run.request_id for run in request.runs())
        line: dict[str, Any] = {
            "add": request.request_id,
            "at": now,
            "prompt": request.prompt_token_ids.tolist(),
        }
        sampling = sampling_fields(request.sampling)
        if sampling:
            line["sampling"] = sampling
        if request.priority:
            line["priority"] = request.priority
        if request.cache_salt is not None:
            line["salt"] = request.cache_salt
        if request.constraint is not None:
            line["constrained"] = True
        self._line(line)

    def ended(self, request_id: str, reason: FinishReason, now: float) -> None:
        """A request is ended from outside."""
        self._line({"end": request_id, "reason": reason.name, "at": now})

    def abandoned(self, plan: StepPlan, now: float) -> None:
        """The executor failed in this step."""
        line: dict[str, Any] = {"abandoned": plan.step, "at": now}
        self._write_plan(line, plan)
        self._line(line)
        self._file.flush()  # what failed may end the process

    def emit(self, record: StepRecord, now: float) -> None:
        line: dict[str, Any] = {"step": record.plan.step, "at": now}
        self._write_plan(line, record.plan)
        line["sampled"] = record.result.token_ids.tolist()
        if record.result.candidates:
            line["candidates"] = {
                row: [found.token_ids.tolist(), found.logprobs.tolist(), np.flatnonzero(found.stops).tolist()]
                for row, found in record.result.candidates.items()
            }
        if record.result.damaged:
            line["damaged"] = list(record.result.damaged)
        if record.result.stopped.any():
            line["stopped"] = np.flatnonzero(record.result.stopped).tolist()
        if record.finished.any():
            line["finished"] = record.finished.tolist()
        if record.events:
            line["events"] = [{"kind": type(event).__name__, **to_builtins(event)} for event in record.events]
        pool, waste = record.pool, record.waste
        line["pool"] = [pool.live, pool.cached, pool.free]
        line["counts"] = [record.running, record.waiting]
        line["waste"] = [waste.written, waste.reserved, waste.internal, waste.external]
        self._line(line)

    def _write_plan(self, line: dict[str, Any], plan: StepPlan) -> None:
        same = plan.rows is self._rows or np.array_equal(plan.rows, self._rows)
        if not same:
            line["rows"] = plan.rows.tolist()
        if not (same and np.array_equal(plan.computed, self._next)):
            line["computed"] = plan.computed.tolist()
        if plan.num_tokens != len(plan.rows) or len(plan.forks):
            line["scheduled"] = plan.scheduled.tolist()
        if not plan.samples.all():
            line["silent"] = np.flatnonzero(~plan.samples).tolist()
        self._searching.difference_update(plan.ended)
        if plan.started:
            for start in plan.started:
                assert start.request.request_id in self._known, "added() is called for every request"
            line["started"] = [_start(start) for start in plan.started]
            for start in plan.started:
                if start.request.sampling.beam is not None:
                    self._searching.add(start.row)
        if self._searching and not self._searching.isdisjoint(plan.rows.tolist()):
            line["tokens"] = plan.token_ids.tolist()
        if plan.ended:
            line["ended"] = list(plan.ended)
        if len(plan.copies):
            line["copies"] = plan.copies.tolist()
        if len(plan.forks):
            line["forks"] = plan.forks.tolist()
        if len(plan.transfers):
            line["transfers"] = plan.transfers.tolist()
        blocks = self._new_blocks(plan)
        if blocks:
            line["blocks"] = blocks
        self._rows = plan.rows
        self._next = plan.computed + plan.scheduled

    def _new_blocks(self, plan: StepPlan) -> list[list[int]]:
        """[position in the plan, first block number, physical blocks ...] of rows whose table changed where the step
        writes (or, for a row that starts, anywhere)."""
        size = self._size
        begins = plan.computed // size
        ends = -(-(plan.computed + plan.scheduled) // size)
        fresh = (plan.computed % size == 0) | (ends - begins > 1)
        if len(plan.copies):
            fresh[:] = True
        self._unseen.difference_update(plan.ended)
        self._unseen.update(start.row for start in plan.started)
        if self._unseen:
            starting = np.isin(plan.rows, list(self._unseen))
            begins = np.where(starting, 0, begins)
            fresh |= starting
            self._unseen.difference_update(plan.rows.tolist())
        found = []
        for i in np.flatnonzero(fresh).tolist():
            first, last = int(begins[i]), int(ends[i])
            found.append([i, first, *plan.block_table[plan.rows[i], first:last].tolist()])
        return found
