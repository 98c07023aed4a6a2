"""What an open page costs the server: tokens a second without one, with one, and with none again, in turns.

    python benchmarks/page_overhead.py [--model MODEL] [--clients 16] [--rounds 12] [--seconds 3] [--browser]

The load never stops; only the page comes and goes. The page is a reader of its feed, which is what the server sees of
one; with ``--browser`` it is a real Chromium on this machine, whose drawing then takes its share of the same cores.
The last line is what the engine's thread pays for a frame, in CPU time: it holds where neighbours disturb the windows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.dashboard.feed import INTERVAL_S
from octavo.dashboard.frames import FrameSource
from octavo.engine.engine import Engine
from octavo.simulation.driver import build_scheduler
from octavo.simulation.executor import SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.requests import SimulatedRequest

TOKENS = 256
WARM_S = 3.0
SETTLE_S = 0.7
"""After a page has come or gone, before a window begins."""


async def load(port: int, seed: int) -> None:
    """One client: a streamed completion after another."""
    chance = random.Random(seed)
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps(
            {
                "prompt": f"{chance.random()} is a number, and the sea is",
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
        )
        while await reader.read(1 << 16):
            pass
        writer.close()


def generated(port: int) -> float:
    """Tokens since the start, from the metrics."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    found = re.search(r"^octavo:generation_tokens_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    assert found, "the metrics name their tokens"
    return float(found[1])


class Window(NamedTuple):
    tokens_per_s: float
    loop_per_token: float
    """CPU seconds of the server's event loop a token."""


def loop_seconds(server: psutil.Process) -> float:
    """CPU time so far of the server's main thread, which runs the event loop."""
    (main,) = [thread for thread in server.threads() if thread.id == server.pid]
    return main.user_time + main.system_time


async def window(port: int, server: psutil.Process, seconds: float) -> Window:
    loop = asyncio.get_running_loop()
    first, began, cpu = await asyncio.to_thread(generated, port), loop.time(), loop_seconds(server)
    await asyncio.sleep(seconds)
    last, ended = await asyncio.to_thread(generated, port), loop.time()
    return Window((last - first) / (ended - began), (loop_seconds(server) - cpu) / max(last - first, 1))


def frame_seconds(rows: int, blocks: int) -> float:
    """CPU seconds that one frame takes of the engine's thread: that many requests run, three steps since the last."""
    scheduler = build_scheduler(CacheConfig(num_blocks=blocks), SchedulerConfig(max_num_seqs=rows))
    clock = VirtualClock()
    executor = SimulatedExecutor(clock, StepCost(), max_num_seqs=rows)
    source = FrameSource(scheduler)
    engine = Engine(scheduler, executor, clock, source)
    for number in range(rows):
        prompt = np.arange(number, number + 100, dtype=np.int32)
        request = Request(f"request-{number}", prompt, SamplingParams(max_tokens=TOKENS))
        executor.expect(SimulatedRequest(0.0, request, TOKENS, number))
        engine.add(request)
    engine.step()
    source.snapshot(clock.now())
    spent = []
    for _ in range(50):
        for _ in range(3):
            engine.step()
        began = time.thread_time()
        source.delta(clock.now())
        spent.append(time.thread_time() - began)
    return statistics.median(spent)


@contextlib.asynccontextmanager
async def reader_page(port: int) -> AsyncIterator[list[int]]:
    """A page as the server sees it. Yields [bytes read]."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /page/feed HTTP/1.1\r\nhost: x\r\n\r\n")
    read = [0]

    async def drain() -> None:
        while data := await reader.read(1 << 20):
            read[0] += len(data)

    task = asyncio.ensure_future(drain())
    try:
        yield read
    finally:
        writer.close()
        task.cancel()


@contextlib.asynccontextmanager
async def browser_page(port: int) -> AsyncIterator[list[int]]:
    """A real page in a headless Chromium."""
    from playwright.async_api import async_playwright

    program = shutil.which("chromium")
    async with async_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = await playwright.chromium.launch(executable_path=program, args=flags)
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.wait_for_selector(".log-line")
        await asyncio.sleep(2)
        yield [0]
        await browser.close()


async def measure(
    port: int, server: psutil.Process, options: argparse.Namespace
) -> tuple[list[Window], list[Window], list[Window], float]:
    """(no page, page, no page) windows in turns, and bytes a second of the feed."""
    clients = [asyncio.ensure_future(load(port, seed)) for seed in range(options.clients)]
    await asyncio.sleep(WARM_S)
    before, during, after, rates = [], [], [], []
    page = browser_page if options.browser else reader_page
    for _ in range(options.rounds):
        await asyncio.sleep(SETTLE_S)
        before.append(await window(port, server, options.seconds))
        async with page(port) as read:
            await asyncio.sleep(SETTLE_S)
            first = read[0]
            during.append(await window(port, server, options.seconds))
            rates.append((read[0] - first) / options.seconds)
        await asyncio.sleep(SETTLE_S)
        after.append(await window(port, server, options.seconds))
    for client in clients:
        client.cancel()
    return before, during, after, statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--browser", action="store_true")
    options = parser.parse_args()
    command = [str(Path(sys.executable).with_name("octavo")), "serve", "--port", "0"]
    command += [options.model] if options.model else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = next(
            int(found[1]) for line in process.stderr if (found := re.search(r"Ready in .*:(\d+)", line))
        )
        before, during, after, rate = asyncio.run(measure(port, psutil.Process(process.pid), options))
    finally:
        process.terminate()
        process.wait(30)
    pairs = list(zip(before, during, after, strict=True))
    without = [(a.tokens_per_s + b.tokens_per_s) / 2 for a, _, b in pairs]
    costs = [100 * (1 - page.tokens_per_s / none) for page, none in zip(during, without, strict=True)]
    noise = [100 * (1 - b.tokens_per_s / a.tokens_per_s) for a, _, b in pairs]
    loop = [1e6 * (page.loop_per_token - (a.loop_per_token + b.loop_per_token) / 2) for a, page, b in pairs]
    alone = statistics.median((a.loop_per_token + b.loop_per_token) / 2 for a, _, b in pairs)
    speed = statistics.median(page.tokens_per_s for page in during)
    kind = "a page in Chromium on the same machine" if options.browser else "an open page"
    print(f"{options.clients} clients, {options.rounds} rounds of {options.seconds:g} s windows, medians")
    print(f"no page: {statistics.median(without):.1f} tokens/s")
    print(f"{kind}: {speed:.1f} tokens/s; its feed {rate / 1e3:.1f} kB/s")
    print(
        f"overhead: {statistics.median(costs):+.2f} % (limit 2 %); two windows without a page differ by "
        f"{statistics.median(noise):+.2f} % (median), {statistics.median(map(abs, noise)):.2f} % (median of sizes)"
    )
    print(
        f"event loop: {statistics.median(loop):+.1f} us of CPU a token with a page, beside {1e6 * alone:.1f} without: "
        f"{100 * statistics.median(loop) * 1e-6 * speed:+.2f} % of a core"
    )
    for rows, blocks in ((options.clients, 4096), (options.clients, 65_536), (256, 100_000)):
        cost = frame_seconds(rows, blocks)
        print(
            f"a frame of {blocks:,} blocks and {rows} running requests: {cost * 1e3:.2f} ms, "
            f"{100 * cost / INTERVAL_S:.2f} % of the engine's time at {1 / INTERVAL_S:.0f} a second"
        )


if __name__ == "__main__":
    main()
