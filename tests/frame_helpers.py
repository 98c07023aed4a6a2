"""A scheduler that is run by the simulator, and frames read back as the page reads them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.dashboard.blocks import FINDABLE, LIVE, PARTIAL, SHARED
from octavo.dashboard.frames import FrameSource
from octavo.engine.engine import Engine
from octavo.simulation.driver import build_scheduler
from octavo.simulation.executor import SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.requests import SimulatedRequest


class Run:
    """An engine of the simulator with a ``FrameSource`` that listens."""

    def __init__(
        self, num_blocks: int, *, max_num_seqs: int = 16, max_model_len: int = 2048, **cache: Any
    ) -> None:
        scheduler = build_scheduler(
            CacheConfig(num_blocks=num_blocks, **cache),
            SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=max_model_len),
        )
        self.clock = VirtualClock()
        self.executor = SimulatedExecutor(self.clock, StepCost(), max_num_seqs=max_num_seqs)
        self.source = FrameSource(scheduler)
        self.engine = Engine(scheduler, self.executor, self.clock, self.source)
        self.scheduler = scheduler

    def add(self, request_id: str, prompt: NDArray[np.int32] | int, output: int) -> None:
        tokens = np.arange(prompt, dtype=np.int32) if isinstance(prompt, int) else prompt
        request = Request(request_id, tokens, SamplingParams(max_tokens=output))
        self.executor.expect(SimulatedRequest(0.0, request, output, hash(request_id) & 0xFFFF))
        self.engine.add(request)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    def snapshot(self) -> dict[str, Any]:
        return self.source.snapshot(self.clock.now())

    def delta(self) -> dict[str, Any]:
        return self.source.delta(self.clock.now())


def unpack(packed: list[str]) -> NDArray[Any]:
    kind, data = packed
    return np.frombuffer(base64.b64decode(data), f"<{kind}")


class Page:
    """What a page knows after some frames: the same as ``PoolState`` in frames.js, written by other hands."""

    def __init__(self, frame: dict[str, Any]) -> None:
        assert frame["kind"] == "snapshot"
        total = frame["pool"]["total"]
        columns = ("flags", "owner", "position", "fill", "refs")
        self.columns = {name: np.zeros(total, np.int64) for name in columns}
        self.released = np.zeros(total)
        self.names: dict[int, bytes] = {}
        self.borrowed: dict[int, dict[int, int]] = {}
        self.sequence = frame["sequence"] - 1
        self.apply(frame)

    def apply(self, frame: dict[str, Any]) -> None:
        assert frame["sequence"] == self.sequence + 1
        self.sequence = frame["sequence"]
        blocks = frame["blocks"]
        index = np.arange(blocks["count"]) if blocks["index"] is None else unpack(blocks["index"])
        flags = unpack(blocks["flags"])
        live, partial, shared, findable = ((flags & bit) > 0 for bit in (LIVE, PARTIAL, SHARED, FINDABLE))
        for column in self.columns.values():
            column[index] = 0
        self.columns["flags"][index] = flags
        self.columns["owner"][index[live]] = unpack(blocks["owner"])
        self.columns["position"][index[live]] = unpack(blocks["position"])
        self.columns["fill"][index[live]] = frame["pool"]["block_size"]
        self.columns["fill"][index[partial]] = unpack(blocks["fill"])
        self.columns["refs"][index[live]] = 1
        self.columns["refs"][index[shared]] = unpack(blocks["refs"])
        self.released[index[findable & ~live]] = frame["time"] - unpack(blocks["idle"]) / 100
        names = base64.b64decode(blocks["name"])
        for place, block in enumerate(index[findable].tolist()):
            self.names[block] = names[3 * place : 3 * place + 3]
        for number, positions, held in frame["borrowed"]:
            self.borrowed[number] = dict(zip(unpack(positions).tolist(), unpack(held).tolist(), strict=True))

    def table(self, number: int) -> list[int]:
        """Blocks of a running request, in order."""
        owned = np.flatnonzero(self.columns["owner"] == number)
        entries = {int(self.columns["position"][block]): int(block) for block in owned}
        entries |= self.borrowed.get(number, {})
        return [entries[position] for position in sorted(entries)]
