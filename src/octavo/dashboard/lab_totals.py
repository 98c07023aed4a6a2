"""``Totals``: the lab's read-outs of a run that is still going on, or that is watched step by step."""

from __future__ import annotations

from typing import Any

from octavo.core.events import Blocked, Preempted, StepRecord, Waste
from octavo.simulation.report import Report

WASTES = ("written", "reserved", "internal", "external")


class Totals:
    """A sink. Plain sums from its first step on, so that a figure can be told at any time."""

    def __init__(self) -> None:
        self.steps = 0
        self.sampled = 0
        self.discarded = 0
        self.preemptions = 0
        self.blocked_steps = 0
        """Steps in which external fragmentation kept the head of the queue out."""
        self.waste = Waste(0, 0, 0, 0)
        """Of the latest step, in slots."""
        self.running = 0
        self.waiting = 0
        self.sampled_now = 0
        self._sums = [0, 0, 0, 0]

    def emit(self, record: StepRecord, now: float) -> None:
        blocked = False
        for event in record.events:
            if isinstance(event, Preempted):
                self.preemptions += 1
                self.discarded += event.tokens_discarded
            elif isinstance(event, Blocked):
                blocked = True
        self.blocked_steps += blocked
        if not len(record.plan.rows):
            return
        self.steps += 1
        self.sampled_now = len(record.result.token_ids)
        self.sampled += self.sampled_now
        self.running, self.waiting = len(record.request_ids), record.waiting
        self.waste = waste = record.waste
        sums = self._sums
        sums[0] += waste.written
        sums[1] += waste.reserved
        sums[2] += waste.internal
        sums[3] += waste.external

    def figures(self) -> dict[str, Any]:
        """Means over all steps so far; wastes in slots, ``effective`` in percent."""
        means = {name: total / max(self.steps, 1) for name, total in zip(WASTES, self._sums, strict=True)}
        return {
            "steps": self.steps,
            "tokens_per_step": (self.sampled - self.discarded) / max(self.steps, 1),
            "effective": effective(**means),
            "preemptions": self.preemptions,
            "discarded_tokens": self.discarded,
            "blocked_steps": self.blocked_steps,
            **means,
        }

    def latest(self) -> dict[str, Any]:
        """The latest step alone."""
        waste = self.waste
        now = {name: getattr(waste, name) for name in WASTES}
        return {
            "sequences": self.running,
            "waiting": self.waiting,
            "tokens": self.sampled_now,
            "effective": effective(**now),
            **now,
        }


def effective(written: float, reserved: float, internal: float, external: float) -> float:
    """Percent of the held slots that hold a token; free slots that nobody can use are held by nobody."""
    held = written + reserved + internal
    return 100 * written / held if held else 0.0


def measured_figures(report: Report) -> dict[str, Any]:
    """The same figures of a whole run, over its measured steps; blocked steps are those of the whole run."""
    counts = report.counts
    means = {name: report.mean_over_steps(name) for name in WASTES}
    return {
        "steps": counts.steps,
        "tokens_per_step": report.delivered_tokens / max(counts.steps, 1),
        "effective": 100 * report.effective,
        "preemptions": counts.preemptions,
        "discarded_tokens": counts.tokens_discarded,
        "blocked_steps": report.blocked_steps_all,
        **means,
    }
