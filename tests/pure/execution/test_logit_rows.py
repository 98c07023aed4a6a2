"""Which tokens of a step get logits."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from octavo.core.plan import StepPlan
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.execution.logit_rows import logit_rows


def plan(*rows: tuple[int, int, int, bool]) -> StepPlan:
    """Of (row, computed, scheduled, samples)."""
    numbers, computed, scheduled, samples = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 4
    )
    return StepPlan(
        0,
        np.array(numbers, np.int32),
        np.array(computed, np.int32),
        np.array(scheduled, np.int32),
        np.zeros(sum(scheduled), np.int32),
        np.array(samples, np.bool_),
        np.zeros((8, 4), np.int32),
        np.empty((0, 2), np.int32),
        (),
        (),
    )


def scoring(**lengths: int) -> dict[int, Request]:
    """``r3=10``: row 3 scores a prompt of 10 tokens."""
    params = SamplingParams(prompt_logprobs=1)
    return {int(name[1:]): Request(name, np.zeros(n, np.int32), params) for name, n in lengths.items()}


def test_the_newest_token_of_each_row_that_samples() -> None:
    found = logit_rows(plan((4, 0, 5, True), (2, 9, 1, True), (0, 3, 4, False), (1, 7, 2, True)), {})
    assert found.tokens.tolist() == [4, 5, 11]
    assert found.sampled.tolist() == [0, 1, 2]
    assert found.prompts == ()
    assert found.tokens.dtype == np.int32


def test_an_empty_step() -> None:
    for requests in ({}, scoring(r1=5)):
        found = logit_rows(plan(), requests)
        assert found.tokens.tolist() == found.sampled.tolist() == []


def test_a_prompt_in_chunks_is_scored_once() -> None:
    requests = scoring(r3=10)
    first = logit_rows(plan((3, 0, 4, False)), requests)
    assert first.tokens.tolist() == first.prompts[0].positions.tolist() == [0, 1, 2, 3]
    assert first.sampled.tolist() == []
    last = logit_rows(plan((3, 4, 6, True)), requests)
    assert last.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert last.prompts[0].positions.tolist() == [4, 5, 6, 7, 8], "the last token predicts none of the prompt"
    assert last.sampled.tolist() == [5]
    decode = logit_rows(plan((3, 10, 1, True)), requests)
    assert decode.tokens.tolist() == [0]
    assert decode.prompts == ()


def test_scored_prompts_between_other_rows() -> None:
    found = logit_rows(plan((0, 5, 1, True), (3, 2, 3, True), (1, 0, 2, True)), scoring(r3=5, r7=9))
    assert found.tokens.tolist() == [0, 1, 2, 3, 5]
    assert found.sampled.tolist() == [0, 3, 4]
    [prompt] = found.prompts
    assert (prompt.row, prompt.rows, prompt.positions.tolist()) == (3, slice(1, 3), [2, 3])


def test_a_prompt_of_one_token_and_a_chunk_that_only_recomputes() -> None:
    found = logit_rows(plan((3, 0, 1, True), (4, 5, 3, True)), scoring(r3=1, r4=6))
    assert found.prompts == ()
    assert found.tokens.tolist() == [0, 3]


def test_forks_are_sampled_from_their_parents_logits() -> None:
    forking = replace(
        plan((3, 0, 6, True), (5, 6, 0, True), (2, 6, 0, True), (7, 4, 1, True)),
        forks=np.array([[3, 5], [3, 2]], np.int32),
    )
    found = logit_rows(forking, {})
    assert found.tokens.tolist() == [5, 6] and found.sampled.tolist() == [0, 0, 0, 1]
    scored = logit_rows(forking, scoring(r3=6, r5=6))
    assert scored.tokens.tolist() == [0, 1, 2, 3, 4, 5, 6] and scored.sampled.tolist() == [5, 5, 5, 6]
    assert [prompt.row for prompt in scored.prompts] == [3], "the prompt is scored once"
