"""The thrash guard: when it pauses admission, when it lets go, and that everybody ends."""

from __future__ import annotations

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ConfigError
from octavo.core.events import AdmissionPaused, AdmissionResumed, Admitted, Preempted
from octavo.scheduling.thrash import ThrashGuard
from octavo.telemetry.lines import event_line
from scheduler_helpers import Bench, events


def paused(guard: ThrashGuard, step: int, running: int = 5) -> bool:
    guard.update(step, running, 2)
    return guard.paused


def test_it_pauses_at_the_limit_and_goes_on_after_a_quiet_window() -> None:
    guard = ThrashGuard(limit=3, window=10)
    for step in (1, 2, 3):
        assert not paused(guard, step)
        guard.preempted(step)
    assert guard.update(4, 5, 2) == (AdmissionPaused(3, 10, 5, 2),)
    assert [paused(guard, step) for step in range(5, 13)] == [True] * 8
    assert guard.update(13, 4, 1) == (AdmissionResumed(9, 1),)
    assert not guard.paused


def test_preemptions_that_lie_apart_do_not_pause_it() -> None:
    guard = ThrashGuard(limit=2, window=10)
    for step in range(0, 100, 10):
        assert not paused(guard, step)
        guard.preempted(step)


def test_it_never_keeps_an_idle_engine_waiting() -> None:
    guard = ThrashGuard(limit=1, window=10)
    guard.preempted(0)
    assert paused(guard, 1)
    assert not paused(guard, 2, running=0)


@pytest.mark.parametrize("field", ["thrash_preemptions", "thrash_window"])
def test_settings_are_checked(field: str) -> None:
    with pytest.raises(ConfigError, match="--thrash"):
        SchedulerConfig(**{field: 0})
    assert ThrashGuard.of(SchedulerConfig()) is None


def crowded(**config: object) -> Bench:
    """Forty requests that grow to 40 tokens each in a pool of 120."""
    bench = Bench(blocks=30, rows=40, length=36, **config)
    for name in range(40):
        bench.add(str(name), 4, 36)
    return bench


def test_a_crowded_pool_is_calmer_with_it_and_everybody_ends() -> None:
    records = {limit: crowded(thrash_preemptions=limit, thrash_window=20).drain() for limit in (None, 3)}
    preemptions = {
        limit: sum(len(events(record, Preempted)) for record in found) for limit, found in records.items()
    }
    assert 0 < preemptions[3] < preemptions[None]
    assert not any(events(record, AdmissionPaused) for record in records[None])
    pauses = [event for record in records[3] for event in events(record, AdmissionPaused)]
    ends = [event for record in records[3] for event in events(record, AdmissionResumed)]
    assert pauses
    assert len(pauses) - len(ends) in (0, 1)
    assert "preemptions within 20 steps" in event_line(pauses[0])
    assert "Admission resumed after" in event_line(ends[0])


def test_nobody_is_admitted_during_a_pause() -> None:
    paused = False
    for record in crowded(thrash_preemptions=3, thrash_window=20).drain():
        for event in record.events:
            if isinstance(event, AdmissionPaused | AdmissionResumed):
                paused = isinstance(event, AdmissionPaused)
            assert not (paused and isinstance(event, Admitted))
