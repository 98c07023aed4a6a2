"""A trace as a workload: its lengths, its times and whatever it says about shared content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from octavo.core.errors import ConfigError
from octavo.simulation.content import VOCABULARY, Segment, content_key, content_tokens
from octavo.simulation.conversations import Conversations, Turn
from octavo.simulation.replay import recorded_requests
from octavo.simulation.requests import SimulatedRequest, make_request
from octavo.simulation.traces import Trace, TraceRow, open_trace, spread
from octavo.simulation.workloads import ANSWER, PROMPT, OpenLoop
from octavo.telemetry.recording_reader import is_recording

RECORDING = "recording"
"""Format name of our own recordings."""
BLOCK, REST = 4, 5
"""First parts of content keys: a block with an id of the trace's own, and a prompt's rest without one."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is played."""

    arrivals: Iterator[float] | None = None
    """Times for requests (or conversations) of a trace that has none, or instead of its own."""
    speed: float = 1.0
    """How many times faster than recorded requests arrive."""
    spread_s: float = 0.0
    """Seconds over which requests with equal times are spread evenly; 0 leaves them together."""
    limit: int | None = None
    """Rows to play; None is all."""
    max_tokens: int | None = None
    """What every client declares; None declares nothing."""
    concurrency: int | None = None
    """Conversations that go on at once; None starts each at its time."""
    vocabulary: int = VOCABULARY

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise ConfigError(f"the trace's speed is {self.speed}; it must be above 0", param="--speed")
        if self.spread_s < 0:
            raise ConfigError(
                f"the spread is {self.spread_s} s; it must be at least 0", param="--trace-spread"
            )


def open_workload(path: Path, kind: str | None, options: TraceOptions) -> OpenLoop | Conversations:
    """The workload of any file: a trace in a named format or the one it looks like, or a recording of ours.

    Raises ConfigError here, or while it is read.
    """
    if kind == RECORDING or (kind is None and is_recording(path)):
        return OpenLoop(_recorded(path, options))
    return trace_workload(open_trace(path, kind), options)


def _recorded(path: Path, options: TraceOptions) -> Iterator[SimulatedRequest]:
    """Recorded requests keep their own tokens and, unless the options name one, their declared length."""
    for simulated in islice(recorded_requests(path), options.limit):
        arrival_s = (
            simulated.arrival_s / options.speed if options.arrivals is None else next(options.arrivals)
        )
        request = simulated.request
        if options.max_tokens is not None:
            request = replace(
                request, sampling=replace(request.sampling, max_tokens=options.max_tokens, min_tokens=0)
            )
        yield replace(simulated, arrival_s=arrival_s, request=request)


def trace_workload(trace: Trace, options: TraceOptions) -> OpenLoop | Conversations:
    """Raises ConfigError here, or while it is read, if the trace or its use is wrong.

    Lengths of 0 (empty messages and answers, which real traces have) are played as 1: an engine generates at least one
    token, and a prompt has at least one.
    """
    if not trace.kind.timed and options.arrivals is None:
        raise ConfigError(
            f"{trace.path} has no arrival times; say how its requests arrive", param="--arrivals"
        )
    rows: Iterator[TraceRow] = islice(trace.rows(), options.limit)
    if trace.kind.conversations:
        return Conversations(
            _conversations(rows, trace.kind.block_size, options),
            concurrency=options.concurrency,
            max_tokens=options.max_tokens,
            vocabulary=options.vocabulary,
        )
    if options.spread_s and trace.kind.timed:
        rows = spread(rows, options.spread_s)
    return OpenLoop(_requests(rows, trace, options))


def _requests(rows: Iterator[TraceRow], trace: Trace, options: TraceOptions) -> Iterator[SimulatedRequest]:
    for number, row in enumerate(rows):
        if options.arrivals is not None:
            arrival_s = next(options.arrivals)
        else:
            assert row.arrival_s is not None
            arrival_s = row.arrival_s / options.speed
        prompt = content_tokens(prompt_segments(row, number, trace.kind.block_size), options.vocabulary)
        yield make_request(
            arrival_s,
            f"line-{row.line}",
            prompt,
            max(row.output_tokens, 1),
            content_key(ANSWER, number),
            max_tokens=options.max_tokens,
        )


def prompt_segments(row: TraceRow, number: int, block_size: int | None) -> list[Segment]:
    """The prompt's content: blocks by the trace's ids, and what has no id as the request's own."""
    tokens = max(row.prompt_tokens, 1)
    if row.block_ids is None or block_size is None:
        return [Segment(content_key(PROMPT, number), tokens)]
    ids = row.block_ids.tolist()
    segments = [Segment(content_key(BLOCK, block), block_size) for block in ids]
    rest = tokens - block_size * len(ids)
    if rest < 0:  # the last id names a partial block
        segments[-1] = segments[-1]._replace(length=block_size + rest)
    elif rest > 0:
        segments.append(Segment(content_key(REST, number), rest))
    return segments


def _conversations(
    rows: Iterator[TraceRow], block_size: int | None, options: TraceOptions
) -> Iterator[tuple[float, Iterator[Turn]]]:
    arrivals = options.arrivals
    assert arrivals is not None
    for conversation, turns in groupby(rows, key=lambda row: row.conversation):
        assert conversation is not None
        yield (
            next(arrivals),
            iter([_turn(row, conversation, i, block_size, options) for i, row in enumerate(turns)]),
        )


def _turn(
    row: TraceRow, conversation: int, number: int, block_size: int | None, options: TraceOptions
) -> Turn:
    think_s = (row.think_s or 0.0) / options.speed if number else 0.0
    output = max(row.output_tokens, 1)
    if row.block_ids is not None:
        own = content_key(PROMPT, conversation, number) & ((1 << 62) - 1)
        return Turn(output, think_s, tuple(prompt_segments(row, own, block_size)), keep=0)
    assert row.new_tokens is not None
    # The history is what was really said before; an edited one (shorter than that) is kept as far as it goes.
    new = max(row.new_tokens, 1)
    keep = max(row.prompt_tokens - row.new_tokens, 0)
    return Turn(output, think_s, (Segment(content_key(PROMPT, conversation, number), new),), keep=keep)


def block_counts(trace: Trace) -> tuple[int, int]:
    """(references, distinct blocks) of a trace with block ids."""
    seen: set[int] = set()
    references = 0
    for row in trace.rows():
        assert row.block_ids is not None
        references += len(row.block_ids)
        seen.update(np.unique(row.block_ids).tolist())
    return references, len(seen)
