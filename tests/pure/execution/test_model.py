"""The description of every family, run in float64, against what transformers computed in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpy_operators import float64_logits
from octavo.execution.loading import load_model
from tiny_models import TINY_MODELS, write_gguf, write_hf

TOLERANCE = 5e-5
"""Of logits of order 1, absolute: transformers' own float32 rounding, and the five digits that are stored."""


def fixed_tokens(count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return ((np.arange(count) * 37 + 11) % 256).astype(np.int32)


@pytest.mark.parametrize("stored", ["F32", "BF16 in 3 shards", "GGUF F16"])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_family_agrees_with_transformers(name: str, stored: str, golden: Path, tmp_path: Path) -> None:
    """From every kind of file: their numbers are the same (tiny_models.py), so their logits must be."""
    expected = json.loads((golden / "tiny_models.json").read_text())[name]
    match stored:
        case "F32":
            source = write_hf(TINY_MODELS[name], tmp_path / name)
        case "BF16 in 3 shards":
            source = write_hf(TINY_MODELS[name], tmp_path / name, "BF16", shards=3)
        case _:
            source = write_gguf(TINY_MODELS[name], tmp_path / "model.gguf", "F16")
    logits = float64_logits(load_model(source, "f32"), fixed_tokens(len(expected["argmax"])), (40, 7), 16)
    stored_logits = np.array(expected["logits"])
    found = logits[expected["positions"], : stored_logits.shape[1]]
    np.testing.assert_allclose(found, stored_logits, atol=TOLERANCE, rtol=0)
    assert logits.argmax(axis=1).tolist() == expected["argmax"]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_bf16_weights_of_a_bf16_file_are_the_same_numbers(name: str, tmp_path: Path) -> None:
    folder = write_hf(TINY_MODELS[name], tmp_path / name, "BF16")
    tokens = fixed_tokens(20)
    exact, rounded = (float64_logits(load_model(folder, dtype), tokens) for dtype in ("f32", "bf16"))
    np.testing.assert_array_equal(exact, rounded)


def test_chunks_and_blocks_change_nothing(tmp_path: Path) -> None:
    model = load_model(write_hf(TINY_MODELS["qwen2-yarn"], tmp_path / "m"), "f32")
    tokens = fixed_tokens(40)
    whole = float64_logits(model, tokens, (), 64)
    np.testing.assert_allclose(float64_logits(model, tokens, (7, 1, 1, 13), 2), whole, atol=1e-11)
