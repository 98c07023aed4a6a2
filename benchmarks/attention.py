"""Decode attention beside the memory bandwidth of this machine, measured in the same process.

    python benchmarks/attention.py [--path avx512_bf16] [--dtype bf16|f32|fp8|int8] [--threads 2] [--contexts 512 4096]
        [--block-sizes 1 2 4 8 16 32 64 128 256] [--model smollm2 llama] [--prefill 512 2048] [--json]

Every line is one block size: GB/s of keys and values read through a block table whose blocks lie in *random*
order, and through one whose blocks are *consecutive* (what a contiguous cache reads). ``paged`` is random over the
best consecutive figure of all block sizes, the price of paging; comparing with the same block size would flatter small
blocks, which are slow when consecutive too. ``of probe`` is random over the bandwidth of a plain sequential read by
the same threads. On a machine with neighbours only the columns of one line, measured side by side, can be compared.

``--prefill`` measures, instead, whole prompts of so many tokens at block size 16: GFLOP/s of causal work (what a later
token is masked from is not counted) beside the fastest multiply-add that the path has for the element type.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import numpy as np

from kernels import machine
from octavo import _native
from octavo.core.model_spec import DTYPE_BYTES, KV_SCALE_BYTES

POOL_BYTES = 384 << 20
"""About this much is read in turn, layer after layer: more than the caches that one guest is given a share of."""


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    context: int
    dtype: str

    @property
    def bytes(self) -> int:
        """Keys and values that one layer's attention reads."""
        head = self.head_dim * DTYPE_BYTES[self.dtype] + KV_SCALE_BYTES[self.dtype]
        return self.batch * self.context * 2 * self.kv_heads * head

    @property
    def layers(self) -> int:
        return max(1, POOL_BYTES // self.bytes)


MODELS = {"smollm2": (9, 3, 64), "llama": (32, 8, 128)}
"""(heads, kv heads, head dim) of SmolLM2-135M and of Llama 3 8B."""


def bandwidth(runtime: _native.Runtime, case: Case, block_size: int, order: str, passes: int) -> float:
    """GB/s of a layer's decode attention: the mean over layers of each one's best pass."""
    blocks = case.context // block_size
    table = np.arange(case.batch * blocks, dtype=np.int32)
    if order == "random":
        np.random.default_rng(0).shuffle(table)
    kv = _native.KVStorage(
        runtime, len(table), block_size, case.layers, case.kv_heads, case.head_dim, case.dtype
    )
    kv.fill(0.125)
    width = case.heads * case.head_dim
    program = _native.Program(runtime, kv)
    query, out = program.register(width), program.register(width)
    program.embed(query, np.random.default_rng(1).standard_normal((case.batch, width), dtype=np.float32))
    for layer in range(case.layers):
        program.paged_attention(out, query, 0, case.heads, layer, case.head_dim**-0.5)
    ids, ones = np.arange(case.batch, dtype=np.int32), np.ones(case.batch, dtype=np.int32)
    logits = np.empty((case.batch, width), dtype=np.float32)
    best = np.full(case.layers, np.inf)
    for _ in range(passes):
        program.enable_profile(True)
        program.run(ids, ones * (case.context - 1), ones, table.reshape(case.batch, -1), ids, ids, logits)
        spent = [seconds for name, seconds in program.profile() if name == "paged_attention"]
        best = np.minimum(best, spent)
    return case.bytes / float(best.mean()) * 1e-9


def prefill_flops(runtime: _native.Runtime, case: Case, passes: int) -> float:
    """GFLOP/s of a whole prompt's attention; the best pass. ``case.batch`` is 1."""
    tokens, width, block_size = case.context, case.heads * case.head_dim, 16
    table = np.random.default_rng(0).permutation(-(-tokens // block_size)).astype(np.int32)
    kv = _native.KVStorage(runtime, len(table), block_size, 1, case.kv_heads, case.head_dim, case.dtype)
    kv.fill(0.125)
    program = _native.Program(runtime, kv)
    query, out = program.register(width), program.register(width)
    program.embed(query, np.random.default_rng(1).standard_normal((tokens, width), dtype=np.float32))
    program.paged_attention(out, query, 0, case.heads, 0, case.head_dim**-0.5)
    ids, zero, whole = np.arange(tokens, dtype=np.int32), np.zeros(1, dtype=np.int32), np.array([tokens])
    logits = np.empty((tokens, width), dtype=np.float32)
    best = np.inf
    for _ in range(passes):
        program.enable_profile(True)
        program.run(ids, zero, whole.astype(np.int32), table[None], zero, ids, logits)
        best = min(best, *(spent for name, spent in program.profile() if name == "paged_attention"))
    return 2 * 2 * width * (tokens * (tokens + 1) / 2) / best * 1e-9


def report_prefill(
    runtime: _native.Runtime, model: str, tokens: int, dtype: str, passes: int
) -> dict[str, object]:
    case = Case(*MODELS[model], 1, tokens, dtype)
    arithmetic = "f32" if dtype == "f32" else "bf16"
    probe = _native.probe_flops(runtime, arithmetic)
    flops = prefill_flops(runtime, case, passes)
    probe = max(probe, _native.probe_flops(runtime, arithmetic))
    return {"model": model, "prefill": tokens, "gflops": flops, "probe": probe, "of_probe": flops / probe}


def report(
    runtime: _native.Runtime, case: Case, block_sizes: list[int], passes: int
) -> list[dict[str, float]]:
    lines: list[dict[str, float]] = []
    for block_size in block_sizes:
        probe = _native.probe_bandwidth(runtime)
        line = {"block_size": block_size} | {
            order: bandwidth(runtime, case, block_size, order, passes) for order in ("random", "consecutive")
        }
        line["probe"] = max(probe, _native.probe_bandwidth(runtime))
        lines.append(line)
    contiguous = max(line["consecutive"] for line in lines)
    for line in lines:
        line["paged_of_contiguous"] = line["random"] / contiguous
        line["paged_of_probe"] = line["random"] / line["probe"]
    return lines


def show_prefill(runtime: _native.Runtime, options: argparse.Namespace, about: dict[str, object]) -> None:
    for model in options.model:
        for tokens in options.prefill:
            line = report_prefill(runtime, model, tokens, options.dtype, options.passes)
            if options.json:
                print(json.dumps(about | line))
            else:
                print(
                    f"{model}, prefill of {tokens}: {line['gflops']:.1f} GFLOP/s, probe {line['probe']:.1f}, "
                    f"of probe {line['of_probe']:.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", default=_native.available_paths()[0], choices=_native.available_paths())
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPE_BYTES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096], help="multiples of 256")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--model", nargs="+", default=["smollm2"], choices=list(MODELS))
    parser.add_argument(
        "--tokens", type=int, default=16384, help="context x batch, so that a layer takes about a millisecond"
    )
    parser.add_argument("--prefill", type=int, nargs="+", metavar="TOKENS", help="prompts, instead of decode")
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="one object a line, GB/s")
    options = parser.parse_args()
    if any(context % 256 for context in options.contexts):
        parser.error("--contexts must be multiples of 256")
    runtime = _native.Runtime(options.path, options.threads)
    about = {"machine": machine(), "path": options.path, "dtype": options.dtype, "threads": options.threads}
    if not options.json:
        print(", ".join(f"{key} {value}" for key, value in about.items()))
    if options.prefill:
        show_prefill(runtime, options, about)
        return
    for model in options.model:
        for context in options.contexts:
            case = Case(*MODELS[model], max(1, options.tokens // context), context, options.dtype)
            if not options.json:
                print(f"\n{model}, batch {case.batch}, context {context}: GB/s")
                print("block   random  consecutive   probe   paged  of probe")
            for line in report(runtime, case, options.block_sizes, options.passes):
                if options.json:
                    print(
                        json.dumps(about | {"model": model, "batch": case.batch, "context": context} | line)
                    )
                else:
                    print(
                        f"{line['block_size']:5.0f} {line['random']:8.1f} {line['consecutive']:12.1f} "
                        f"{line['probe']:7.1f} {line['paged_of_contiguous']:7.2f} {line['paged_of_probe']:9.2f}"
                    )


if __name__ == "__main__":
    main()
