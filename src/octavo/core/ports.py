"""The four things that differ between serving and simulating. Only the composition root chooses them."""

from __future__ import annotations

from typing import Protocol

from octavo.core.events import StepRecord
from octavo.core.plan import StepPlan, StepResult


class Executor(Protocol):
    """Runs a step, or prices it."""

    def submit(self, plan: StepPlan) -> object:
        """Start the step and return a handle for ``collect``."""

    def collect(self, handle: object) -> StepResult:
        """Wait for the step."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since some fixed point; never decreases."""


class Sink(Protocol):
    """Takes what happened: streams, metrics, page, recorder."""

    def emit(self, record: StepRecord, now: float) -> None: ...
