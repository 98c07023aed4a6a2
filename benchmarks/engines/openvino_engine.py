"""OpenVINO GenAI's continuous batching pipeline for ``benchmarks/peers.py``. Its block on a CPU is 32 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino
import openvino_genai
from installed import total_bytes
from protocol import Prompt, run_stepwise, serve


class OpenVino:
    version = openvino_genai.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = settings["pool_tokens"] // 32
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 128
        properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": settings["threads"]}
        if not settings.get("default_kv"):
            properties["KV_CACHE_PRECISION"] = "bf16"
        try:
            self._pipe = self._open(settings["model"], scheduler, properties)
        except RuntimeError:
            # Without AVX-512 its keys and values are f32 or nothing: as many tokens as the others, in twice the bytes.
            properties["KV_CACHE_PRECISION"] = "f32"
            self._pipe = self._open(settings["model"], scheduler, properties)
            self.version += ", KV in f32"
        self._handles: dict[int, tuple[int, Any]] = {}
        self._count = 0

    @staticmethod
    def _open(model: str, scheduler: Any, properties: dict[str, Any]) -> Any:
        return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def add(self, number: int, prompt: Prompt, output_tokens: int) -> None:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=output_tokens, ignore_eos=True, do_sample=False
        )
        self._count += 1
        tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._handles[self._count] = number, self._pipe.add_request(self._count, tensor, config)

    def step(self) -> Iterator[tuple[int, int, bool]]:
        self._pipe.step()
        for name, (number, handle) in list(self._handles.items()):
            new = 0
            while handle.can_read():
                new += sum(len(output.generated_ids) for output in handle.read().values())
            ended = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
            if ended:
                del self._handles[name]
            if new or ended:
                yield number, new, ended

    def run(self, requests: list[tuple[Prompt, int]], concurrency: int) -> dict[str, Any]:
        return run_stepwise(self, requests, concurrency)

    def installed_bytes(self) -> int:
        return total_bytes("openvino-genai", "numpy")


if __name__ == "__main__":
    serve(OpenVino)
