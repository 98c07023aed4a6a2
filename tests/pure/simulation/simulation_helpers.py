"""Small engines for tests of the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import StepRecord
from octavo.scheduling.scheduler import Scheduler
from octavo.simulation.driver import build_scheduler
from octavo.simulation.requests import SimulatedRequest
from octavo.simulation.workloads import OpenLoop, synthetic


def scheduler(blocks: int = 64, block_size: int = 4, **settings: object) -> Scheduler:
    """A scheduler over a paged pool; ``caching`` and the fields of SchedulerConfig by name."""
    caching = bool(settings.pop("caching", False))
    known: dict[str, object] = {"max_num_seqs": 4, "max_model_len": 256, **settings}
    cache = CacheConfig(num_blocks=blocks, block_size=block_size, enable_prefix_caching=caching)
    return build_scheduler(cache, SchedulerConfig(**known))  # type: ignore[arg-type]


def requests(
    arrivals: Sequence[float], lengths: Sequence[tuple[int, int]], max_tokens: int | None = 100
) -> Iterator[SimulatedRequest]:
    return synthetic(iter(arrivals), iter(lengths), max_tokens=max_tokens)


def open_loop(
    arrivals: Sequence[float], lengths: Sequence[tuple[int, int]], max_tokens: int | None = 100
) -> OpenLoop:
    return OpenLoop(requests(arrivals, lengths, max_tokens))


class Collect:
    """A sink that keeps the steps that ran rows (an end is told by one without)."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.times: list[float] = []

    def emit(self, record: StepRecord, now: float) -> None:
        if len(record.plan.rows):
            self.records.append(record)
            self.times.append(now)
