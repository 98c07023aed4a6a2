"""What load_model says about good models: sizes, end tokens, weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

from native_helpers import to_bf16
from octavo.execution.loading import load_model
from octavo.execution.loading.encodings import QUANTISED
from octavo.execution.loading.names import weight_names
from octavo.execution.loading.weights import rotate_half_order
from octavo.text.gguf_header import read_gguf_header
from tiny_models import EOS_TOKEN_ID, TINY_MODELS, VOCAB_SIZE, tiny_weights, write_gguf, write_hf


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_sizes_and_end_tokens(kind: str, tmp_path: Path) -> None:
    tiny = TINY_MODELS["llama3"]
    source = write_hf(tiny, tmp_path / "m") if kind == "folder" else write_gguf(tiny, tmp_path / "m.gguf")
    model = load_model(str(source))
    spec = model.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 1, 32)
    assert (spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (128, 96, VOCAB_SIZE)
    assert spec.max_model_len == 256
    assert spec.name == "m"
    assert (spec.kv_dtype, spec.weight_dtype) == ("bf16", "bf16"), "auto is bf16"
    assert spec.num_parameters == sum(w.size for w in tiny_weights(tiny).values())
    assert model.eos_token_ids[0] == EOS_TOKEN_ID
    assert (256 in model.eos_token_ids) == (kind == "folder"), "generation_config.json lists it"
    assert model.path == source
    assert not model.notes


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_weights_are_the_numbers_in_the_file(name: str, stored: str, tmp_path: Path) -> None:
    """Also those of a GGUF file, whose query and key rows come back in rotate-half order."""
    tiny = TINY_MODELS[name]
    written = tiny_weights(tiny)
    for source in (
        write_hf(tiny, tmp_path / "folder", stored, shards=2),
        write_gguf(tiny, tmp_path / "file.gguf", stored),
    ):
        model = load_model(source, "f32")
        for wanted in weight_names(model.architecture):
            if len(wanted.shape) == 1:
                found = model.weights.vector(wanted.canonical)
            else:
                found = model.weights.matrix(wanted.canonical).array()
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, written[wanted.hugging_face])


@pytest.mark.parametrize("encoding", QUANTISED)
def test_quantised_weights_are_the_gguf_packages(encoding: str, tmp_path: Path) -> None:
    path = write_gguf(TINY_MODELS["llama-wide"], tmp_path / "m.gguf", encoding)
    model = load_model(path, "f32")
    info = next(t for t in read_gguf_header(path).tensors if t.name == "blk.1.attn_k.weight")
    kind = GGMLQuantizationType[encoding]
    row_bytes = quants.quant_shape_to_byte_shape(info.shape, kind)
    raw = np.fromfile(path, np.uint8, row_bytes[0] * row_bytes[1], offset=info.offset).reshape(row_bytes)
    expected = quants.dequantize(raw, kind)[rotate_half_order(2, 64)]
    np.testing.assert_array_equal(model.weights.matrix("1.k").array(), expected)
    np.testing.assert_array_equal(load_model(path, "bf16").weights.matrix("1.k").array(), to_bf16(expected))


def test_joined_matrices_lie_one_below_another(tmp_path: Path) -> None:
    weights = load_model(write_gguf(TINY_MODELS["llama"], tmp_path / "m.gguf", "Q8_0"), "bf16").weights
    joined = weights.matrix("0.q", "0.k", "0.v").array()
    np.testing.assert_array_equal(
        joined, np.concatenate([weights.matrix(f"0.{part}").array() for part in "qkv"])
    )
    assert joined.dtype == np.uint16


def test_weights_stored_as_wanted_are_not_copied(tmp_path: Path) -> None:
    weights = load_model(write_hf(TINY_MODELS["llama"], tmp_path / "m", "BF16"), "bf16").weights
    embed = weights.matrix("embed").array()
    assert not embed.flags.owndata
    assert not embed.flags.writeable


def test_tied_models_have_no_weights_for_their_logits(tmp_path: Path) -> None:
    tied = load_model(write_gguf(TINY_MODELS["qwen2"], tmp_path / "tied.gguf"))
    separate = load_model(write_gguf(TINY_MODELS["qwen3"], tmp_path / "separate.gguf"))
    assert "logits" not in tied.weights
    assert "logits" in separate.weights


def test_a_sliding_window_cuts_the_context_and_says_so(tmp_path: Path) -> None:
    model = load_model(write_hf(TINY_MODELS["mistral-window"], tmp_path / "m"))
    assert model.spec.max_model_len == 64
    [note] = model.notes
    assert "64" in note
    assert "256" in note


def test_qwen2_ignores_a_window_that_is_switched_off(tmp_path: Path) -> None:
    folder = write_hf(TINY_MODELS["qwen2"], tmp_path / "m")
    for switch, length in ((False, 256), (True, 32)):
        change(folder, sliding_window=32, use_sliding_window=switch)
        assert load_model(folder).spec.max_model_len == length


def change(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_new_and_old_names_of_rope_settings_mean_the_same(tmp_path: Path) -> None:
    old = load_model(write_hf(TINY_MODELS["llama3"], tmp_path / "old")).architecture
    folder = write_hf(TINY_MODELS["llama3"], tmp_path / "new")
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    change(folder, rope_scaling=None, rope_theta=None, rope_parameters={**scaling, "rope_theta": 10000.0})
    assert load_model(folder).architecture == old


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    folder = write_hf(TINY_MODELS["qwen2-yarn"], tmp_path / "m")
    change(folder, max_position_embeddings=64)
    assert load_model(folder).spec.max_model_len == 256
