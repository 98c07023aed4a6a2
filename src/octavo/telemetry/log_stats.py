"""The periodic line that people grep: rates since the line before, and the state of this moment."""

from __future__ import annotations

from dataclasses import replace

from octavo.telemetry.metrics import Metrics


class StatsLine:
    """Makes the line from the differences of two readings."""

    def __init__(self, metrics: Metrics, now: float, device: str = "CPU") -> None:
        self._metrics = metrics
        self._device = device
        self._before = replace(metrics.totals)
        self._at = now
        self._was_idle = False

    def line(self, now: float) -> str | None:
        """The line, or None while nothing runs and nothing ran since the line before."""
        totals, record = self._metrics.totals, self._metrics.newest
        before, seconds = self._before, max(now - self._at, 1e-9)
        self._before, self._at = replace(totals), now
        busy = record is not None and record.running + record.waiting > 0
        moved = totals.generation_tokens != before.generation_tokens
        if record is None or not (busy or moved or not self._was_idle):
            return None
        self._was_idle = not (busy or moved)
        # Preemptions: absent until one has happened, then always there.
        preemptions = f"Preemptions: {totals.preemptions}, " if totals.preemptions else ""
        prompt = (totals.computed_prompt_tokens - before.computed_prompt_tokens) / seconds
        generation = (totals.generation_tokens - before.generation_tokens) / seconds
        return (
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generation:.1f} tokens/s, "
            f"Running: {record.running} reqs, Waiting: {record.waiting} reqs, {preemptions}"
            f"{self._device} KV cache usage: {100 * record.pool.live / record.pool.total:.1f}%, "
            f"Prefix cache hit rate: {100 * totals.hits / totals.queries if totals.queries else 0:.1f}%"
            f"{self._lost()}"
        )

    def _lost(self) -> str:
        """What a larger pool would have found, where that is a point or more: else the line stays as people know it."""
        achieved, without_evictions, _ = self._metrics.lookups.rates()
        lost = without_evictions - achieved >= 0.01
        return f" (without evictions: {100 * without_evictions:.1f}%)" if lost else ""
