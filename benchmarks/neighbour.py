#!/usr/bin/env python3
"""What one busy neighbour on one of the cores costs: decoding with and without it, in turns.

    python benchmarks/neighbour.py              about a minute; nothing else should run

The neighbour is a process that computes without end, bound to one core; the engine has a thread on each. A fair system
gives the engine one core and half of the other, 0.75 of its speed; what waits for a descheduled thread gets less. A
stall is what a step took beyond the median step of its turn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import asdict, dataclass
from statistics import median

from octavo.core.machine import usable_cores
from octavo.core.sampling_params import SamplingParams
from octavo.llm.build import build_session, machine
from octavo.llm.options import EngineOptions
from octavo.llm.session import Session


@dataclass(frozen=True)
class Turn:
    streams: int
    neighbour: bool
    tokens_per_s: float
    longest_step_ms: float
    median_step_ms: float

    @property
    def longest_stall_ms(self) -> float:
        """How much longer than most steps of its turn the longest one took."""
        return self.longest_step_ms - self.median_step_ms


def burn(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def decode(session: Session, streams: int, seconds: float) -> tuple[float, float, float]:
    """(tokens/s, longest and median step in ms) of streams that all decode."""
    sampling = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True)
    completions = [session.add(session.prepare([5 + i] * 64, sampling)) for i in range(streams)]
    while any(not completion.token_ids for completion in completions):
        session.step()
    begin = last = time.perf_counter()
    steps = []
    while last - begin < seconds:
        session.step()
        now = time.perf_counter()
        steps.append(now - last)
        last = now
    session.abort(completions)
    return streams * len(steps) / (last - begin), 1e3 * max(steps), 1e3 * median(steps)


def turn(session: Session, streams: int, seconds: float, neighbour: bool) -> Turn:
    core = max(os.sched_getaffinity(0))
    process = multiprocessing.get_context("spawn").Process(target=burn, args=(core,), daemon=True)
    if neighbour:
        process.start()
        time.sleep(0.5)
    try:
        rate, longest, usual = decode(session, streams, seconds)
    finally:
        if neighbour:
            process.kill()
            process.join()
    return Turn(streams, neighbour, rate, longest, usual)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options = EngineOptions(num_blocks=20_000, enable_prefix_caching=False, threads=given.threads)
    session = build_session(options)
    turns = [
        turn(session, streams, given.seconds, neighbour)
        for _ in range(given.rounds)
        for streams in given.streams
        for neighbour in (False, True)
    ]
    if given.json:
        print(json.dumps({"machine": machine(), "turns": [asdict(one) for one in turns]}))
        return
    print(
        f"{machine()}, {given.threads} threads, SmolLM2-135M; medians of {given.rounds} turns of {given.seconds:g} s"
    )
    print(
        "streams   tokens/s alone   with a neighbour   ratio   median step, ms"
        "   longest stall, ms: alone   with a neighbour"
    )
    for streams in given.streams:
        quiet, busy = (
            [one for one in turns if one.streams == streams and one.neighbour is neighbour]
            for neighbour in (False, True)
        )
        alone, beside = (median(one.tokens_per_s for one in found) for found in (quiet, busy))
        print(
            f"{streams:>7}{alone:>17.1f}{beside:>19.1f}{beside / alone:>8.2f}"
            f"{median(one.median_step_ms for one in quiet):>18.1f}"
            f"{max(one.longest_stall_ms for one in quiet):>27.1f}{max(one.longest_stall_ms for one in busy):>19.1f}"
        )


if __name__ == "__main__":
    main()
