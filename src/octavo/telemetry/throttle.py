"""Lines that would come in floods: a few a second, and sums of the rest.

Under pressure a step may preempt and evict as often as it decodes. A line each would bury what else the log says, and
cost more than the step; so the first ones are told one by one and the others together. Times are arguments: seconds of
whatever clock the caller has.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from octavo.core.events import Admitted, Blocked, Evicted, PoolState, Preempted, StepRecord
from octavo.telemetry.lines import event_line, pool_text

PERIOD_S = 1.0
CALM_PERIOD_S = 10.0
"""Between lines about evictions while at most half of the pool is live. Then the oldest cached blocks make room for new
ones, as they must in every pool that was ever full."""
PREEMPTIONS_MAX = 10
"""Lines of single preemptions in a period."""
REFUSALS_MAX = 10


class Throttle:
    """Lets the first ``most`` of every period through. A period begins with the first call after the one before."""

    def __init__(self, most: int, period_s: float = PERIOD_S) -> None:
        self._most = most
        self._period = period_s
        self._used = 0
        self._ends = -math.inf

    def admit(self, now: float) -> bool:
        """Whether one more may pass now; counts it if so."""
        if self.over(now):
            self._ends, self._used = now + self._period, 0
        passes = self._used < self._most
        self._used += passes
        return passes

    def over(self, now: float) -> bool:
        """Whether the period of the latest call has ended."""
        return now >= self._ends


class EvictionLines:
    """At most one line a second under pressure, else every ten; each with everything evicted since the one before."""

    def __init__(self) -> None:
        self.count = 0
        """Blocks that no line has told of yet."""
        self._told_at = -math.inf
        self._steps = 0
        self._admitted: list[str] = []
        self._before: PoolState | None = None
        self._after: PoolState | None = None

    def add(self, event: Evicted, record: StepRecord, before: PoolState) -> None:
        """``before``: the pool when the step in which it happened was planned."""
        if self.count == 0:
            self._before = before
        self.count += len(event.blocks)
        self._steps += 1
        self._admitted += [other.request_id for other in record.events if isinstance(other, Admitted)]
        self._after = record.pool

    def due(self, now: float) -> str | None:
        """The line, if one may be written now."""
        assert self._after is not None
        pressed = 2 * self._after.live > self._after.total
        return self.line(now) if now - self._told_at >= (PERIOD_S if pressed else CALM_PERIOD_S) else None

    def line(self, now: float) -> str:
        """The line, whenever the latest one was. To be called while ``count`` is above 0, as ``due`` is."""
        assert self._before is not None
        assert self._after is not None
        self._told_at = now
        cause = "for running requests to grow"
        if self._admitted:
            others = len(self._admitted) - 1
            cause = f"to admit {self._admitted[0]}" + (f" and {others} more" if others else "")
        steps = "" if self._steps == 1 else f" in {self._steps} steps"
        blocks = "1 cached block" if self.count == 1 else f"{self.count} cached blocks"
        line = f"Evicted {blocks}{steps} {cause}; pool {pool_text(self._before)} -> {pool_text(self._after)}"
        self.count = self._steps = 0
        self._admitted.clear()
        return line


class PreemptionLines:
    """A line each, up to ``PREEMPTIONS_MAX`` a period; then their sum."""

    def __init__(self) -> None:
        self.count = 0
        """Preemptions that no line has told of yet."""
        self._throttle = Throttle(PREEMPTIONS_MAX)
        self._recomputed = self._discarded = self._swapped = self._blocks = 0

    def line_or_count(self, event: Preempted, now: float) -> str | None:
        """The event's own line, or None: it was counted, and a later line tells of it."""
        if not self.count and self._throttle.admit(now):
            return event_line(event)
        self.count += 1
        self._recomputed += event.tokens_to_recompute
        self._discarded += event.tokens_discarded
        self._swapped += event.tokens_swapped
        self._blocks += event.blocks_released
        return None

    def due(self, now: float) -> str | None:
        """The sum, once the period in which they happened is over."""
        return self.line(now) if self._throttle.over(now) else None

    def line(self, now: float) -> str:
        swapped = f", {self._swapped} swapped out" if self._swapped else ""
        line = (
            f"Preempted {self.count} more (one line each for the first {PREEMPTIONS_MAX} a second): "
            f"{self._blocks} blocks released, {self._recomputed} tokens to recompute, {self._discarded} discarded"
            f"{swapped}"
        )
        self.count = self._recomputed = self._discarded = self._swapped = self._blocks = 0
        return line


class BlockedLines:
    """At most one line a period: the newest blocked head, and how many steps found it or another one blocked."""

    def __init__(self) -> None:
        self.count = 0
        """Steps that no line has told of yet."""
        self._throttle = Throttle(1)
        self._newest: Blocked | None = None

    def add(self, event: Blocked) -> None:
        self.count += 1
        self._newest = event

    def due(self, now: float) -> str | None:
        return self.line(now) if self._throttle.admit(now) else None

    def line(self, now: float) -> str:
        assert self._newest is not None
        line = event_line(self._newest)
        if self.count > 1:
            line += f"; {self.count} steps since the last such line found the queue's head blocked"
        self.count = 0
        return line


class Refusals:
    """Lines about requests that were turned away: ``REFUSALS_MAX`` a period, then how many more there were."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.count = 0
        """Refusals that no line has told of yet."""
        self._write = write
        self._throttle = Throttle(REFUSALS_MAX)

    def tell(self, line: str, now: float) -> None:
        self.tell_due(now)
        if self._throttle.admit(now):
            self._write(line)
        else:
            self.count += 1

    def tell_due(self, now: float) -> None:
        """Write how many were left out, once their period is over."""
        if self.count and self._throttle.over(now):
            self._write(
                f"Refused {self.count} more requests (one line each for the first {REFUSALS_MAX} a second)"
            )
            self.count = 0
