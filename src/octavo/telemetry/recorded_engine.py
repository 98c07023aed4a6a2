"""``RecordedEngine``: an engine whose whole run goes to a recording, requests and ends from outside included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from octavo.core.config import CacheConfig
from octavo.core.errors import ContextLengthError
from octavo.core.plan import FinishReason, StepPlan
from octavo.core.ports import Clock, Executor, Sink
from octavo.core.request import Request
from octavo.engine.engine import Engine
from octavo.scheduling.scheduler import Scheduler
from octavo.telemetry.recording import Recorder
from octavo.telemetry.sinks import FanOut


class RecordedEngine(Engine):
    """A recorder as a mere sink would hear of steps alone, and a replay needs what the owner told the engine too."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        sink: Sink,
        *,
        file: TextIO,
        cache: CacheConfig,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """``cache``: the settings that made the scheduler's allocator. The caller closes ``file`` after the run."""
        self.recorder = Recorder(
            file, cache, scheduler.config, about, scheduler.allocator.offload.tier.spilled
        )
        super().__init__(scheduler, executor, clock, FanOut([sink, self.recorder]))

    def add(self, request: Request) -> None:
        """``Engine.add``. A refusal is an event and belongs to the run; other mistakes leave no trace in it."""
        try:
            super().add(request)
        except ContextLengthError:
            self.recorder.added(request, self.clock.now())
            raise
        self.recorder.added(request, self.clock.now())

    def finish(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> bool:
        ended = super().finish(request_id, reason)
        if ended:
            self.recorder.ended(request_id, reason, self.clock.now())
        return ended

    def abandon(self, plan: StepPlan) -> None:
        self.recorder.abandoned(plan, self.clock.now())
        super().abandon(plan)
