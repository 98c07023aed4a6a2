"""vLLM's CPU wheel for ``benchmarks/peers.py``. Its smallest block is 32 tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from installed import total_bytes
from protocol import Prompt, run_stepwise, serve


class Vllm:
    def __init__(self, settings: dict[str, Any]) -> None:
        threads = settings["threads"]
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE="2",
            VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
            HF_HUB_OFFLINE="1",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
        )
        import vllm

        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            settings["model"],
            dtype="bfloat16",
            max_model_len=2048,
            block_size=32,
            num_gpu_blocks_override=settings["pool_tokens"] // 32,
            enable_prefix_caching=False,
            max_num_seqs=128,
        )
        self._told: dict[str, tuple[int, int]] = {}
        self._count = 0

    def add(self, number: int, prompt: Prompt, output_tokens: int) -> None:
        name = f"r{self._count}"
        self._count += 1
        self._told[name] = (number, 0)
        params = self._params(max_tokens=output_tokens, temperature=0, ignore_eos=True)
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def step(self) -> Iterator[tuple[int, int, bool]]:
        for output in self._llm.llm_engine.step():
            number, told = self._told.pop(output.request_id)
            count = len(output.outputs[0].token_ids)
            if not output.finished:
                self._told[output.request_id] = (number, count)
            yield number, count - told, output.finished

    def run(self, requests: list[tuple[Prompt, int]], concurrency: int) -> dict[str, Any]:
        return run_stepwise(self, requests, concurrency)

    def installed_bytes(self) -> int:
        return total_bytes("vllm-cpu", "vllm")


if __name__ == "__main__":
    serve(Vllm)
