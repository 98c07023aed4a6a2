"""transformers for ``benchmarks/peers.py``: one padded static batch, what a plain user does."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from installed import total_bytes
from protocol import Prompt, result, serve
from transformers.generation.streamers import BaseStreamer


class FirstToken(BaseStreamer):  # type: ignore[misc]
    """Notes when the first new token came."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._calls = 0

    def put(self, value: Any) -> None:
        self._calls += 1
        if self._calls == 2:  # the first call tells the prompt
            self.at = time.perf_counter()

    def end(self) -> None:
        pass


class Transformers:
    version = transformers.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
        )

    def _batch(self, requests: list[tuple[Prompt, int]]) -> float:
        """Seconds to the first token (of a batch of one; streamers know no larger ones)."""
        longest = max(len(prompt) for prompt, _ in requests)
        ids = torch.full((len(requests), longest), 2)
        mask = torch.zeros_like(ids)
        for row, (prompt, _) in enumerate(requests):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        most = max(output for _, output in requests)
        streamer = FirstToken() if len(requests) == 1 else None
        begin = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                eos_token_id=None,
                streamer=streamer,
            )
        return streamer.at - begin if streamer is not None and streamer.at is not None else float("nan")

    def run(self, requests: list[tuple[Prompt, int]], concurrency: int) -> dict[str, Any]:
        begin = time.perf_counter()
        first = [
            self._batch(requests[start : start + concurrency])
            for start in range(0, len(requests), concurrency)
        ]
        seconds = time.perf_counter() - begin
        return result(seconds, sum(output for _, output in requests), [one for one in first if one == one])

    def installed_bytes(self) -> int:
        return total_bytes("transformers", "torch")


if __name__ == "__main__":
    serve(Transformers)
