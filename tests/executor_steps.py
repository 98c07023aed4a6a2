"""Driving an executor by hand: plans for a few sequences, without scheduler and memory manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.core.plan import RowStart, StepPlan, StepResult
from octavo.core.ports import Executor
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
NO_COPIES = np.empty((0, 2), np.int32)


@dataclass
class Sequences:
    """Sequences in consecutive rows; row r holds the blocks r x blocks_each + [0, blocks_each), in scrambled order."""

    executor: Executor
    block_size: int
    blocks_each: int
    rows: int
    table: NDArray[np.int32] = field(init=False)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    starts: list[RowStart] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        blocks = np.random.default_rng(0).permutation(self.rows * self.blocks_each)
        self.table = blocks.reshape(self.rows, self.blocks_each).astype(np.int32)

    def start(self, row: int, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> None:
        self.tokens[row], self.computed[row] = list(prompt), 0
        request = Request(f"row {row}", np.array(prompt, np.int32), sampling)
        self.starts.append(RowStart(row, request, np.empty(0, np.int32), 0))

    def end(self, row: int) -> None:
        self.ended.append(row)
        del self.tokens[row], self.computed[row]

    def plan(self, scheduled: dict[int, int], copies: NDArray[np.int32] = NO_COPIES) -> StepPlan:
        """A step that computes ``scheduled[row]`` more tokens of each row named."""
        rows = list(scheduled)
        inputs = [
            self.tokens[row][self.computed[row] : self.computed[row] + n] for row, n in scheduled.items()
        ]
        assert all(len(found) == n for found, n in zip(inputs, scheduled.values(), strict=True))
        plan = StepPlan(
            self.steps,
            np.array(rows, np.int32),
            np.array([self.computed[row] for row in rows], np.int32),
            np.array(list(scheduled.values()), np.int32),
            np.array([token for found in inputs for token in found], np.int32),
            np.array(
                [self.computed[row] + n == len(self.tokens[row]) for row, n in scheduled.items()], np.bool_
            ),
            self.table,
            copies,
            tuple(self.starts),
            tuple(self.ended),
        )
        self.starts, self.ended, self.steps = [], [], self.steps + 1
        return plan

    def step(self, scheduled: dict[int, int]) -> StepResult:
        """Run a step and append what it sampled."""
        plan = self.plan(scheduled)
        result = self.executor.collect(self.executor.submit(plan))
        for row, n in scheduled.items():
            self.computed[row] += n
        for row, token in zip(plan.rows[plan.samples].tolist(), result.token_ids.tolist(), strict=True):
            self.tokens[row].append(token)
        return result

    def decode(self, steps: int) -> None:
        """``steps`` steps of one token for every row."""
        for _ in range(steps):
            self.step(dict.fromkeys(self.tokens, 1))
