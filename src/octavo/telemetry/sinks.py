"""Small sinks: one record to several, and rare events to lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.core.events import Admitted, Finished, StepRecord
from octavo.core.ports import Sink
from octavo.telemetry.lines import event_line


class FanOut:
    """Tells each of its sinks, in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)

    def emit(self, record: StepRecord, now: float) -> None:
        for sink in self.sinks:
            sink.emit(record, now)


class LineSink:
    """Writes a line for every event that a user should know of; for admissions and ends only when ``verbose``."""

    def __init__(self, write: Callable[[str], None], *, verbose: bool = False) -> None:
        self._write = write
        self._everyday = () if verbose else (Admitted, Finished)

    def emit(self, record: StepRecord, now: float) -> None:
        for event in record.events:
            if not isinstance(event, self._everyday):
                self._write(event_line(event))
