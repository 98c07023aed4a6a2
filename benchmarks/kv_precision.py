"""What narrower keys and values gain and what they cost, type by type, everything else the same.

    python benchmarks/kv_precision.py [--model FILE] [--dtypes f32 bf16 fp8 int8] [--text-tokens 4096] [--rounds 3]
        [--batches 64x512 8x4096] [--pool-mib 512] [--threads 2] [--only quality speed] [--json]

Quality: logits of every position of a fixed text (``passage.txt``, then ``pages.txt``, which is documentation) beside
those with float32 keys and values; the error is the root of the mean squared difference over that of the logits about
their mean, ``same`` the share of positions whose likeliest token is the same. Weights are the same, bf16, throughout.

Speed: ``attention`` is one layer's decode attention alone, in a pool that exceeds the caches: GB/s of what it reads,
and how many tokens of context that is. ``step`` is the whole model's decode step with STREAMS rows at CONTEXT tokens
each; ``pool`` is that step with as many rows as ``--pool-mib`` hold. Blocks lie in random order; types take turns,
round by round, in one run, and each figure is the best of the rounds: neighbours only ever slow things down.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention import Case, bandwidth
from kernels import machine
from octavo import _native
from octavo.core.model_spec import KV_CACHE_DTYPES, ModelSpec
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.embedded import embedded_model_path
from octavo.execution.loading import LoadedModel, load_model
from octavo.memory import sizing
from octavo.text.tokenizer import load_tokenizer

HERE = Path(__file__).parent
BLOCK_SIZE = 16
CHUNK = 256
STEPS = 8
ATTENTION_TOKENS = 16384
"""Context times rows of one layer's attention."""

F32 = NDArray[np.float32]


def open_with(model: str, kv_dtype: str) -> LoadedModel:
    loaded = load_model(model, "bf16")
    return replace(loaded, spec=replace(loaded.spec, kv_dtype=kv_dtype))


def fixed_text() -> str:
    return "\n\n".join((HERE / name).read_text(encoding="utf-8") for name in ("passage.txt", "pages.txt"))


# ---------------------------------------------------------------------- quality


@dataclass
class Quality:
    """Sums over positions, chunk by chunk: the logits of a long text are too many to keep."""

    squares: float = 0.0
    variance: float = 0.0
    same: int = 0
    scored: int = 0
    log_likelihood: float = 0.0
    worst: list[float] = field(default_factory=list)

    def add(self, logits: F32, exact: F32, following: NDArray[np.int32]) -> None:
        """``following`` [at most as many as rows] are the tokens that come after each position."""
        self.squares += float(np.square(logits - exact, dtype=np.float64).sum())
        self.variance += float(np.square(exact - exact.mean(axis=1, keepdims=True), dtype=np.float64).sum())
        self.same += int((logits.argmax(axis=1) == exact.argmax(axis=1)).sum())
        self.worst.append(float(np.abs(logits - exact).max()))
        shifted = logits[: len(following)].astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(following)), following]
        self.log_likelihood += float((chosen - np.log(np.exp(shifted).sum(axis=1))).sum())
        self.scored += len(following)

    def result(self, tokens: int) -> dict[str, float]:
        return {
            "logit_error": (self.squares / self.variance) ** 0.5,
            "logit_error_max": max(self.worst),
            "same_likeliest": self.same / tokens,
            "perplexity": float(np.exp(-self.log_likelihood / self.scored)),
        }


def qualities(model: str, dtypes: list[str], threads: int, tokens: NDArray[np.int32]) -> dict[str, Any]:
    blocks = sizing.blocks_for(len(tokens), BLOCK_SIZE)
    names = ["f32", *(name for name in dtypes if name != "f32")]
    executors = {
        name: CpuExecutor(
            open_with(model, name),
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=1,
            threads=threads,
        )
        for name in names
    }
    table = np.random.default_rng(0).permutation(blocks).astype(np.int32)[None]
    found = {name: Quality() for name in names}
    vocabulary = open_with(model, "f32").spec.vocab_size
    for begin in range(0, len(tokens), CHUNK):
        chunk = tokens[begin : begin + CHUNK]
        wanted, row = np.arange(len(chunk), dtype=np.int32), np.zeros(1, np.int32)
        exact: F32 | None = None
        for name in names:
            logits = np.empty((len(chunk), vocabulary), np.float32)
            executors[name].program.run(
                chunk,
                np.array([begin], np.int32),
                np.array([len(chunk)], np.int32),
                table,
                row,
                wanted,
                logits,
            )
            exact = logits if exact is None else exact
            found[name].add(logits, exact, tokens[begin + 1 : begin + 1 + len(chunk)])
    return {name: found[name].result(len(tokens)) for name in names}


# ---------------------------------------------------------------------- speed


def step_seconds(model: str, kv_dtype: str, streams: int, context: int, threads: int) -> float:
    """The quickest of a few decode steps, the model alone; every row at the same context, its blocks its own."""
    blocks = sizing.blocks_for(context, BLOCK_SIZE)
    executor = CpuExecutor(
        open_with(model, kv_dtype),
        num_blocks=streams * blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=streams,
        threads=threads,
        max_model_len=context,
    )
    executor.kv.fill(0.125)
    table = np.random.default_rng(0).permutation(streams * blocks).astype(np.int32).reshape(streams, blocks)
    ones, rows = np.ones(streams, np.int32), np.arange(streams, dtype=np.int32)
    logits = executor._room(streams)
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        executor.program.run(rows + 3, ones * (context - 1), ones, table, rows, rows, logits)
        times.append(time.perf_counter() - begin)
    return min(times)


