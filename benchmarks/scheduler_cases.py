"""The workloads of the scheduler benchmark, for any scheduler that a ``Subject`` wraps. Needs NumPy alone.

Every figure is CPU time of this thread inside the scheduler: planning a step, applying its result, and (in the
saturated run) adding a request. Making prompts and results is outside.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

BLOCK_SIZE = 16
ROWS = (16, 64, 256, 1024)
PROMPT = 512
VOCABULARY = 49_152
BUDGET = 8_192
"""Tokens a step, except in our saturated run, which is the article's and has none."""
MODEL_LEN = 8_192
WAITING = 32
"""Requests that a saturated queue holds at least."""


class Subject(Protocol):
    """A scheduler with a stub in the model's place. Times are CPU nanoseconds of this thread."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    preemptions: int
    """Since the start."""
    tokens: int
    """In the latest step."""

    def add(self, prompt: np.ndarray, max_tokens: int) -> int: ...

    def step(self) -> int: ...


@dataclass(frozen=True)
class Pool:
    blocks: int
    max_num_seqs: int
    caching: bool
    unlimited_budget: bool = False


Make = Callable[[Pool], Subject]


class Prompts:
    """Random token ids, the same for every subject."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def make(self, length: int) -> np.ndarray:
        return self.rng.integers(3, VOCABULARY, length, dtype=np.int32)


def settle() -> None:
    """Collect what start-up left behind, so that no collection of it falls into a measured step."""
    gc.collect()
    gc.freeze()


def windows_us(subject: Subject, count: int, before: Callable[[], None] = lambda: None) -> float:
    """Median over ``count`` windows of the mean microseconds a step; a window is one block of every row."""
    means = []
    for _ in range(count):
        total = 0
        for _ in range(BLOCK_SIZE):
            before()
            total += subject.step()
        means.append(total / BLOCK_SIZE / 1e3)
    return median(means)


def decode(make: Make, rows: int, caching: bool, windows: int) -> float:
    """Microseconds of a step in which ``rows`` sequences decode and nothing else happens."""
    steps = BLOCK_SIZE * (windows + 4)
    subject = make(Pool(rows * ((PROMPT + steps + 64) // BLOCK_SIZE + 1) + 1, rows, caching))
    prompts = Prompts(rows)
    for _ in range(rows):
        subject.add(prompts.make(PROMPT), MODEL_LEN - PROMPT - 1)
    while subject.running < rows or subject.tokens != rows:
        subject.step()
    for _ in range(2 * BLOCK_SIZE):
        subject.step()
    settle()
    result = windows_us(subject, windows)
    assert subject.preemptions == 0 and subject.tokens == rows
    return result


def pressure(make: Make, rows: int, caching: bool, windows: int) -> tuple[float, float]:
    """(microseconds a step, preemptions a step) with about ``rows`` running and a pool that is always full.

    Outputs of 384 to 640 tokens, the first ones staggered; the pool holds what ``rows`` sequences want on average.
    """
    subject = make(Pool(int(rows * 48 * 1.02) + 1, 2 * rows, caching))
    prompts = Prompts(rows)
    first = rows

    def top_up() -> None:
        nonlocal first
        while subject.waiting < WAITING:
            subject.add(prompts.make(PROMPT), prompts.between(1 if first > 0 else 384, 640))
            first -= 1

    for _ in range(768):
        top_up()
        subject.step()
    settle()
    start = subject.preemptions
    result = windows_us(subject, windows, top_up)
    return result, (subject.preemptions - start) / (BLOCK_SIZE * windows)


def saturated(make: Make, caching: bool, steps: int) -> tuple[float, float]:
    """(steps a second of CPU time, mean number running): the article's pool, prompts of 4,000 to 4,200 tokens."""
    subject = make(Pool(25_327, 128, caching, unlimited_budget=True))
    prompts = Prompts(0)
    settle()
    total = running = 0
    for _ in range(steps):
        while subject.waiting < WAITING:
            total += subject.add(prompts.make(prompts.between(4_000, 4_200)), prompts.between(128, 384))
        total += subject.step()
        running += subject.running
    return steps / (total / 1e9), running / steps


def run_all(make: Make, scale: float, say: Callable[[str], None]) -> dict[str, object]:
    """Every case. ``scale`` multiplies the number of windows and steps."""
    result: dict[str, object] = {}
    for caching in (False, True):
        suffix = "_caching" if caching else ""
        decode_us, pressure_us, preempted = {}, {}, {}
        for rows in ROWS:
            windows = max(3, int(scale * max(12, 4_000 // rows)))
            decode_us[str(rows)] = round(decode(make, rows, caching, min(windows, 100)), 2)
            say(
                f"decode, {rows} rows, prefix caching {'on' if caching else 'off'}: {decode_us[str(rows)]} us"
            )
        for rows in ROWS:
            windows = max(3, int(scale * max(16, 1_500 // rows)))
            us, rate = pressure(make, rows, caching, windows)
            pressure_us[str(rows)], preempted[str(rows)] = round(us, 2), round(rate, 3)
            say(f"pressure, {rows} rows: {us:.1f} us, {rate:.2f} preemptions a step")
        steps_per_s, running = saturated(make, caching, int(scale * 3_000))
        say(f"saturated: {steps_per_s:.0f} steps/s, {running:.1f} running")
        result[f"decode{suffix}_us"] = decode_us
        result[f"pressure{suffix}_us"] = pressure_us
        result[f"preemptions{suffix}_per_step"] = preempted
        result[f"saturated{suffix}_steps_per_s"] = round(steps_per_s, 1)
    return result
