"""The executor as the engine sees it: rows handed over, copies, logits and log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor_steps import GREEDY, Sequences
from numpy_operators import float64_logits
from octavo.core.errors import ConfigError, ModelError
from octavo.core.sampling_params import SamplingParams
from octavo.execution.cpu_executor import CpuExecutor
from octavo.execution.loading import LoadedModel, load_model
from tiny_models import (
    EOS_TOKEN_ID,
    TINY_MODELS,
    VOCAB_SIZE,
    TinyModel,
    save_safetensors,
    tiny_weights,
    write_hf,
)

BLOCK_SIZE = 8
PROMPT = list(range(40, 75))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_hf(TINY_MODELS["llama"], tmp_path_factory.mktemp("tiny") / "llama"), "f32")


def sequences(model: LoadedModel, rows: int = 4) -> Sequences:
    executor = CpuExecutor(
        model, num_blocks=rows * 16 + 2, block_size=BLOCK_SIZE, max_num_seqs=rows, threads=2
    )
    executor.kv.fill(float("nan"))
    return Sequences(executor, BLOCK_SIZE, 16, rows)


def last_logits(driven: Sequences) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    assert isinstance(driven.executor, CpuExecutor)
    return driven.executor.last_logits


def test_greedy_tokens_are_the_highest_logits_of_float64(model: LoadedModel) -> None:
    driven = sequences(model)
    driven.start(0, PROMPT)
    driven.step({0: len(PROMPT)})
    driven.decode(10)
    tokens = np.array(driven.tokens[0], np.int32)
    expected = float64_logits(model, tokens[:-1])
    assert tokens[len(PROMPT) :].tolist() == expected[len(PROMPT) - 1 :].argmax(axis=1).tolist()
    np.testing.assert_allclose(last_logits(driven)[0], expected[-1], atol=5e-5)


def test_rows_of_a_batch_do_not_touch_each_other(model: LoadedModel) -> None:
    """Prefill, a chunk and decode in one step; the same tokens as alone."""
    alone = []
    for prompt in (PROMPT, PROMPT[:3], PROMPT[::-1]):
        driven = sequences(model)
        driven.start(0, prompt)
        driven.step({0: len(prompt)})
        driven.decode(8)
        alone.append(driven.tokens[0])
    driven = sequences(model)
    driven.start(2, PROMPT)
    driven.step({2: 20})
    driven.start(0, PROMPT[:3])
    result = driven.step({0: 3, 2: 10})
    assert len(result.token_ids) == 1, "row 2 has not seen its whole prompt"
    driven.start(3, PROMPT[::-1])
    driven.step({3: len(PROMPT), 2: 5, 0: 1})
    driven.decode(8)
    for row, expected in ((2, alone[0]), (0, alone[1]), (3, alone[2])):
        found = driven.tokens[row]
        common = min(len(found), len(expected))
        assert found[:common] == expected[:common]


def test_a_row_passes_to_another_request(model: LoadedModel) -> None:
    driven = sequences(model)
    driven.start(1, PROMPT)
    driven.step({1: len(PROMPT)})
    driven.end(1)
    driven.start(1, PROMPT[:5], replace(GREEDY, prompt_logprobs=0))
    result = driven.step({1: 5})
    assert len(result.prompt_logprobs[1]) == 4
    fresh = sequences(model)
    fresh.start(1, PROMPT[:5])
    fresh.step({1: 5})
    assert driven.tokens[1] == fresh.tokens[1]


def test_an_empty_plan_still_ends_rows_and_copies(model: LoadedModel) -> None:
    driven = sequences(model)
    driven.start(0, PROMPT)
    driven.step({0: len(PROMPT)})
    spare = 4 * 16
    source = int(driven.table[0, 0])
    driven.end(0)
    plan = driven.plan({}, np.array([[source, spare], [spare, spare + 1]], np.int32))
    result = driven.executor.collect(driven.executor.submit(plan))
    assert len(result.token_ids) == len(result.stopped) == len(last_logits(driven)) == 0
    assert isinstance(driven.executor, CpuExecutor)
    for slot in range(BLOCK_SIZE):
        for copied, original in zip(
            driven.executor.kv.read(1, spare + 1, slot), driven.executor.kv.read(1, source, slot), strict=True
        ):
            np.testing.assert_array_equal(copied, original)
            assert np.isfinite(copied).all()
    driven.start(0, PROMPT)  # the row is free again
    driven.step({0: len(PROMPT)})


@pytest.mark.parametrize("chunks", [(35,), (1, 33, 1), (7, 7, 7, 7, 7)])
def test_prompt_logprobs_in_any_chunks(model: LoadedModel, chunks: tuple[int, ...]) -> None:
    """Beside another row, whose logits must not be taken for the prompt's."""
    driven = sequences(model)
    driven.start(1, PROMPT[:4])
    driven.step({1: 4})
    driven.start(0, PROMPT, replace(GREEDY, prompt_logprobs=3, logprobs=2))
    found, result = [], None
    for chunk in chunks:
        result = driven.step({1: 1, 0: chunk})
        found += list(result.prompt_logprobs.get(0, ()))
    assert result is not None
    expected = float64_logits(model, np.array(PROMPT, np.int32))
    logprobs = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
    assert [one.token_id for one in found] == PROMPT[1:]
    for position, one in enumerate(found):
        assert one.logprob == pytest.approx(logprobs[position, PROMPT[position + 1]], abs=1e-4)
        assert one.rank == 1 + (logprobs[position] > logprobs[position, PROMPT[position + 1]]).sum()
        assert one.top_ids.tolist() == np.argsort(-logprobs[position])[:3].tolist()
    assert result.token_ids[1] == expected[-1].argmax()
    assert result.logprobs[0].token_id == result.token_ids[1]
    np.testing.assert_allclose(last_logits(driven)[1], expected[-1], atol=5e-5)
    driven.decode(2)


