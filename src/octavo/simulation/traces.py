"""Readers of public traces. Each gives a lazy stream of ``TraceRow``; what a file says wrong is said with its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError
from octavo.telemetry.checked_lines import (
    SECONDS_MAX,
    Record,
    complain,
    csv_records,
    json_records,
    numbered_lines,
)


@dataclass(frozen=True, slots=True, eq=False)
class TraceRow:
    """One request of a trace, as the file has it (a length may be 0)."""

    line: int
    """Where it stands in its file."""
    prompt_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    """Seconds since the trace's start; None where the trace has no times."""
    block_ids: NDArray[np.int64] | None = None
    """int64 [n]: content of the prompt's blocks, the trace's ``block_size`` tokens each: equal id, equal prefix."""
    conversation: int | None = None
    new_tokens: int | None = None
    """Tokens of the newest message, where the prompt is a conversation's whole history."""
    think_s: float | None = None
    """Seconds that the client waited before it sent this, where known."""


@dataclass(frozen=True, slots=True)
class TraceKind:
    """A format: what it is called, and how a file of it is read."""

    name: str
    read: Callable[[Path], Iterator[TraceRow]]
    timed: bool = False
    """Whether requests have arrival times, and rows come in their order."""
    block_size: int | None = None
    """Tokens of a block of the trace's own block ids."""
    partial: bool = False
    """Whether a prompt's rest that fills no block has an id, too."""
    conversations: bool = False
    """Whether rows are turns, the turns of a conversation together and in order."""


def _in_order(rows: Iterator[tuple[Record, TraceRow]]) -> Iterator[TraceRow]:
    latest = 0.0
    for record, row in rows:
        assert row.arrival_s is not None
        if row.arrival_s < latest:
            record.complain(
                f"arrives at {row.arrival_s:g} s, before the request above it ({latest:g} s); sort the trace by time"
            )
        latest = row.arrival_s
        yield row


def read_azure(path: Path) -> Iterator[TraceRow]:
    """CSV ``arrival_s,prompt_tokens,output_tokens``: times in seconds."""

    def rows() -> Iterator[tuple[Record, TraceRow]]:
        for record in csv_records(path, ("arrival_s", "prompt_tokens", "output_tokens")):
            yield record, _lengths_of(record, arrival_s=record.seconds("arrival_s"))

    return _in_order(rows())


