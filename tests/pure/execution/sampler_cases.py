"""A plain sampler to compare with, and short ways to call the real one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.execution.sampler import Sampler

Floats = NDArray[np.float64]


def make_request(prompt: list[int] | None = None, **params: Any) -> Request:
    """A request with seed 0 unless ``params`` says otherwise."""
    tokens = np.array([1] if prompt is None else prompt, np.int32)
    return Request("r", tokens, SamplingParams(**{"seed": 0, **params}))


def sample_one(
    logits: Any, request: Request, outputs: list[int] | None = None, eos: tuple[int, ...] = ()
) -> int:
    """The next token of a request that has generated ``outputs``."""
    row = np.array([logits], np.float32)
    sampler = Sampler(row.shape[1], eos)
    sampler.start(0, request, np.array(outputs or [], np.int32))
    position = len(request.prompt_token_ids) + len(outputs or [])
    tokens, _, _ = sampler.sample(np.array([0], np.int32), np.array([position], np.int32), row)
    return int(tokens[0])


def draws(logits: Any, count: int, **params: Any) -> NDArray[np.int32]:
    """int32 [count]: what ``count`` requests with seeds 0, 1, ... draw from the same logits."""
    sampler = Sampler(len(logits), ())
    for row in range(count):
        sampler.start(row, make_request(**{**params, "seed": row}), np.empty(0, np.int32))
    rows = np.arange(count, dtype=np.int32)
    tokens, _, _ = sampler.sample(
        rows, np.ones(count, np.int32), np.tile(np.array(logits, np.float32), (count, 1))
    )
    return tokens


def plain_penalties(logits: Any, prompt: list[int], outputs: list[int], params: SamplingParams) -> Floats:
    """Token by token, as the definitions read."""
    result = np.array(logits, np.float64)
    for token in range(len(result)):
        count = outputs.count(token)
        if token in prompt or count:
            factor = params.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        result[token] -= params.frequency_penalty * count
        result[token] -= params.presence_penalty * (count > 0)
    return result


def plain_distribution(logits: Any, params: SamplingParams) -> Floats:
    """float64 [V]: probabilities after temperature, min_p, top_k and top_p, each defined by sorting everything."""
    scaled = np.array(logits, np.float64) / params.temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities[probabilities < params.min_p] = 0.0
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if params.top_k > 0:
        probabilities[order[params.top_k :]] = 0.0
    probabilities /= probabilities.sum()
    if params.top_p < 1:
        before = 0.0
        for token in order:
            share = probabilities[token]
            if before >= params.top_p:
                probabilities[token] = 0.0
            before += share
    result: Floats = probabilities / probabilities.sum()
    return result
