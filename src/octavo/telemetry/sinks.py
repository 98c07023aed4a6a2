"""Small sinks: one record to several, and rare events to lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.core.events import (
    Admitted,
    BeamsDecided,
    Blocked,
    Copied,
    Evicted,
    Finished,
    Forked,
    PoolState,
    Preempted,
    Spilled,
    StepRecord,
)
from octavo.core.ports import Sink
from octavo.telemetry.lines import event_line
from octavo.telemetry.throttle import BlockedLines, EvictionLines, PreemptionLines


class FanOut:
    """Tells each of its sinks, in order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)

    def emit(self, record: StepRecord, now: float) -> None:
        for sink in self.sinks:
            sink.emit(record, now)


class LineSink:
    """Writes a line for every event that a user should know of; for admissions, forks, copies and ends
    only when ``verbose``.

    Evictions, preemptions and blocked heads can come in every step: beyond a few lines a second they are counted, and
    the next line about them says what was left out. Nothing is lost as long as the owner calls ``flush`` when no step
    follows.
    """

    def __init__(self, write: Callable[[str], None], *, verbose: bool = False) -> None:
        self.say = write
        """Writes a line that comes from no event."""
        self._everyday = () if verbose else (Admitted, Finished, Forked, Copied, Spilled, BeamsDecided)
        self._pool: PoolState | None = None
        """After the step before; None before the first."""
        self._evictions, self._preemptions, self._blocked = EvictionLines(), PreemptionLines(), BlockedLines()
        self._held = (self._evictions, self._preemptions, self._blocked)

    def emit(self, record: StepRecord, now: float) -> None:
        for event in record.events:
            if isinstance(event, Evicted):
                self._evictions.add(event, record, self._pool or record.pool)
            elif isinstance(event, Preempted):
                if (line := self._preemptions.line_or_count(event, now)) is not None:
                    self.say(line)
            elif isinstance(event, Blocked):
                self._blocked.add(event)
            elif not isinstance(event, self._everyday):
                self.say(event_line(event))
        self._pool = record.pool
        self.tell_due(now)

    def tell_due(self, now: float) -> None:
        """Write what was held back and may be told by now. Seconds of the engine's clock."""
        for held in self._held:
            if held.count and (line := held.due(now)) is not None:
                self.say(line)

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return any(held.count for held in self._held)

    def flush(self, now: float) -> None:
        """Write everything that is held back."""
        for held in self._held:
            if held.count:
                self.say(held.line(now))
