"""What quantised weights gain and what they cost: tokens a second, and how far the logits move, setting by setting.

    python benchmarks/quantization.py [--model FILE] [--settings bf16 int8 gguf] [--streams 1 64] [--rounds 3]

Logits of every position of a fixed text (``benchmarks/passage.txt``) are compared with those of float32 weights, keys,
values and activations: the error is the root of the mean squared difference over that of the logits about their mean,
and ``same`` is the share of positions whose likeliest token is the same. Perplexity is that of the text. Speeds are of
decode steps from 64 tokens of context on, all settings in one run, round by round; the median over the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.embedded import embedded_model_path
from octavo.execution.loading import load_model
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from octavo.text.tokenizer import load_tokenizer

SETTINGS: dict[str, dict[str, str]] = {
    "f32": {"dtype": "f32"},
    "bf16": {"dtype": "bf16"},
    "int8": {"quantization": "int8"},
    "gguf": {"quantization": "gguf"},
}
PASSAGE = Path(__file__).with_name("passage.txt")
CONTEXT = 64


def logits_of(
    model: str, threads: int, setting: dict[str, str], tokens: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Logits at every position of the text, float32 [tokens, vocabulary]."""
    loaded = load_model(model, **setting)  # type: ignore[arg-type]
    blocks = -(-len(tokens) // 16)
    executor = CpuExecutor(loaded, num_blocks=blocks, block_size=16, max_num_seqs=1, threads=threads)
    logits = np.empty((len(tokens), loaded.spec.vocab_size), np.float32)
    zero = np.zeros(1, np.int32)
    table = np.arange(blocks, dtype=np.int32)[None]
    wanted = np.arange(len(tokens), dtype=np.int32)
    executor.program.run(tokens, zero, np.array([len(tokens)], np.int32), table, zero, wanted, logits)
    return logits


def perplexity(logits: NDArray[np.float32], tokens: NDArray[np.int32]) -> float:
    shifted = logits[:-1].astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(tokens) - 1), tokens[1:]]
    return float(np.exp(np.mean(np.log(np.exp(shifted).sum(axis=1)) - chosen)))


def quality(
    logits: NDArray[np.float32], exact: NDArray[np.float32], tokens: NDArray[np.int32]
) -> dict[str, float]:
    centred = exact - exact.mean(axis=1, keepdims=True)
    return {
        "logit_error": float(np.sqrt(np.mean((logits - exact) ** 2) / np.mean(centred**2))),
        "same_likeliest": float(np.mean(logits.argmax(axis=1) == exact.argmax(axis=1))),
        "perplexity": perplexity(logits, tokens),
    }


def tokens_per_s(options: EngineOptions, streams: int, steps: int) -> float:
    """Of so many decode steps with so many rows, sampling included."""
    session = build_session(options)
    rng = np.random.default_rng(0)
    sampling = SamplingParams(temperature=0, max_tokens=steps + 8, ignore_eos=True)
    for _ in range(streams):
        session.add(session.prepare(rng.integers(3, session.spec.vocab_size, CONTEXT).tolist(), sampling))
    for _ in range(-(-streams * CONTEXT // 2048) + 3):  # prompts, and steps that warm up
        session.step()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        session.step()
        times.append(time.perf_counter() - begin)
    return streams / statistics.median(times)


def speeds(options: argparse.Namespace) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, list[float]]] = {
        name: {streams: [] for streams in options.streams} for name in options.settings
    }
    for _ in range(options.rounds):
        for name in options.settings:
            for streams in options.streams:
                engine = EngineOptions(
                    model=options.model, num_blocks=1024, threads=options.threads, seed=0, **SETTINGS[name]
                )
                found[name][streams].append(tokens_per_s(engine, streams, options.steps))
                gc.collect()
    return {name: {n: statistics.median(all_) for n, all_ in rows.items()} for name, rows in found.items()}


def show(results: dict[str, Any], streams: list[int]) -> None:
    head = "".join(f"{f'tokens/s at {n}':>16}" for n in streams)
    print(f"{'':6}{head}{'logit error':>13}{'same':>8}{'perplexity':>12}")
    for name, row in results.items():
        rates = "".join(f"{row['tokens_per_s'].get(n, float('nan')):16.1f}" for n in streams)
        print(
            f"{name:6}{rates}{row['logit_error']:13.4f}{row['same_likeliest']:8.3f}{row['perplexity']:12.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="default: the embedded one")
    parser.add_argument("--settings", nargs="+", default=["bf16", "int8", "gguf"], choices=list(SETTINGS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.model = str(options.model or embedded_model_path())
    tokens = np.array(
        load_tokenizer(Path(options.model)).encode(PASSAGE.read_text(encoding="utf-8")), np.int32
    )
    exact = logits_of(options.model, options.threads, SETTINGS["f32"], tokens)
    rates = speeds(options)
    results: dict[str, Any] = {}
    for name in ["f32", *(name for name in options.settings if name != "f32")]:
        logits = exact if name == "f32" else logits_of(options.model, options.threads, SETTINGS[name], tokens)
        results[name] = {"tokens_per_s": rates.get(name, {}), **quality(logits, exact, tokens)}
    if options.json:
        print(json.dumps({"model": options.model, "tokens": len(tokens), "settings": results}))
    else:
        print(f"{Path(options.model).name}, {options.threads} threads, {len(tokens)} tokens of text")
        show(results, options.streams)


if __name__ == "__main__":
    main()