def test_end_tokens_stop(model: LoadedModel) -> None:
    forced = SamplingParams(temperature=0, logit_bias={EOS_TOKEN_ID: 100.0})
    driven = sequences(model)
    driven.start(0, PROMPT, forced)
    driven.start(1, PROMPT, replace(forced, ignore_eos=True))
    result = driven.step({0: 35, 1: 35})
    assert result.token_ids.tolist() == [EOS_TOKEN_ID] * 2
    assert result.stopped.tolist() == [True, False]


def test_bf16_is_close_to_f32(tmp_path: Path) -> None:
    folder = write_hf(TINY_MODELS["qwen3"], tmp_path / "m")
    logits = []
    for dtype in ("f32", "bf16"):
        driven = sequences(load_model(folder, dtype))  # type: ignore[arg-type]
        driven.start(0, PROMPT)
        driven.step({0: 35})
        logits.append(last_logits(driven)[0])
    assert logits[0].shape == (VOCAB_SIZE,)
    difference = np.abs(logits[0] - logits[1])
    assert 0 < difference.max() < 0.15


@pytest.mark.parametrize(
    ("changes", "words", "param"),
    [
        ({"path": "quantum"}, "'quantum'", "--cpu-path"),
        ({"threads": 0}, "threads is 0", "--threads"),
        ({"threads": 100_000}, "threads is 100000", "--threads"),
        ({"num_blocks": 2**31 - 1, "block_size": 256}, "2147483647 blocks", "--kv-cache-memory-bytes"),
    ],
)
def test_settings_that_this_machine_has_not(
    model: LoadedModel, changes: dict[str, Any], words: str, param: str
) -> None:
    settings: dict[str, Any] = {"num_blocks": 1, "block_size": 8, "max_num_seqs": 1, **changes}
    with pytest.raises(ConfigError, match=words) as caught:
        CpuExecutor(model, **settings)
    assert caught.value.param == param


def test_a_head_size_that_the_kernels_do_not_run(tmp_path: Path) -> None:
    odd = TinyModel("odd", "LlamaForCausalLM", 96, 6, 2, 12)
    with pytest.raises(ModelError, match="heads of 12 elements"):
        CpuExecutor(load_model(write_hf(odd, tmp_path / "odd")), num_blocks=1, block_size=8, max_num_seqs=1)


def test_a_damaged_weight_is_found_at_the_start(tmp_path: Path) -> None:
    folder = write_hf(TINY_MODELS["llama"], tmp_path / "m", "F16")
    weights = tiny_weights(TINY_MODELS["llama"])
    weights["model.layers.1.mlp.down_proj.weight"][5, 6] = np.inf
    save_safetensors(folder / "model.safetensors", weights, "F16")
    with pytest.raises(
        ModelError, match=r"model\.layers\.1\.mlp\.down_proj\.weight holds inf at row 5, column 6"
    ):
        CpuExecutor(load_model(folder), num_blocks=1, block_size=8, max_num_seqs=1)


def test_a_model_of_a_long_context_takes_no_memory_for_it(tmp_path: Path) -> None:
    """The rotary tables of 10 ** 12 positions would be 128 TB."""
    long = replace(TINY_MODELS["llama"], name="long", max_len=10**12)
    driven = sequences(load_model(write_hf(long, tmp_path / "long"), "f32"))
    driven.start(0, PROMPT)
    driven.step({0: len(PROMPT)})
    assert len(driven.tokens[0]) == len(PROMPT) + 1
