"""--kv-cache-dtype: the pool's element type apart from the weights'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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


@pytest.mark.parametrize(("name", "kept"), [("fp8", "fp8"), ("fp8_e4m3", "fp8"), ("int8", "int8")])
def test_bytes_hold_nearly_twice_the_tokens(tmp_path: Path, name: str, kept: str) -> None:
    folder = str(tiny_models.write_llama(tmp_path, max_model_len=128))
    pool = 1 << 20
    wide = LLM(folder, dtype="bf16", kv_cache_memory_bytes=pool)
    narrow = LLM(folder, dtype="bf16", kv_cache_dtype=name, kv_cache_memory_bytes=pool)
    spec = narrow.session.spec
    assert (spec.kv_dtype, spec.weight_dtype) == (kept, "bf16")
    token = 2 * spec.num_layers * spec.num_kv_heads * (spec.head_dim + 4)
    blocks = [llm.session.engine.scheduler.pool_state.total for llm in (wide, narrow)]
    assert blocks[1] == pool // (16 * token)
    assert blocks[1] * (spec.head_dim + 4) <= blocks[0] * 2 * spec.head_dim + 2 * spec.head_dim
    assert narrow.session.engine.executor.kv.nbytes == blocks[1] * 16 * token <= pool  # type: ignore[attr-defined]
    answer = narrow.generate("a b c", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    assert len(answer) == 12


def test_answers_hardly_change(tmp_path: Path) -> None:
    """Logits after a prompt: a random model's own are far apart, so that a shift of a slot or a scale would show."""
    folder = str(tiny_models.write_llama(tmp_path, max_model_len=128))

    def logits(name: str) -> NDArray[np.float32]:
        llm = LLM(folder, dtype="f32", kv_cache_dtype=name, num_blocks=20)
        llm.generate(" ".join("abcdefghij" * 4), SamplingParams(max_tokens=1), use_tqdm=False)
        return llm.session.engine.executor.last_logits[0].copy()  # type: ignore[attr-defined,no-any-return]

    exact = logits("f32")
    for name, bound in (("bf16", 0.01), ("int8", 0.02), ("fp8", 0.05)):
        found = logits(name)
        assert 0 < np.abs(found - exact).max() < bound * np.abs(exact - exact.mean()).max(), name


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'fp8_e5m2'.*auto, f32, bf16, fp8, fp8_e4m3, int8") as caught:
        LLM("nowhere", kv_cache_dtype="fp8_e5m2")
    assert caught.value.param == "--kv-cache-dtype"
