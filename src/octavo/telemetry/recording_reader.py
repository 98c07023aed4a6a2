"""Reading a recording back: the same requests, ends and step records, or a ConfigError with file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from msgspec import convert
from numpy.typing import NDArray

from octavo.core.beam_params import BeamParams
from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import OctavoError
from octavo.core.events import (
    Finished,
    PoolState,
    RareEvent,
    Refused,
    StepRecord,
    Waste,
)
from octavo.core.plan import Candidates, FinishReason, RowStart, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.telemetry.checked_lines import Record, complain, json_records, numbered_lines
from octavo.telemetry.recording import FORMAT, VERSION

EVENTS: dict[str, type[RareEvent]] = {kind.__name__: kind for kind in get_args(RareEvent)}
Settings = TypeVar("Settings", CacheConfig, SchedulerConfig)
BEFORE: Mapping[str, Mapping[str, Any]] = {"cache": {"superblock_tokens": 0}}
"""Settings that older recordings lack, as they were decided then."""


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """A request was handed to the engine."""

    request: Request
    """Without its constraint."""
    at: float
    constrained: bool = False
    """Whether it had one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request was ended from outside."""

    request_id: str
    reason: FinishReason
    at: float


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """A step. Its plan's ``block_table`` is one matrix that the next step's line changes, as in the engine; blocks of
    tokens that no step has written yet are 0 in it."""

    record: StepRecord
    at: float


@dataclass(frozen=True, slots=True, eq=False)
class Abandoned:
    """A step whose executor failed, so that its requests ended with ERROR. ``plan`` is as in ``Stepped``."""

    plan: StepPlan
    at: float


Item = Added | Ended | Stepped | Abandoned


@dataclass(frozen=True, slots=True)
class Header:
    """The settings under which the run was made."""

    cache: CacheConfig
    scheduler: SchedulerConfig
    about: dict[str, str]
    tier: dict[bytes, int]
    """Name -> block of what the second tier held from before."""


class Recording:
    """A recorded run. ``header`` is read at once, ``items()`` from the start each time, a line at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file is no recording of this version."""
        self.path = path
        self.header = _header(next(json_records(path)))

    def items(self) -> Iterator[Item]:
        lines = json_records(self.path)
        next(lines)
        reader = _Reader(self.header)
        for line in lines:
            try:
                yield reader.item(line)
            except OctavoError:
                raise
            except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
                complain(self.path, line.line, f"the line does not follow from the ones above it ({error!r})")


def is_recording(path: Path) -> bool:
    """Whether a file says of itself that it is one. Raises ConfigError if it cannot be read."""
    _, text = next(numbered_lines(path), (0, ""))
    try:
        header = json.loads(text)
    except ValueError:
        return False
    return isinstance(header, dict) and header.get("format") == FORMAT


def _header(record: Record) -> Header:
    found = record.fields
    if found.get("format") != FORMAT:
        record.complain(f"the file is no recording: its first line has no format {FORMAT!r}")
    if found.get("version") != VERSION:
        record.complain(
            f"the recording has version {found.get('version')!r}; this Octavo reads version {VERSION}"
        )
    about = found.get("about")
    return Header(
        _settings(record, "cache", CacheConfig),
        _settings(record, "scheduler", SchedulerConfig),
        {str(key): str(value) for key, value in about.items()} if isinstance(about, dict) else {},
        _tier(record),
    )


def _tier(record: Record) -> dict[bytes, int]:
    try:
        return {bytes.fromhex(name): int(block) for name, block in record.fields.get("tier", ())}
    except (TypeError, ValueError):
        record.complain("tier is no list of names and blocks")


def _settings(record: Record, name: str, kind: type[Settings]) -> Settings:
    found = record.fields.get(name)
    if not isinstance(found, dict):
        record.complain(f"{name} is missing")
    unknown = sorted(set(found) - {field.name for field in fields(kind)})
    if unknown:
        record.complain(f"{name}.{unknown[0]} is no setting of this Octavo")
    try:
        return kind(**{**BEFORE.get(name, {}), **found})
    except (TypeError, OctavoError) as error:
        record.complain(f"{name}: {error}")


def _candidates(found: Mapping[str, Any]) -> dict[int, Candidates]:
    read = {}
    for row, (token_ids, logprobs, stopping) in found.get("candidates", {}).items():
        stops = np.zeros(len(token_ids), np.bool_)
        stops[stopping] = True
        read[int(row)] = Candidates(np.array(token_ids, np.int32), np.array(logprobs, np.float32), stops)
    return read


class _Reader:
    """What the lines so far have told."""

    def __init__(self, header: Header) -> None:
        self._size = header.cache.block_size
        rows = header.scheduler.max_num_seqs
        self._requests: dict[str, Request] = {}
        self._outputs: dict[str, list[int]] = {}
        self._beams: set[str] = set()
        """Ids of the answers of beam searches: a search can be ended by any of them."""
        self._several: dict[str, tuple[str, ...]] = {}
        """Requests of several answers that were added since the latest step, which tells if one was refused."""
        self._tokens: list[list[int]] = [[] for _ in range(rows)]
        """Known tokens of the request in each row."""
        self._owner = [""] * rows
        self._table: NDArray[np.int32] = np.zeros((rows, 64), np.int32)
        self._rows: NDArray[np.int32] = np.zeros(0, np.int32)
        self._next: NDArray[np.int32] = np.zeros(0, np.int32)

    def item(self, line: Record) -> Item:
        found = line.fields
        if "add" in found:
            return self._added(line)
        if "end" in found:
            if found["end"] not in self._requests and found["end"] not in self._beams:
                line.complain(f"request {found['end']!r} ends and was not added")
            return Ended(str(found["end"]), FinishReason[found["reason"]], line.seconds("at"))
        if "abandoned" in found:
            return Abandoned(self._plan(line, "abandoned"), line.seconds("at"))
        if "step" not in found:
            line.complain("the line is neither add, end, step nor abandoned")
        return Stepped(self._record(line), line.seconds("at"))

    def _added(self, line: Record) -> Added:
        found = line.fields
        request_id = str(found["add"])
        prompt = np.array(found["prompt"], np.int32).reshape(-1)
        prompt.setflags(write=False)
        given = dict(found.get("sampling", {}))
        for name in ("stop", "stop_token_ids"):
            if name in given:
                given[name] = tuple(given[name])
        if "logit_bias" in given:
            given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
        try:
            if "beam" in given:
                given["beam"] = BeamParams(**given["beam"])
            sampling = SamplingParams(**given)
        except OctavoError as error:
            line.complain(error.message)
        request = Request(request_id, prompt, sampling, int(found.get("priority", 0)), found.get("salt"))
        for run in request.runs():
            if run.request_id in self._requests:
                line.complain(f"request {run.request_id!r} was added before and has not ended")
            self._requests[run.request_id] = run
            self._outputs[run.request_id] = []
        if request.sampling.beam is not None:
            self._beams.update(choice.request_id for choice in request.choices())
        if request.sampling.n > 1:
            self._several[request_id] = tuple(run.request_id for run in request.runs())
        return Added(request, line.seconds("at"), bool(found.get("constrained")))

    def _record(self, line: Record) -> StepRecord:
        found = line.fields
        plan = self._plan(line, "step")
        sampled = np.array(found["sampled"], np.int32)
        if len(sampled) != int(plan.samples.sum()):
            line.complain(f"{len(sampled)} sampled tokens for {int(plan.samples.sum())} rows")
        stopped = np.zeros(len(sampled), np.bool_)
        stopped[found.get("stopped", [])] = True
        finished = np.array(found.get("finished", [0] * len(sampled)), np.uint8)
        request_ids = tuple(self._owner[row] for row in plan.rows.tolist())
        for row, token in zip(plan.rows[plan.samples].tolist(), sampled.tolist(), strict=True):
            self._tokens[row].append(token)
            self._outputs[self._owner[row]].append(token)
        events = tuple(self._event(line, fields) for fields in found.get("events", []))
        running, waiting = found["counts"]
        record = StepRecord(
            plan=plan,
            result=StepResult(
                sampled, stopped, candidates=_candidates(found), damaged=tuple(found.get("damaged", ()))
            ),
            request_ids=request_ids,
            finished=finished,
            events=events,
            pool=PoolState(*found["pool"]),
            running=running,
            waiting=waiting,
            waste=Waste(*found["waste"]),
        )
        for event in events:
            if isinstance(event, Refused):
                for request_id in self._several.pop(event.request_id, (event.request_id,)):
                    self._forget(request_id)
            elif isinstance(event, Finished):
                self._forget(event.request_id)
        self._several.clear()
        return record

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._outputs.pop(request_id, None)

    def _plan(self, line: Record, number: str) -> StepPlan:
        """``number``: the field with the step's number."""
        found = line.fields
        started = tuple(self._start(line, *start) for start in found.get("started", []))
        rows = np.array(found["rows"], np.int32) if "rows" in found else self._rows
        computed = np.array(found["computed"], np.int32) if "computed" in found else self._next
        count = len(rows)
        scheduled = (
            np.array(found["scheduled"], np.int32) if "scheduled" in found else np.ones(count, np.int32)
        )
        if not len(computed) == len(scheduled) == count:
            line.complain(f"{count} rows, but {len(computed)} computed and {len(scheduled)} scheduled counts")
        samples = np.ones(count, np.bool_)
        samples[found.get("silent", [])] = False
        self._learn_blocks(rows, found.get("blocks", []))
        parts = [
            self._tokens[row][first : first + length]
            for row, first, length in zip(rows.tolist(), computed.tolist(), scheduled.tolist(), strict=True)
        ]
        token_ids = np.array([token for part in parts for token in part], np.int32)
        if "tokens" in found:
            token_ids = np.array(found["tokens"], np.int32)
        if len(token_ids) != int(scheduled.sum()):
            line.complain("a row computes tokens that are not known yet")
        self._rows, self._next = rows, computed + scheduled
        return StepPlan(
            step=line.whole(number, 0, 1 << 60),
            rows=rows,
            computed=computed,
            scheduled=scheduled,
            token_ids=token_ids,
            samples=samples,
            block_table=self._table,
            copies=np.array(found.get("copies", []), np.int32).reshape(-1, 2),
            started=started,
            ended=tuple(found.get("ended", [])),
            forks=np.array(found.get("forks", []), np.int32).reshape(-1, 2),
            transfers=np.array(found.get("transfers", []), np.int32).reshape(-1, 2),
        )

    def _start(
        self,
        line: Record,
        row: int,
        request_id: str,
        kept: int,
        cached_tokens: int,
        tokens: list[int] | None = None,
    ) -> RowStart:
        """``tokens``: what a beam took over."""
        request = self._requests.get(request_id)
        if request is None:
            line.complain(f"request {request_id!r} starts and was not added")
        output = self._outputs[request_id][:kept] if tokens is None else tokens
        self._outputs[request_id] = output
        self._owner[row] = request_id
        self._tokens[row] = request.prompt_token_ids.tolist() + output
        return RowStart(row, request, np.array(output, np.int32), cached_tokens)

    def _learn_blocks(self, rows: NDArray[np.int32], changes: list[list[int]]) -> None:
        for position, first, *blocks in changes:
            last = first + len(blocks)
            while last > self._table.shape[1]:
                self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
            self._table[rows[position], first:last] = blocks

    def _event(self, line: Record, found: dict[str, Any]) -> RareEvent:
        kind = EVENTS.get(found.get("kind", ""))
        if kind is None:
            line.complain(f"event {found.get('kind')!r} is not known")
        unknown = sorted(set(found) - {"kind", *kind.__struct_fields__})
        if unknown:
            line.complain(f"event {kind.__name__} has no field {unknown[0]!r}")
        return convert(found, kind)
