"""Octavo for ``benchmarks/peers.py``: the session that the server drives, without HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from installed import total_bytes
from protocol import Prompt, run_stepwise, serve

import octavo
from octavo.core.sampling_params import SamplingParams
from octavo.llm.build import build_session
from octavo.llm.completions import Completion
from octavo.llm.options import EngineOptions


class Octavo:
    version = octavo.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        more = {
            name: settings[name] for name in ("model", "quantization", "kv_cache_dtype") if settings.get(name)
        }
        options = EngineOptions(
            num_blocks=settings["pool_tokens"] // 16,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            max_model_len=2048,
            enable_prefix_caching=False,
            threads=settings["threads"],
            **more,
        )
        self._session = build_session(options)
        self._told: dict[str, tuple[int, int]] = {}
        """Request id -> (request, tokens told)."""

    def add(self, number: int, prompt: Prompt, output_tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        request = self._session.prepare(prompt, sampling)
        self._told[request.request_id] = (number, 0)
        self._session.add(request)

    def step(self) -> Iterator[tuple[int, int, bool]]:
        for completion in self._session.step() or ():
            yield self._news(completion)

    def _news(self, completion: Completion) -> tuple[int, int, bool]:
        name = completion.request.request_id
        number, told = self._told.pop(name)
        count = len(completion.token_ids)
        if not completion.finished:
            self._told[name] = (number, count)
        return number, count - told, completion.finished

    def run(self, requests: list[tuple[Prompt, int]], concurrency: int) -> dict[str, Any]:
        return run_stepwise(self, requests, concurrency)

    def installed_bytes(self) -> int:
        """The package's own folder is named: an editable installation does not list it."""
        return total_bytes("octavo", folders={"octavo": Path(octavo.__file__).parent})


if __name__ == "__main__":
    serve(Octavo)
