"""``Simulation``: the real engine with a workload, a virtual clock and a scripted executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.errors import RequestError
from octavo.core.events import Finished, StepRecord
from octavo.core.ports import Sink
from octavo.engine.engine import Engine
from octavo.memory import make_allocator
from octavo.memory.allocator import Allocator
from octavo.scheduling.scheduler import Scheduler
from octavo.simulation.content import VOCABULARY
from octavo.simulation.executor import CostModel, SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.report import Report
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.run_looks import RunLooks
from octavo.simulation.workloads import Workload
from octavo.telemetry.sinks import FanOut


@dataclass(frozen=True, slots=True)
class Stop:
    """When a run ends; whichever comes first. None never does, and then the workload's end is the end."""

    steps: int | None = None
    """Steps that ran rows."""
    time: float | None = None
    """On the virtual clock."""


class Simulation:
    """Arrivals become visible at the first step boundary after they happen; idle time is skipped."""

    def __init__(
        self,
        workload: Workload,
        scheduler: Scheduler,
        cost: CostModel | None = None,
        *,
        report: Report | None = None,
        sinks: Sequence[Sink] = (),
        on_arrival: Callable[[SimulatedRequest], None] | None = None,
        vocabulary: int = VOCABULARY,
    ) -> None:
        """``cost`` None counts steps. ``on_arrival`` hears of each request before the scheduler does (an oracle
        allocator learns true lengths there, a recorder writes the request down)."""
        self.workload = workload
        self.scheduler = scheduler
        self.clock = VirtualClock()
        self.executor = SimulatedExecutor(
            self.clock,
            StepCost() if cost is None else cost,
            max_num_seqs=scheduler.config.max_num_seqs,
            vocabulary=vocabulary,
        )
        self.report = report or default_report(scheduler)
        self.engine = Engine(scheduler, self.executor, self.clock, FanOut((self.report, *sinks)))
        self.runs = RunLooks(scheduler.allocator.table, scheduler.allocator.block_size)
        self._on_arrival = on_arrival
        self._answers = _Answers()
        self.steps = 0
        self.arrivals = 0

    def run(self, stop: Stop = Stop(), progress: Callable[[Simulation], None] | None = None) -> Report:
        """Run to the workload's end or to ``stop``; ``progress`` is called after every step.

        What is unfinished then stays so: the report counts what was delivered.
        """
        while not self._stopped(stop):
            self._arrive()
            record = self.engine.step()
            if record is None:
                coming = self.workload.next_arrival_s()
                if coming is None:
                    break
                self.clock.advance_to(coming)
                continue
            if len(record.plan.rows):
                self.steps += 1
                if self.steps == self.runs.next:
                    self.runs.look()
            self._end(record)
            if progress is not None:
                progress(self)
        return self.report

    def _stopped(self, stop: Stop) -> bool:
        return (stop.steps is not None and self.steps >= stop.steps) or (
            stop.time is not None and self.clock.now() >= stop.time
        )

    def _arrive(self) -> None:
        now = self.clock.now()
        take, scheduler = self.workload.take, self.scheduler
        while (simulated := take(now, scheduler.num_waiting)) is not None:
            self.arrivals += 1
            self.executor.expect(simulated)
            self.report.arrived(simulated)
            if self._on_arrival is not None:
                self._on_arrival(simulated)
            if simulated.request.sampling.n > 1:
                self._answers.add(simulated)
            try:
                self.engine.add(simulated.request)
            except RequestError:  # the scheduler tells of it in an event
                for request_id, _, _ in simulated.scripts():
                    self.executor.forget(request_id)
                self.report.refused(simulated)
                self.workload.refused(simulated.request_id, now)

    def _end(self, record: StepRecord) -> None:
        now = self.clock.now()
        for event in record.events:
            if isinstance(event, Finished):
                self.executor.forget(event.request_id)
                whole = self._answers.ended(event)
                if whole is not None:
                    self.workload.finished(whole, now, event.output_tokens)


class _Answers:
    """When the last of several answers to a request has come: a workload waits for all of them."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._request_of: dict[str, str] = {}

    def add(self, simulated: SimulatedRequest) -> None:
        ids = [request_id for request_id, _, _ in simulated.scripts()]
        self._open[simulated.request_id] = len(ids)
        self._request_of |= dict.fromkeys(ids, simulated.request_id)

    def ended(self, event: Finished) -> str | None:
        """The request that is complete with this end; None if it has answers to come."""
        request_id = self._request_of.pop(event.request_id, None)
        if request_id is None:
            return event.request_id
        self._open[request_id] -= 1
        if self._open[request_id]:
            return None
        del self._open[request_id]
        return request_id


def default_report(scheduler: Scheduler) -> Report:
    allocator = scheduler.allocator
    return Report(
        max_num_seqs=scheduler.config.max_num_seqs, slots_total=allocator.num_blocks * allocator.block_size
    )


def build_scheduler(
    cache: CacheConfig, config: SchedulerConfig, allocator: Allocator | None = None
) -> Scheduler:
    """The engine's own scheduler, over the allocator that ``cache`` names or over the one given."""
    return Scheduler(config, allocator or make_allocator(cache, config.max_num_seqs, config.max_model_len))
