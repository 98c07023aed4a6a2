"""What the lab costs a server's requests: tokens a second with it idle and with it asked without a pause, in turns.

    python benchmarks/lab_overhead.py [--clients 4] [--rounds 8] [--seconds 4]

The load never stops. While the lab is asked, its processes always have runs to make (three policies, a seed that nobody
has asked for), as if somebody dragged a slider for the whole time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def post(url: str, path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: bytes = answer.read()
    return found


class Lab:
    """Asks while it is told to; counts the whole runs that it gets."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.asking = threading.Event()
        self.ended = threading.Event()
        self.runs = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        seed = 0
        while not self.ended.is_set():
            if not self.asking.wait(0.1):
                continue
            seed += 1
            self.runs += post(self._url, "/lab/answers", {"settings": {"seed": seed}}).count(
                b'"complete": true'
            )


def generated(server: Any) -> float:
    return float(server.metric("generation_tokens_total"))


def window(server: Any, seconds: float) -> float:
    """Tokens a second."""
    began, tokens = time.perf_counter(), generated(server)
    time.sleep(seconds)
    return (generated(server) - tokens) / (time.perf_counter() - began)


def cores_used(server: Any) -> float:
    """CPU seconds of the lab's processes so far."""
    children = psutil.Process(server.process.pid).children()
    return sum(sum(child.cpu_times()[:2]) for child in children)


def measure(server: Any, rounds: int, seconds: float) -> None:
    lab = Lab(server.url)
    lab.thread.start()
    post(server.url, "/lab/answers", {"settings": {}})  # its processes start before anything is measured
    idle, asked, used = [], [], []
    for _ in range(rounds):
        idle.append(window(server, seconds))
        lab.asking.set()
        time.sleep(0.3)
        before = cores_used(server)
        asked.append(window(server, seconds))
        used.append((cores_used(server) - before) / seconds)
        lab.asking.clear()
        time.sleep(1.0)  # its last runs end
    lab.ended.set()
    lab.thread.join()
    ratios = [b / a for a, b in zip(idle, asked, strict=True)]
    print(
        f"lab idle   {statistics.median(idle):>8.1f} tokens/s (median of {rounds} windows of {seconds:g} s)"
    )
    print(f"lab asked  {statistics.median(asked):>8.1f} tokens/s, while it made {lab.runs} whole runs")
    print(f"its share  {statistics.median(used):>8.2f} of a core")
    print(f"ratio      {statistics.median(ratios):>8.3f} median, {min(ratios):.3f} to {max(ratios):.3f}")


def main() -> None:
    from octavo.execution.embedded import embedded_model_path
    from server_process import serving

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with serving(
        str(embedded_model_path()), "--num-gpu-blocks-override", "4000", "--disable-log-stats"
    ) as server:
        over = threading.Event()

        def load(number: int) -> None:
            while not over.is_set():
                body = {"prompt": f"Story {number}:", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
                post(server.url, "/v1/completions", body)

        clients = [threading.Thread(target=load, args=(number,)) for number in range(options.clients)]
        for client in clients:
            client.start()
        time.sleep(2.0)
        try:
            measure(server, options.rounds, options.seconds)
        finally:
            over.set()
            for client in clients:
                client.join()


if __name__ == "__main__":
    main()
