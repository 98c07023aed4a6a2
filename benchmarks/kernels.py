"""Linear layers of SmolLM2-135M beside the limits of this machine, measured in the same process.

    python benchmarks/kernels.py [--path avx512_bf16] [--format bf16] [--threads 2] [--rows 1 4 16 64 256] [--json]

``of limit`` is the time that memory bandwidth or arithmetic alone would take, whichever is longer, over the time taken.
Arithmetic is the multiply-add of the weights' own kind: float32, bf16, or for quantised weights products of bytes,
one of them of four bits where the weights are.
Bandwidth is probed right before and after each number of rows, and the better one counts: on a shared host it moves by
a factor of two.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np

from octavo import _native
from octavo.execution.logit_memory import logit_memory

LAYERS = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
COPIES = 30
"""Layers of the model: with as many different weights none stays in a core's own cache from one pass to the next."""
HEAD = ("lm_head", (49152, 576))
BLOCKS = {"q4_0": (18, 1), "q4_1": (20, 2), "q8_0": (34, 1)}
"""Bytes of a block of 32, and the 16-bit scales in front of its codes."""


def machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


class Bench:
    def __init__(self, path: str, form: str, threads: int) -> None:
        self.runtime = _native.Runtime(path, threads)
        self.form = form
        self.kv = _native.KVStorage(self.runtime, 1, 16, 1, 1, 8, "f32")
        self.layers = [
            (name, shape, self.weight(shape)) for _ in range(COPIES) for name, shape in LAYERS.items()
        ]
        self.layers.append((HEAD[0], HEAD[1], self.weight(HEAD[1])))
        self.bytes = {name: weight.nbytes for name, _, weight in self.layers}
        self.bytes["step"] = sum(weight.nbytes for _, _, weight in self.layers)

    def weight(self, shape: tuple[int, int]) -> _native.Weight:
        """Random."""
        rng = np.random.default_rng(0)
        if self.form not in BLOCKS:
            stored = ("F32", rng.standard_normal(shape, dtype=np.float32).view(np.uint8))
            return _native.Weight(self.runtime, _native.EncodedMatrix((stored,), shape[1]), self.form)
        nbytes, scales = BLOCKS[self.form]
        blocks = rng.integers(0, 256, (shape[0], shape[1] // 32, nbytes), np.uint8)
        blocks[..., : 2 * scales] = np.full(scales, 0.01, np.float16).view(np.uint8)
        stored = (self.form.upper(), blocks.reshape(shape[0], -1))
        return _native.Weight(self.runtime, _native.EncodedMatrix((stored,), shape[1]), self.form)

    def seconds(self, rows: int, passes: int) -> dict[str, float]:
        """Time of one layer of each name and of the whole model, from passes over it."""
        program = _native.Program(self.runtime, self.kv)
        sources = {}
        for width in (576, 1536):
            sources[width] = program.register(width)
            program.embed(
                sources[width], np.random.default_rng(1).standard_normal((rows, width), dtype=np.float32)
            )
        outs = {n: program.register(n) for n in {shape[0] for _, shape, _ in self.layers}}
        for _, (n, k), weight in self.layers:
            program.linear(outs[n], sources[k], weight)
        ids = np.arange(rows, dtype=np.int32)
        ones, zeros, table = np.ones(rows, np.int32), np.zeros(rows, np.int32), np.zeros((1, 1), np.int32)
        logits = logit_memory(rows, HEAD[1][0])
        # Each layer's own best, then the sum: a neighbour's time slice hits some layers of every pass.
        best = np.full(len(self.layers), np.inf)
        for _ in range(passes):
            program.enable_profile(True)
            program.run(ids, zeros, ones, table, zeros, ids, logits)
            best = np.minimum(best, [spent for _, spent in program.profile()[2:]])
        times = {
            name: float(np.mean(best[[n == name for n, _, _ in self.layers]])) for name in (*LAYERS, HEAD[0])
        }
        return times | {"step": float(best.sum())}

    def report(self, rows: int) -> dict[str, object]:
        before = _native.probe_bandwidth(self.runtime)
        kind = {"q8_0": "int8", "q4_0": "int4", "q4_1": "int4"}.get(self.form, self.form)
        peak = _native.probe_flops(self.runtime, kind)
        times = self.seconds(rows, passes=4 if rows >= 64 else 12)
        bandwidth = max(before, _native.probe_bandwidth(self.runtime))
        peak = max(peak, _native.probe_flops(self.runtime, kind))
        shapes = {**LAYERS, HEAD[0]: HEAD[1]}
        elements = {name: n * k for name, (n, k) in shapes.items()}
        elements["step"] = sum(elements[name] * COPIES for name in LAYERS) + elements[HEAD[0]]
        layers = {}
        for name, spent in times.items():
            gbytes = self.bytes[name] / 1e9
            gflop = 2 * rows * elements[name] / 1e9
            layers[name] = {
                "us": spent * 1e6,
                "gb_s": gbytes / spent,
                "gflop_s": gflop / spent,
                "of_limit": max(gbytes / bandwidth, gflop / peak) / spent,
            }
        return {"rows": rows, "probe_gb_s": bandwidth, "probe_gflop_s": peak, "layers": layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--path", default=_native.available_paths()[0], choices=_native.available_paths(variants=True)
    )
    parser.add_argument("--format", default="bf16", choices=["bf16", "f32", "int8", *BLOCKS])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.path, options.format, options.threads)
    results = [bench.report(rows) for rows in options.rows]
    head = {"machine": machine(), "path": options.path, "format": options.format, "threads": options.threads}
    if options.json:
        print(json.dumps({**head, "results": results}))
        return
    print(", ".join(f"{key} {value}" for key, value in head.items()))
    for result in results:
        print(
            f"rows {result['rows']}: probes {result['probe_gb_s']:.1f} GB/s, {result['probe_gflop_s']:.0f} GFLOP/s"
        )
        for name, row in result["layers"].items():
            print(
                f"  {name:8} {row['us']:10.1f} us {row['gb_s']:7.1f} GB/s {row['gflop_s']:8.1f} GFLOP/s"
                f" {row['of_limit']:6.2f} of limit"
            )


if __name__ == "__main__":
    main()
