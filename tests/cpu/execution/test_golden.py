"""SmolLM2-135M-Instruct in float32: the greedy answers and logits that transformers gave for 24 prompts.

Golden values: tests/reference/recompute.py (torch, transformers; the same dequantised weights).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor_steps import Sequences
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.loading import load_model
from octavo.text.tokenizer import load_tokenizer
from reference.prompts import PROMPTS

BLOCK_SIZE = 16
BLOCKS_EACH = 80
CHUNK = 512

LOGIT_TOLERANCE = 2e-3
"""Absolute, of logits that reach 30: two float32 runs with sums in different orders."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def expected(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "smollm2.json").read_text(encoding="utf-8"))
    assert found.keys() == PROMPTS.keys()
    assert len(found) >= 20
    return found


def test_prompts_are_tokenised_alike(embedded_model: Path, expected: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(embedded_model)
    for name, messages in PROMPTS.items():
        ids = tokenizer.encode(tokenizer.apply_chat_template(messages), add_special_tokens=False)
        assert ids == expected[name]["prompt_token_ids"], name


def test_greedy_answers_and_logits_are_those_of_transformers(
    embedded_model: Path, expected: dict[str, Any]
) -> None:
    """All prompts in one batch, prefilled in chunks that mix them."""
    rows = len(expected)
    executor = CpuExecutor(
        load_model(embedded_model, "f32"),
        num_blocks=rows * BLOCKS_EACH,
        block_size=BLOCK_SIZE,
        max_num_seqs=rows,
        threads=2,
        max_model_len=BLOCK_SIZE * BLOCKS_EACH,
    )
    driven = Sequences(executor, BLOCK_SIZE, BLOCKS_EACH, rows)
    logits: list[dict[int, np.ndarray[Any, Any]]] = [{} for _ in range(rows)]
    prompts = [answer["prompt_token_ids"] for answer in expected.values()]
    for row, prompt in enumerate(prompts):
        driven.start(row, prompt)

    def generated(row: int) -> int:
        return len(driven.tokens[row]) - len(prompts[row])

    while any(generated(row) < 32 for row in range(rows)):
        scheduled, budget = {}, CHUNK
        for row in range(rows):
            left = min(budget, len(driven.tokens[row]) - driven.computed[row])
            if left and generated(row) < 32:
                scheduled[row], budget = left, budget - left
        before = {row: generated(row) for row in scheduled}
        driven.step(scheduled)
        sampled = [row for row in scheduled if generated(row) > before[row]]
        for row, row_logits in zip(sampled, executor.last_logits, strict=True):
            logits[row][before[row]] = row_logits
    for row, (name, answer) in enumerate(expected.items()):
        assert driven.tokens[row][len(prompts[row]) :] == answer["token_ids"], name
        for step, top in zip((0, 7, 31), answer["top"], strict=True):
            found = logits[row][step]
            np.testing.assert_allclose(
                found[top["ids"]], top["logits"], atol=LOGIT_TOLERANCE, rtol=0, err_msg=name
            )
            assert found.max() <= max(top["logits"]) + LOGIT_TOLERANCE
