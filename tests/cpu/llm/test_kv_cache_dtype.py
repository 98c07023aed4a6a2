"""--kv-cache-dtype: the pool's element type apart from the weights'."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_models
from octavo import LLM, SamplingParams
from octavo.core.errors import ConfigError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def test_it_changes_bytes_and_nothing_else_that_is_told(tmp_path: Path) -> None:
    folder = str(tiny_models.write_llama(tmp_path, max_model_len=128))
    wide = LLM(folder, dtype="f32", num_blocks=20)
    narrow = LLM(folder, dtype="f32", kv_cache_dtype="bf16", num_blocks=20)
    assert wide.session.spec.kv_bytes_per_token == 2 * narrow.session.spec.kv_bytes_per_token
    assert narrow.session.spec.weight_dtype == "f32"
    lengths = [
        len(llm.generate("a b c", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) for llm in (wide, narrow)
    ]
    assert lengths == [12, 12]
    same = LLM(folder, dtype="f32", kv_cache_dtype="f32", num_blocks=20)
    answers = [llm.generate("a b c", GREEDY, use_tqdm=False)[0].outputs[0].text for llm in (wide, same)]
    assert answers[0] == answers[1]


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(ConfigError, match="fp8"):
        LLM("nowhere", kv_cache_dtype="fp8")
