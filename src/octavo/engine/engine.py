"""The loop. One step plans, runs, applies and tells; serving and simulating differ only in what is plugged in."""

from __future__ import annotations

from octavo.core.events import StepRecord
from octavo.core.plan import FinishReason, StepPlan
from octavo.core.ports import Clock, Executor, Sink
from octavo.core.request import Request
from octavo.scheduling.scheduler import Scheduler


class Engine:
    """Not thread-safe: one thread owns it, and requests reach that thread by whatever queue the owner likes."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock, sink: Sink) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.sink = sink

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it can never be served; nothing is queued then."""
        self.scheduler.add(request)

    def finish(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End a request now; its blocks return before the next step. False if it is unknown or has ended."""
        return self.scheduler.finish(request_id, reason)

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def step(self) -> StepRecord | None:
        """Run one step, or return None when there is nothing to run or to report.

        What the executor raises goes on to the caller; the requests of that step have ended with ERROR then, which the
        next step tells, and all others are as they were.
        """
        plan = self.scheduler.plan()
        if plan is None:
            return None
        try:
            result = self.executor.collect(self.executor.submit(plan))
        except BaseException:
            self.abandon(plan)
            raise
        record = self.scheduler.apply(plan, result)
        self.sink.emit(record, self.clock.now())
        return record

    def abandon(self, plan: StepPlan) -> None:
        """The executor has failed in this step: its requests end with ERROR."""
        self.scheduler.abandon(plan)

    def drain(self) -> None:
        """Step until every request has ended and every event was told."""
        while self.step() is not None:
            pass
