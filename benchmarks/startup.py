"""From the start of a process to its first token, and what an installation weighs.

    python benchmarks/startup.py [--runs 5] [--port 8290] [--json] [-- FLAGS OF octavo serve]

Every run starts ``octavo serve`` anew with the model's file cached, waits for its ready line, and streams a completion
of one short prompt until the first token. Processor time, of all threads, is printed beside it: on a busy machine it is
the steadier of the two. Sizes are those of the installed package, its native part included, and of what it needs at run
time (``benchmarks/engines/installed.py``, as in ``benchmarks/peers.py``).
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

import octavo
from engines.installed import installed_bytes

READY = "Ready in"
PROMPT = "The moon is"


def await_first_token(port: int) -> None:
    """Returns once the first piece of a streamed answer is here."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    line = answer.readline()
    assert line.startswith(b"data: {"), line
    connection.close()


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def one_start(port: int, flags: list[str]) -> tuple[float, float, float, float]:
    """Seconds from the process's start to its ready line and to the first token; processor seconds until each."""
    command = [str(Path(sys.executable).with_name("octavo")), "serve", "--port", str(port), *flags]
    start = time.perf_counter()
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = []
    try:
        for line in server.stderr:
            said.append(line)
            if READY in line:
                break
        else:
            raise SystemExit("the server did not start:\n" + "".join(said))
        process = psutil.Process(server.pid)
        ready, ready_processor = time.perf_counter() - start, processor_s(process)
        await_first_token(port)
        return ready, time.perf_counter() - start, ready_processor, processor_s(process)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def spread(values: list[float]) -> dict[str, float]:
    return {"median_s": statistics.median(values), "min_s": min(values), "max_s": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--port", type=int, default=8290)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("flags", nargs="*", help="flags of octavo serve, after --")
    options = parser.parse_args()
    one_start(options.port, options.flags)  # fetches the file, fills the system's caches
    starts = zip(*(one_start(options.port, options.flags) for _ in range(options.runs)), strict=True)
    ready, token, ready_processor, token_processor = map(list, starts)
    sizes = installed_bytes(["octavo"], folders={"octavo": Path(octavo.__file__).parent})
    total, bytecode = (sum(column) for column in zip(*sizes.values(), strict=True))
    result = {
        "runs": options.runs,
        "flags": options.flags,
        "ready": spread(ready),
        "first_token": spread(token),
        "ready_processor": spread(ready_processor),
        "first_token_processor": spread(token_processor),
        "installed_bytes": total,
        "bytecode_bytes": bytecode,
        "packages": {name: size for name, (size, _) in sizes.items()},
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"octavo serve {' '.join(options.flags)}: medians of {options.runs} starts, model file cached")
    rows = (("ready line ", ready, ready_processor), ("first token", token, token_processor))
    for name, seconds, processor in rows:
        print(
            f"  process to {name} {statistics.median(seconds):5.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{statistics.median(processor):.2f} s of processor time"
        )
    print(f"installed: {total / 1e6:.0f} MB in {len(sizes)} packages, {bytecode / 1e6:.0f} MB of it bytecode")
    for name, (size, _) in [*sizes.items()][:8]:
        print(f"  {name:20} {size / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
