"""What the pool means for the requests that came: the line, and when it is said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from octavo.core.events import Finished
from octavo.core.plan import FinishReason
from octavo.telemetry.boot import boot_lines
from octavo.telemetry.workload import SEEN_MIN, WorkloadLine, at_percentile, workload_line
from scheduler_helpers import Bench


def test_percentiles_are_values_that_occurred() -> None:
    assert at_percentile(range(1, 101), 50) == 50
    assert at_percentile(range(1, 101), 95) == 95
    assert at_percentile([7], 95) == 7
    assert at_percentile([1, 1000], 50) == 1


@pytest.mark.parametrize(
    ("num_blocks", "rows", "end"),
    [
        (1000, 8, "the pool holds 100 and 10 of these at once; --max-num-seqs 8 is the limit for both"),
        (
            1000,
            64,
            "the pool holds 100 and 10 of these at once; --max-num-seqs 64 is the limit at p50, "
            "the pool (--kv-cache-memory-bytes) at p95",
        ),
        (
            100,
            64,
            "the pool holds 10 and 1 of these at once; the pool (--kv-cache-memory-bytes) is the limit for both",
        ),
    ],
)
def test_the_line(num_blocks: int, rows: int, end: str) -> None:
    tokens = [150] * 90 + [1_600] * 10
    blocks = [10] * 90 + [100] * 10
    assert workload_line(tokens, blocks, num_blocks, rows) == (
        f"Workload: the latest 100 requests had 150 tokens at p50 and 1,600 at p95, prompt and answer; {end}"
    )


class Told:
    """Ends of requests without the requests: a step's record with other events in it."""

    def __init__(self) -> None:
        bench = Bench(10)
        bench.add("a", 2, 1)
        self._record = bench.step()
        self.lines: list[str] = []
        self.sink = WorkloadLine(self.lines.append, num_blocks=1000, max_num_seqs=64)

    def end(self, count: int, tokens: int, now: float, blocks: int | None = None) -> None:
        held = -(-tokens // 16) if blocks is None else blocks
        for _ in range(count):
            event = Finished("r", FinishReason.LENGTH, tokens - 10, 10, 0, 0, held)
            self.sink.emit(replace(self._record, events=(event,)), now)


def test_nothing_is_said_of_too_few() -> None:
    told = Told()
    told.end(SEEN_MIN - 1, 100, 0.0)
    told.end(50, 100, 0.0, blocks=0)  # they ended in the queue and held nothing
    assert told.lines == []
    told.end(1, 100, 0.0)
    (line,) = told.lines
    assert "the latest 100 requests had 100 tokens at p50 and 100 at p95" in line


def test_it_is_said_again_when_the_lengths_have_moved_and_at_most_once_a_minute() -> None:
    told = Told()
    told.end(SEEN_MIN, 100, 0.0)
    told.end(500, 400, 59.0)
    assert len(told.lines) == 1, "not within a minute"
    told.end(1, 400, 61.0)
    assert "had 400 tokens at p50" in told.lines[1]
    told.end(1, 400, 200.0)
    assert len(told.lines) == 2, "nothing has moved"
    told.end(1000, 480, 300.0)
    assert len(told.lines) == 2, "a fifth is no news"
    told.end(600, 900, 301.0)
    told.end(1, 900, 400.0)
    assert len(told.lines) == 3
    assert "the latest 1,000 requests had 900 tokens at p50" in told.lines[2]


def test_the_long_ones_alone_are_news_too() -> None:
    told = Told()
    told.end(SEEN_MIN, 100, 0.0)
    told.end(20, 1000, 1.0)
    assert len(told.lines) == 1
    told.end(1, 1000, 100.0)
    assert "had 100 tokens at p50 and 1,000 at p95" in told.lines[1]


def test_the_boot_lines() -> None:
    lines = boot_lines(
        device="CPU",
        tokens=1600,
        max_model_len=200,
        pool_bytes=1 << 20,
        num_blocks=100,
        block_size=16,
        max_num_seqs=4,
    )
    assert lines[0] == "CPU KV cache size: 1,600 tokens"
    assert lines[1] == "Maximum concurrency for 200 tokens per request: 8.00x"
    assert "4 requests of 200 tokens run at once" in lines[2]
    assert "--max-num-seqs 4 binds at every length" in lines[2]
    (roomy,) = boot_lines(
        device="CPU",
        tokens=1600,
        max_model_len=800,
        pool_bytes=1,
        num_blocks=100,
        block_size=16,
        max_num_seqs=9,
    )[2:]
    assert "3 requests of 512 tokens run at once" in roomy
    assert "--max-num-seqs 9 binds below 177 tokens per request, the pool above" in roomy


def test_a_pool_below_the_longest_request_says_what_the_longest_is() -> None:
    *_, pool, last = boot_lines(
        device="CPU",
        tokens=320,
        max_model_len=2048,
        pool_bytes=1,
        num_blocks=20,
        block_size=16,
        max_num_seqs=4,
    )
    assert "1 requests of 320 tokens run at once" in pool
    assert last.startswith(
        "The pool is smaller than --max-model-len 2,048: a request may have at most 320 tokens"
    )
