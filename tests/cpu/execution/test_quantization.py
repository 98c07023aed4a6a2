"""Models with quantised linear layers: near those in full, the same bits in any company, refused where impossible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from native_helpers import every_path
from octavo.core.errors import ConfigError
from octavo.core.sampling_params import SamplingParams
from octavo.execution.loading import load_model
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from tiny_models import TINY_MODELS, TinyModel, write_gguf, write_hf

SETTINGS = [("int8", "Q8_0"), ("gguf", "Q8_0"), ("gguf", "Q4_0"), ("gguf", "Q4_1")]
every_setting = pytest.mark.parametrize(("quantization", "encoding"), SETTINGS, ids=lambda value: value)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def options(model: Path, quantization: str | None, **changes: object) -> EngineOptions:
    base = EngineOptions(model=str(model), quantization=quantization, num_blocks=200, seed=0, threads=2)
    return replace(base, **changes)  # type: ignore[arg-type]


def answers(options: EngineOptions, lengths: list[int]) -> tuple[list[list[int]], NDArray[np.float32]]:
    """Greedy answers to random prompts of these lengths, run together; logits of the last row of the first step."""
    session = build_session(options)
    prompts = [np.random.default_rng(n).integers(3, 200, n).tolist() for n in lengths]
    completions = [session.add(session.prepare(prompt, GREEDY)) for prompt in prompts]
    session.engine.step()
    logits = session.engine.executor.last_logits[-1]  # type: ignore[attr-defined]
    session.run(completions)
    return [completion.token_ids for completion in completions], logits


@every_setting
@every_path
def test_logits_are_near_those_in_full(quantization: str, encoding: str, path: str, tmp_path: Path) -> None:
    """Rounding rows to bytes costs about 1 % of a logit's size; a misplaced scale would cost all of it."""
    model = write_gguf(TINY_MODELS["llama-wide"], tmp_path / "m.gguf", encoding)
    _, full = answers(options(model, None, dtype="f32", path=path), [60])
    _, found = answers(options(model, quantization, path=path), [60])
    error = np.abs(found - full).std() / full.std()
    assert 1e-4 < error < 0.05


@every_setting
def test_an_answer_is_the_same_in_any_company(quantization: str, encoding: str, tmp_path: Path) -> None:
    model = write_gguf(TINY_MODELS["llama-wide"], tmp_path / "m.gguf", encoding)
    lengths = [5, 33, 70, 1, 18, 64]
    alone = [answers(options(model, quantization, threads=1), [length])[0][0] for length in lengths]
    for budget in (2048, 7):
        together, _ = answers(options(model, quantization, max_num_batched_tokens=budget), lengths)
        assert together == alone


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_family_runs_on_int8(name: str, tmp_path: Path) -> None:
    """Biases, norms of heads, untied logits."""
    model = write_hf(TINY_MODELS[name], tmp_path / name)
    length = min(40, load_model(model).spec.max_model_len - 12)
    _, full = answers(options(model, None, dtype="f32"), [length])
    _, found = answers(options(model, "int8"), [length])
    assert np.abs(found - full).std() / full.std() < 0.1


def formats(model: Path, quantization: str) -> list[str]:
    weights = load_model(model, "bf16", quantization).weights  # type: ignore[arg-type]
    return [weights.matrix(*names).format for names in (("0.q", "0.k", "0.v"), ("1.down",), ("logits",))]


def test_blocks_are_kept_where_all_parts_have_them(tmp_path: Path) -> None:
    assert formats(write_gguf(TINY_MODELS["llama-wide"], tmp_path / "4.gguf", "Q4_1"), "gguf") == ["q4_1"] * 3
    assert formats(write_gguf(TINY_MODELS["llama-wide"], tmp_path / "8.gguf", "Q8_0"), "gguf") == ["q8_0"] * 3
    model = write_gguf(TINY_MODELS["llama-wide"], tmp_path / "5.gguf", "Q5_0")
    assert formats(model, "gguf") == ["bf16"] * 3
    assert formats(model, "int8") == ["int8"] * 3


def test_layers_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    wide: TinyModel = TINY_MODELS["llama-wide"]
    [note] = load_model(write_gguf(wide, tmp_path / "m.gguf", "Q6_K"), "bf16", "gguf").notes
    assert "9 of 9 linear layers are stored as Q6_K and kept as bf16" in note
    assert not load_model(write_gguf(wide, tmp_path / "k.gguf", "Q4_0"), "bf16", "gguf").notes
    assert not load_model(tmp_path / "m.gguf", "bf16", "int8").notes


def test_blocks_of_a_folder_are_refused(tmp_path: Path) -> None:
    folder = write_hf(TINY_MODELS["llama"], tmp_path / "m")
    with pytest.raises(ConfigError, match="no GGUF file") as caught:
        load_model(folder, "bf16", "gguf")
    assert caught.value.param == "--quantization"
    with pytest.raises(ConfigError, match="'int4' is not supported; choose int8 or gguf"):
        load_model(folder, "bf16", "int4")  # type: ignore[arg-type]
