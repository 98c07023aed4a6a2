"""What every engine of ``benchmarks/peers.py`` does in a process of its own: load, run rounds of requests, tell.

Runs in the peers' own environments, so it needs nothing but the standard library. Commands come as JSON lines on
standard input; answers go to the standard output that the process was started with, which nothing else can reach.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

Prompt = list[int]


class StepwiseEngine(Protocol):
    """An engine that is driven step by step."""

    def add(self, number: int, prompt: Prompt, output_tokens: int) -> None: ...

    def step(self) -> Iterable[tuple[int, int, bool]]:
        """(request, new tokens, whether it has ended) of those that moved."""


def run_stepwise(
    engine: StepwiseEngine, requests: list[tuple[Prompt, int]], concurrency: int
) -> dict[str, Any]:
    """All requests in their order, at most ``concurrency`` in the engine. Times in seconds from the round's start."""
    waiting = list(enumerate(requests))[::-1]
    added: dict[int, float] = {}
    first: dict[int, float] = {}
    tokens, running = 0, 0
    begin = time.perf_counter()
    while waiting or running:
        while waiting and running < concurrency:
            number, (prompt, output) = waiting.pop()
            added[number] = time.perf_counter()
            engine.add(number, prompt, output)
            running += 1
        for number, new, ended in engine.step():
            tokens += new
            if new and number not in first:
                first[number] = time.perf_counter()
            running -= ended
    seconds = time.perf_counter() - begin
    return result(seconds, tokens, [first[number] - added[number] for number in first])


def result(seconds: float, tokens: int, ttft: list[float]) -> dict[str, Any]:
    return {"seconds": seconds, "tokens": tokens, "ttft": sorted(ttft)}


def peak_bytes() -> int:
    """Most resident memory of this process and its children, each at its own peak."""
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        folder = Path("/proc") / str(pid)
        try:
            status = (folder / "status").read_text()
            for task in (folder / "task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) << 10
    return total


def serve(load: Callable[[dict[str, Any]], Any]) -> None:
    """``load(settings)`` gives an object with ``run(requests, concurrency)``, ``version`` and ``installed_bytes``."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    engine = load(settings)

    def answer(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    engine.run([([5, 6, 7, 8, 9, 10, 11, 12], 1)], 1)
    answer({"first_token": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "facts":
            answer(
                {
                    "version": engine.version,
                    "installed_bytes": engine.installed_bytes(),
                    "peak_bytes": peak_bytes(),
                }
            )
        else:
            answer(
                engine.run(
                    [(prompt, output) for prompt, output in command["requests"]], command["concurrency"]
                )
            )
    # Engines that join their helpers slowly have nothing more to say.
    os._exit(0)
