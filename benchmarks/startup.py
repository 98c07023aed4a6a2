"""From the start of a process to its first token, and what an installation weighs.

    python benchmarks/startup.py [--runs 5] [--port 8290] [--json] [-- FLAGS OF octavo serve]

Every run starts ``octavo serve`` anew with the model's file cached, waits for its ready line, and streams a completion
of one short prompt until the first token. Processor time, of all threads, is printed beside it: on a busy machine it is
the steadier of the two. Sizes are those of the installed package, its native part included, and of what it needs at run
time, as their own lists of files count them; bytecode is left out.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil

import octavo

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


def needed(name: str, seen: set[str]) -> set[str]:
    """``name`` and, without extras, all that it needs and that is installed."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # needed on other systems or Pythons only
        return seen
    seen.add(key)
    for requirement in requirements:
        if "extra ==" not in requirement:
            needed(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], seen)
    return seen


def folder_bytes(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files)


def installed_bytes() -> dict[str, int]:
    """Bytes of each package. An editable installation of ours is counted where its sources lie."""
    sizes = {}
    for name in sorted(needed("octavo", set()) - {"octavo"}):
        files = metadata.files(name) or []
        paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
        sizes[name] = sum(path.stat().st_size for path in paths if path.is_file())
    from octavo import _native

    native, package = Path(_native.__file__), Path(octavo.__file__).parent
    sizes["octavo"] = folder_bytes(package)
    if not native.is_relative_to(package):
        sizes["octavo"] += native.stat().st_size
    return sizes


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
    sizes = installed_bytes()
    result = {
        "runs": options.runs,
        "flags": options.flags,
        "ready": spread(ready),
        "first_token": spread(token),
        "ready_processor": spread(ready_processor),
        "first_token_processor": spread(token_processor),
        "installed_bytes": sum(sizes.values()),
        "packages": sizes,
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
    print(f"installed: {sum(sizes.values()) / 1e6:.0f} MB in {len(sizes)} packages")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:8]:
        print(f"  {name:20} {size / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
