"""``ThrashGuard``: stop admitting while preemptions come so often that little else is done."""

from __future__ import annotations

from collections import deque

from octavo.core.config import SchedulerConfig
from octavo.core.events import AdmissionPaused, AdmissionResumed


class ThrashGuard:
    """Pauses admission from the step at which ``limit`` preemptions lie within ``window`` steps, until ``window`` steps
    have passed without one, or nothing runs.

    While admission pauses, what runs ends and gives its blocks back, so the pressure falls by itself. Counts steps, not
    seconds: a plan must follow from the requests alone.
    """

    def __init__(self, limit: int, window: int) -> None:
        self.paused = False
        """Whether nobody is to be admitted now."""
        self._limit = limit
        self._window = window
        self._paused_at = 0
        """Step at which the latest pause began."""
        self._steps: deque[int] = deque()
        """Steps of the preemptions within the window, oldest first."""

    @classmethod
    def of(cls, config: SchedulerConfig) -> ThrashGuard | None:
        """The guard that these settings ask for; None if they ask for none."""
        if config.thrash_preemptions is None:
            return None
        return cls(config.thrash_preemptions, config.thrash_window)

    def preempted(self, step: int) -> None:
        """Somebody was preempted in this step."""
        self._steps.append(step)

    def update(self, step: int, running: int, waiting: int) -> tuple[AdmissionPaused | AdmissionResumed, ...]:
        """Decide about admission in ``step``, in which so many run and wait; returns what is to be told of it."""
        while self._steps and self._steps[0] <= step - self._window:
            self._steps.popleft()
        if running == 0:  # nothing else could go on
            self._steps.clear()
        if self.paused and not self._steps:
            self.paused = False
            return (AdmissionResumed(step - self._paused_at, waiting),)
        if not self.paused and len(self._steps) >= self._limit:
            self.paused, self._paused_at = True, step
            return (AdmissionPaused(len(self._steps), self._window, running, waiting),)
        return ()
