"""What serving adds to the bare engine: the event loop's share of a step at 64 streams, and a lone first token.

    python benchmarks/serving_overhead.py [--model MODEL] [--clients 64] [--tokens 200]

Clients are plain sockets in this process, so that they cost little; the loop's share is the CPU time of the server's
event-loop thread over the wall time of the steps, whatever the clients do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from octavo.core.sampling_params import SamplingParams
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions

PROMPT = "Tell me about the sea, the sky and everything between them, in order. "
PAUSE_S = 0.05
"""Between two lone requests: one that follows at once finds warmer caches than any lone request has."""


async def stream(port: int, tokens: int, prompt: str) -> tuple[float, float, int]:
    """(seconds to the first event, seconds to the end, events) of one streamed completion."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    ).encode()
    began = time.perf_counter()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    first, count, tail = 0.0, 0, b""
    while b"[DONE]" not in tail:
        data = await reader.read(1 << 16)
        assert data, "the server closed the connection"
        if not count and b"data: " in data:
            first = time.perf_counter() - began
        count += data.count(b"data: ")
        tail = (tail + data)[-16:]
    ended = time.perf_counter() - began
    writer.close()
    return first, ended, count - 1


def bare(model: str | None, clients: int, tokens: int) -> tuple[float, float]:
    """(seconds of a step with that many requests, seconds to a lone first token) of the engine without a server."""
    session = build_session(EngineOptions(model=model, max_num_seqs=clients))
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    firsts = []
    for number in range(24):
        lone = session.add(session.prepare(f"{number} {PROMPT}", sampling))
        began = time.perf_counter()
        while not lone.token_ids:
            session.step()
        firsts.append(time.perf_counter() - began)
        session.abort([lone])
        time.sleep(PAUSE_S)
    many = [session.add(session.prepare(f"{number} {PROMPT}", sampling)) for number in range(clients)]
    while not all(one.token_ids for one in many):
        session.step()
    began, steps = time.perf_counter(), 0
    while not many[0].finished:
        session.step()
        steps += 1
    return (time.perf_counter() - began) / max(steps, 1), statistics.median(firsts[2:])


def loop_seconds(server: psutil.Process) -> float:
    """CPU time so far of the server's main thread, which runs the event loop."""
    (main,) = [thread for thread in server.threads() if thread.id == server.pid]
    return main.user_time + main.system_time


async def served(port: int, server: psutil.Process, clients: int, tokens: int) -> tuple[float, float, float]:
    """(seconds of a step, CPU seconds of the loop a step, seconds to a lone first event)."""
    firsts = []
    for number in range(24):
        firsts.append((await stream(port, 2, f"{number} {PROMPT}"))[0])
        await asyncio.sleep(PAUSE_S)
    cpu, began = loop_seconds(server), time.perf_counter()
    answers = await asyncio.gather(
        *(stream(port, tokens, f"{number + 24} {PROMPT}") for number in range(clients))
    )
    seconds, cpu = time.perf_counter() - began, loop_seconds(server) - cpu
    assert all(count == tokens for _, _, count in answers), "an event a token"
    decoding = seconds - statistics.mean(first for first, _, _ in answers)
    return decoding / tokens, cpu / tokens, statistics.median(firsts[2:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    bare_step, bare_first = bare(options.model, options.clients, options.tokens)
    command = [str(Path(sys.executable).with_name("octavo")), "serve", "--port", "0"]
    command += ["--max-num-seqs", str(options.clients)] + ([options.model] if options.model else [])
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if match := re.search(r"Ready in .*:(\d+)", line):
                port = int(match[1])
                break
        step, loop, first = asyncio.run(
            served(port, psutil.Process(process.pid), options.clients, options.tokens)
        )
    finally:
        process.terminate()
        process.wait(30)
    print(f"step with {options.clients} requests: bare {bare_step * 1e3:.2f} ms, served {step * 1e3:.2f} ms")
    print(
        f"event loop a step: {loop * 1e3:.2f} ms of CPU, {100 * loop / step:.1f} % of the step (limit 10 %)"
    )
    print(
        f"lone first token: bare {bare_first * 1e3:.2f} ms, served {first * 1e3:.2f} ms, "
        f"{first / bare_first:.2f}x (limit 1.3x)"
    )


if __name__ == "__main__":
    main()