def read_azure_original(path: Path) -> Iterator[TraceRow]:
    """The CSV as published, ``TIMESTAMP,ContextTokens,GeneratedTokens``; times count from the first row."""

    def rows() -> Iterator[tuple[Record, TraceRow]]:
        start: datetime | None = None
        for record in csv_records(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
            text = record.fields["TIMESTAMP"]
            try:
                time = datetime.fromisoformat(text)
                start = start or time
                seconds = (time - start).total_seconds()
            except (ValueError, TypeError):
                record.complain(
                    f"TIMESTAMP is {text!r}; it must be a date and time like 2023-11-16 18:15:46.6805900"
                )
            if not 0.0 <= seconds <= SECONDS_MAX:
                record.complain(
                    f"TIMESTAMP {text} is {seconds:g} s after the first row's; sort the trace by time"
                )
            prompt, output = record.tokens("ContextTokens"), record.tokens("GeneratedTokens")
            yield record, TraceRow(record.line, prompt, output, seconds)

    return _in_order(rows())


def _lengths_of(record: Record, **more: Any) -> TraceRow:
    return TraceRow(record.line, record.tokens("prompt_tokens"), record.tokens("output_tokens"), **more)


def read_lengths(path: Path) -> Iterator[TraceRow]:
    """CSV with ``prompt_tokens,output_tokens`` and no times: ShareGPT single-turn, Alpaca, arXiv."""
    for record in csv_records(path, ("prompt_tokens", "output_tokens")):
        yield _lengths_of(record)


def read_conversations(path: Path) -> Iterator[TraceRow]:
    """CSV ``conv,turn,prompt_tokens,new_prompt_tokens,output_tokens``: prompts count the whole history."""
    current, turn, ended = -1, -1, set[int]()
    for record in csv_records(path, ("conv", "turn", "prompt_tokens", "new_prompt_tokens", "output_tokens")):
        conversation, number = record.whole("conv", 0, 1 << 60), record.whole("turn", 0, 1 << 60)
        if conversation != current:
            if conversation in ended:
                record.complain(
                    f"conv {conversation} goes on after another one began; keep its turns together"
                )
            ended.add(current)
            current, turn = conversation, -1
        if number != turn + 1:
            record.complain(f"turn is {number}; conv {conversation} had turn {turn} before it")
        turn = number
        row = _lengths_of(record, conversation=conversation, new_tokens=record.tokens("new_prompt_tokens"))
        if row.new_tokens is not None and row.new_tokens > row.prompt_tokens:
            record.complain(
                f"new_prompt_tokens is {row.new_tokens}, more than prompt_tokens {row.prompt_tokens}"
            )
        yield row


MOONCAKE_BLOCK = 512


def read_mooncake(path: Path) -> Iterator[TraceRow]:
    """JSON lines ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (512-token prefix blocks)."""

    def rows() -> Iterator[tuple[Record, TraceRow]]:
        for record in json_records(path):
            prompt = record.tokens("input_length")
            ids = record.fields.get("hash_ids")
            if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 62 for i in ids):
                record.complain("hash_ids is missing or not a list of whole numbers from 0 on")
            if len(ids) != -(-prompt // MOONCAKE_BLOCK):
                record.complain(
                    f"{len(ids)} hash_ids for input_length {prompt}; {-(-prompt // MOONCAKE_BLOCK)} blocks of "
                    f"{MOONCAKE_BLOCK} tokens hold it"
                )
            seconds = record.seconds("timestamp", 1e-3)
            yield (
                record,
                TraceRow(
                    record.line,
                    prompt,
                    record.tokens("output_length"),
                    seconds,
                    block_ids=np.array(ids, np.int64),
                ),
            )

    return _in_order(rows())


CODING_BLOCK = 64


def read_coding_agent(path: Path) -> Iterator[TraceRow]:
    """JSON lines ``c, a, t, in, out, think, runs``: ids of 64-token blocks as [first, count] runs, local to ``c``.

    A conversation's requests, its sub-agents' among them, are taken one after the other as the file has them.
    """
    clocks: dict[int, float] = {}
    current, ended = -1, set[int]()
    for record in json_records(path):
        conversation, agent = record.whole("c", 0, (1 << 31) - 1), record.whole("a", 0, 1 << 31)
        if conversation != current:
            if conversation in ended:
                record.complain(f"conversation {conversation} goes on after another one began")
            ended.add(current)
            current, clocks = conversation, {}
        seconds = record.seconds("t")
        if seconds < clocks.get(agent, 0.0):
            record.complain(f"t is {seconds:g}, before the same agent's previous request ({clocks[agent]:g})")
        clocks[agent] = seconds
        prompt = record.tokens("in")
        yield TraceRow(
            record.line,
            prompt,
            record.tokens("out"),
            block_ids=_expand(record, conversation, prompt // CODING_BLOCK),
            conversation=conversation,
            think_s=None if record.fields.get("think") is None else record.seconds("think"),
        )


def _expand(record: Record, conversation: int, blocks: int) -> NDArray[np.int64]:
    runs = record.fields.get("runs")
    if not isinstance(runs, list) or not all(
        isinstance(run, list)
        and len(run) == 2
        and all(type(i) is int for i in run)
        and 0 <= run[0] < 1 << 31
        and 0 < run[1] <= blocks
        for run in runs
    ):
        record.complain("runs is missing or not a list of [first id, count]")
    held = sum(length for _, length in runs)
    if held != blocks:
        record.complain(
            f"runs name {held} blocks; {blocks} full blocks of {CODING_BLOCK} tokens fit the prompt"
        )
    parts = [np.arange(first, first + length, dtype=np.int64) for first, length in runs]
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return ids + (conversation << 32)


KINDS = {
    kind.name: kind
    for kind in (
        TraceKind("azure", read_azure, timed=True),
        TraceKind("azure-original", read_azure_original, timed=True),
        TraceKind("mooncake", read_mooncake, timed=True, block_size=MOONCAKE_BLOCK, partial=True),
        TraceKind("conversations", read_conversations, conversations=True),
        TraceKind("coding-agent", read_coding_agent, block_size=CODING_BLOCK, conversations=True),
        TraceKind("lengths", read_lengths),
    )
}
"""Formats by name. A recording of our own (``telemetry/recording.py``) is told from them by its header."""

_MARKS = (
    ("conversations", {"conv", "turn", "new_prompt_tokens"}),
    ("azure", {"arrival_s", "prompt_tokens", "output_tokens"}),
    ("azure-original", {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    ("lengths", {"prompt_tokens", "output_tokens"}),
    ("mooncake", {"timestamp", "input_length", "output_length", "hash_ids"}),
    ("coding-agent", {"c", "a", "t", "in", "out", "runs"}),
)


def detect(path: Path) -> TraceKind:
    """The format of a file, from its first line. Raises ConfigError if it is none that we know."""
    line, text = next(numbered_lines(path), (0, ""))
    if line == 0:
        complain(path, 1, "the file is empty")
    try:
        found = json.loads(text)
        names = set(found) if isinstance(found, dict) else set()
    except ValueError:
        names = {name.strip() for name in text.removeprefix("\ufeff").split(",")}
    kind = next((kind for kind, marks in _MARKS if marks <= names), None)
    if kind is None:
        known = ", ".join(KINDS)
        complain(
            path, line, f"no trace format has the fields {', '.join(sorted(names))[:200]}; known are {known}"
        )
    return KINDS[kind]


def read_rate_curve(path: Path, column: str) -> tuple[list[float], float]:
    """(requests a second in each window, seconds of a window) from CSV ``time_s`` and a column of rates.

    The curve ends where the column does (blank fields). Raises ConfigError for windows of unequal length.
    """
    rates: list[float] = []
    times: list[float] = []
    for record in csv_records(path, ("time_s", column)):
        if record.fields[column] == "":
            break
        times.append(record.seconds("time_s"))
        rates.append(record.seconds(column))
        if len(times) > 1 and abs(times[-1] - times[-2] - (times[1] - times[0])) > 1e-6:
            record.complain(f"time_s is {times[-1]:g}; every window must be {times[1] - times[0]:g} s long")
    if len(times) < 2 or times[1] <= times[0]:
        complain(path, 2, "a rate curve needs two windows at least, in the order of time")
    return rates, times[1] - times[0]


@dataclass(frozen=True, slots=True)
class Trace:
    """A file and its format. ``rows()`` reads it from the start, one row at a time."""

    path: Path
    kind: TraceKind

    def rows(self) -> Iterator[TraceRow]:
        return self.kind.read(self.path)

    def lengths(self) -> NDArray[np.int64]:
        """int64 [n, 2]: (prompt, output) tokens of every row, 0 raised to 1."""
        found = np.array([(row.prompt_tokens, row.output_tokens) for row in self.rows()], np.int64)
        lengths: NDArray[np.int64] = np.maximum(found.reshape(-1, 2), 1)
        return lengths


def open_trace(path: Path, kind: str | None = None) -> Trace:
    """A trace file in a named format, or in the one it looks like. Raises ConfigError."""
    if kind is None:
        return Trace(path, detect(path))
    if kind not in KINDS:
        raise ConfigError(
            f"trace format {kind!r} is not known; known are {', '.join(KINDS)}", param="--trace-kind"
        )
    return Trace(path, KINDS[kind])


def spread(rows: Iterator[TraceRow], quantum_s: float) -> Iterator[TraceRow]:
    """Rows with equal times, evenly over the ``quantum_s`` seconds that their clock rounded off (Mooncake: 3 s).

    Raises ConfigError for times that are not further apart than that.
    """
    group: list[TraceRow] = []
    for row in rows:
        assert row.arrival_s is not None
        if group and row.arrival_s != group[0].arrival_s:
            yield from _spread_group(group, quantum_s, row)
            group = []
        group.append(row)
    if group:
        yield from _spread_group(group, quantum_s, None)


def _spread_group(group: list[TraceRow], quantum_s: float, following: TraceRow | None) -> Iterator[TraceRow]:
    start = group[0].arrival_s
    assert start is not None
    if following is not None and following.arrival_s is not None:
        gap = following.arrival_s - start
        # A clock of whole quanta may still be a little off; what is not, is another clock.
        quantum_s = min(quantum_s, gap)
    for i, row in enumerate(group):
        yield replace(row, arrival_s=start + quantum_s * i / len(group))
