"""The article's experiment (PagedAttention against contiguous reservation), through the real scheduler.

55.65 GiB of keys and values at 147,456 bytes a token; a saturated queue; 3,000 steps of which the last 2,000 count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.events import Preempted
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.memory.sizing import MIB
from scheduler_helpers import ScriptedExecutor, make_scheduler, step

SEED = 132848
POOL_TOKENS = 405_239
BYTES_PER_TOKEN = 147_456
STEPS, WARM_UP = 3_000, 1_000


def mulberry32(state: int) -> Iterator[float]:
    """Uniform numbers in [0, 1) from 32 bits of state."""
    while True:
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        t = (state ^ (state >> 15)) * (state | 1) & 0xFFFFFFFF
        t ^= (t + ((t ^ (t >> 7)) * (t | 61))) & 0xFFFFFFFF
        yield ((t ^ (t >> 14)) & 0xFFFFFFFF) / 2**32


def requests(spread: int, max_tokens: int) -> Iterator[tuple[Request, int]]:
    """(request, true output length). The draws do not depend on the settings."""
    draw = mulberry32(SEED)
    system = np.arange(1_000, dtype=np.int32)
    for number, (u0, u1, u2) in enumerate(zip(draw, draw, draw, strict=False), start=1):
        prompt = math.floor(1_000 * 10**u0 + 0.5)
        z = math.sqrt(-2 * math.log(1 - u1)) * math.cos(2 * math.pi * u2)
        output = min(max(math.floor(256 * math.exp(spread / 100 * z) + 0.5), 1), 2_048, max_tokens)
        ids = np.full(prompt, number, np.int32)
        ids[:1_000] = system
        yield Request(f"{number}", ids, SamplingParams(max_tokens=max_tokens)), output


@dataclass
class Figures:
    tokens_per_step: float
    effective: float
    empty_mib: float
    empty_mib_max: float
    preemptions: int
    discarded: int


def run(cache: CacheConfig, max_tokens: int, spread: int = 70) -> Figures:
    config = SchedulerConfig(
        max_num_seqs=128,
        max_num_batched_tokens=None,
        max_model_len=40_960,
        order="admission_first",
        preemption="restart",
    )
    scheduler = make_scheduler(cache, config)
    lengths: dict[str, int] = {}
    executor = ScriptedExecutor(lengths.__getitem__, config.max_num_seqs)
    queue = requests(spread, max_tokens)
    residents, written, held, preempted = [], [], [], []
    for number in range(STEPS):
        while scheduler.num_waiting < 130:
            request, output = next(queue)
            lengths[request.request_id] = output
            scheduler.add(request)
        record = step(scheduler, executor, check=number % 500 == 0)
        assert record is not None
        if number >= WARM_UP:
            waste = record.waste
            residents.append(len(record.plan.rows))
            written.append(waste.written)
            held.append(waste.written + waste.reserved + waste.internal)
            preempted += [event for event in record.events if isinstance(event, Preempted)]
    discarded = sum(event.tokens_discarded for event in preempted)
    empty = (np.array(held) - np.array(written)) * BYTES_PER_TOKEN / MIB
    return Figures(
        tokens_per_step=(sum(residents) - discarded) / len(residents),
        effective=100 * sum(written) / sum(held),
        empty_mib=float(empty.mean()),
        empty_mib_max=float(empty.max()),
        preemptions=len(preempted),
        discarded=discarded,
    )


def test_requests_are_the_same_on_every_machine() -> None:
    queue = requests(70, 2_048)
    first = [(len(request.prompt_token_ids), output) for request, output in (next(queue) for _ in range(3))]
    assert first == [(1_204, 192), (7_771, 164), (3_413, 354)]


def test_paged() -> None:
    figures = run(CacheConfig(POOL_TOKENS // 16, 16, enable_prefix_caching=False), 2_048)
    assert figures.tokens_per_step == pytest.approx(95.4, rel=0.025)
    assert figures.effective == pytest.approx(99.8, abs=1.5)
    assert figures.empty_mib == pytest.approx(101, rel=0.03)
    assert figures.empty_mib_max <= 200
    assert 35 <= figures.preemptions <= 60
    assert 90 <= figures.discarded <= 190


@pytest.mark.parametrize(
    ("max_tokens", "tokens_per_step", "effective"), [(2_048, 43.7, 48), (16_384, 12.0, 13.5)]
)
def test_contiguous_rounded_up(max_tokens: int, tokens_per_step: float, effective: float) -> None:
    figures = run(CacheConfig(POOL_TOKENS, 1, "pow2", "first_fit"), max_tokens)
    assert figures.tokens_per_step == pytest.approx(tokens_per_step, rel=0.025)
    assert figures.effective == pytest.approx(effective, abs=1.5)
    assert figures.preemptions == 0
