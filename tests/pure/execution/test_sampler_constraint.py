"""Constrained rows: forbidden tokens never come, and a preemption changes no answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.execution.sampler import Sampler

VOCAB, EOS = 50, 3


class EveryThird:
    """Allows the tokens that are congruent to the number of tokens so far, modulo 3."""

    def start(self, output_token_ids: NDArray[np.int32]) -> _Mask:
        return _Mask(len(output_token_ids))


class _Mask:
    def __init__(self, count: int) -> None:
        self.count = count

    def apply(self, logits: NDArray[np.float32]) -> None:
        forbidden = np.arange(len(logits)) % 3 != self.count % 3
        logits[forbidden] = -np.inf

    def advance(self, token_id: int) -> None:
        assert token_id % 3 == self.count % 3, "a forbidden token was chosen"
        self.count += 1


def request(sampling: SamplingParams, *, constrained: bool = True) -> Request:
    return Request(
        "r", np.array([1, 2], np.int32), sampling, constraint=EveryThird() if constrained else None
    )


def generate(sampler: Sampler, asked: Request, count: int, kept: list[int] | None = None) -> list[int]:
    """Tokens of a request in row 0, the ``kept`` ones included; logits depend on the position alone."""
    tokens = list(kept or [])
    sampler.start(0, asked, np.array(tokens, np.int32))
    while len(tokens) < count:
        position = len(asked.prompt_token_ids) + len(tokens)
        logits = np.random.RandomState(position).standard_normal((1, VOCAB)).astype(np.float32)
        before = logits.copy()
        chosen, _, logprobs = sampler.sample(np.array([0], np.int32), np.array([position], np.int32), logits)
        assert (logits == before).all(), "the caller's logits stay as they are"
        if asked.sampling.logprobs is not None:
            assert logprobs[0].token_id == chosen[0], "told from the raw logits"
        tokens.append(int(chosen[0]))
    sampler.end(0)
    return tokens


SAMPLINGS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, logprobs=2, frequency_penalty=1.0),
    SamplingParams(temperature=0.9, seed=5, top_k=7, top_p=0.9),
    SamplingParams(temperature=1.5, seed=6, min_p=0.05, logit_bias={9: 4.0}),
)


def test_only_allowed_tokens_come_and_a_preemption_changes_none() -> None:
    sampler = Sampler(VOCAB, (EOS,))
    for sampling in SAMPLINGS:
        asked = request(sampling)
        whole = generate(sampler, asked, 12)
        assert [token % 3 for token in whole] == [place % 3 for place in range(12)]
        for cut in (1, 5, 11):
            assert generate(sampler, asked, 12, whole[:cut]) == whole


def test_greedy_takes_the_best_allowed_token() -> None:
    (token,) = generate(Sampler(VOCAB, (EOS,)), request(SAMPLINGS[0]), 1)
    logits = np.random.RandomState(2).standard_normal(VOCAB).astype(np.float32)
    assert token == 3 * int(logits[::3].argmax())


def test_a_constrained_neighbour_changes_nobody() -> None:
    def together(constrained: bool) -> int:
        sampler = Sampler(VOCAB, (EOS,))
        free = replace(request(SAMPLINGS[2], constrained=False), request_id="free")
        sampler.start(0, free, np.zeros(0, np.int32))
        sampler.start(1, request(SAMPLINGS[2], constrained=constrained), np.zeros(0, np.int32))
        logits = np.random.RandomState(1).standard_normal((2, VOCAB)).astype(np.float32)
        tokens, _, _ = sampler.sample(np.array([0, 1], np.int32), np.array([2, 2], np.int32), logits)
        return int(tokens[0])

    assert together(True) == together(False)