def streams_in(pool_mib: int, spec: ModelSpec, context: int) -> int:
    blocks = sizing.blocks_in(pool_mib * sizing.MIB, spec, BLOCK_SIZE)
    return blocks // sizing.blocks_for(context, BLOCK_SIZE)


def measure(options: argparse.Namespace, kv_dtype: str, streams: int, context: int) -> dict[str, float]:
    spec = open_with(options.model, kv_dtype).spec
    runtime = _native.Runtime(_native.available_paths()[0], options.threads)
    case = Case(
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        max(1, ATTENTION_TOKENS // context),
        context,
        kv_dtype,
    )
    rate = bandwidth(runtime, case, BLOCK_SIZE, "random", 4)
    fitting = max(1, streams_in(options.pool_mib, spec, context))
    found = {
        "attention_gb_per_s": rate,
        "attention_tokens_per_s": rate * 1e9 * case.batch * case.context / case.bytes,
        "step_tokens_per_s": streams
        / step_seconds(options.model, kv_dtype, streams, context, options.threads),
        "pool_streams": fitting,
        "pool_tokens_per_s": fitting
        / step_seconds(options.model, kv_dtype, fitting, context, options.threads),
    }
    gc.collect()
    return found


def speeds(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Batch -> type -> figure -> its best."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        batch: {name: [] for name in options.dtypes} for batch in options.batches
    }
    for _ in range(options.rounds):
        for batch in options.batches:
            streams, context = map(int, batch.split("x"))
            for name in options.dtypes:
                found[batch][name].append(measure(options, name, streams, context))
    return {
        batch: {
            name: {figure: max(each[figure] for each in rounds) for figure in rounds[0]}
            for name, rounds in rows.items()
        }
        for batch, rows in found.items()
    }


# ---------------------------------------------------------------------- output


def show_quality(rows: dict[str, dict[str, float]], sizes: dict[str, int]) -> None:
    print(
        f"{'':6}{'bytes/token':>12}{'tokens in a GiB':>17}{'logit error':>13}{'largest':>9}{'same':>8}"
        f"{'perplexity':>12}"
    )
    for name, row in rows.items():
        print(
            f"{name:6}{sizes[name]:12,}{sizing.GIB // sizes[name]:17,}{row['logit_error']:13.5f}"
            f"{row['logit_error_max']:9.3f}{row['same_likeliest']:8.4f}{row['perplexity']:12.4f}"
        )


def show_speed(batch: str, rows: dict[str, dict[str, float]], pool_mib: int) -> None:
    print(f"\n{batch} (streams x context)")
    print(
        f"{'':6}{'attention GB/s':>15}{'M tokens/s':>12}{'step tokens/s':>15}"
        f"{f'rows in {pool_mib} MiB':>18}{'their tokens/s':>16}"
    )
    for name, row in rows.items():
        print(
            f"{name:6}{row['attention_gb_per_s']:15.1f}{row['attention_tokens_per_s'] * 1e-6:12.1f}"
            f"{row['step_tokens_per_s']:15.1f}{row['pool_streams']:18.0f}{row['pool_tokens_per_s']:16.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="default: the embedded one")
    types = list(dict.fromkeys(KV_CACHE_DTYPES.values()))
    parser.add_argument("--dtypes", nargs="+", default=types, choices=types)
    parser.add_argument("--text-tokens", type=int, default=4096)
    parser.add_argument(
        "--batches", nargs="+", default=["64x512", "8x4096"], metavar="STREAMSxCONTEXT",
        help="contexts are multiples of 16",
    )  # fmt: skip
    parser.add_argument("--pool-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["quality", "speed"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.model = str(options.model or embedded_model_path())
    results: dict[str, Any] = {"model": options.model, "machine": machine(), "threads": options.threads}
    if not options.json:
        print(f"{Path(options.model).name}, {machine()}, {options.threads} threads")
    if options.only != "speed":
        text = load_tokenizer(Path(options.model)).encode(fixed_text())[: options.text_tokens]
        tokens = np.array(text, np.int32)
        digest = hashlib.sha256(tokens.tobytes()).hexdigest()[:8]
        quality = qualities(options.model, options.dtypes, options.threads, tokens)
        sizes = {name: open_with(options.model, name).spec.kv_bytes_per_token for name in quality}
        results["text"] = {"tokens": len(tokens), "sha256": digest}
        results["quality"] = {name: row | {"bytes_per_token": sizes[name]} for name, row in quality.items()}
        if not options.json:
            print(f"{len(tokens)} tokens of text (sha256 {digest}...)\n")
            show_quality(quality, sizes)
    if options.only != "quality":
        results["speed"] = speeds(options)
        if not options.json:
            for batch, rows in results["speed"].items():
                show_speed(batch, rows, options.pool_mib)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
