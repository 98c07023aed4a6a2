"""Damaged, incomplete and foreign models: a ModelError each, naming file, tensor and number; never a traceback."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.core.errors import ConfigError, ModelError
from octavo.execution.loading import load_model
from octavo.execution.loading.names import weight_names
from octavo.text.gguf_header import read_gguf_header
from tiny_models import TINY_MODELS, save_safetensors, tiny_weights, write_gguf, write_hf

LLAMA = TINY_MODELS["llama"]


def read_everything(source: Path) -> None:
    model = load_model(source, "bf16")
    for wanted in weight_names(model.architecture):
        if len(wanted.shape) == 1:
            model.weights.vector(wanted.canonical)
        else:
            model.weights.matrix(wanted.canonical).array()


def refused(source: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_everything(source)
    for word in words:
        assert word in caught.value.message
    assert caught.value.param == "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf(LLAMA, tmp_path / "model")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(LLAMA, tmp_path / "model.gguf", "Q8_0")


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "does not exist")
    refused(tmp_path / "nowhere.gguf", "nowhere.gguf", "does not exist")


def test_a_dtype_that_is_none() -> None:
    with pytest.raises(ConfigError, match="int8"):
        load_model("model", "int8")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_is_missing(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, str(folder), name)


def test_a_folder_of_gguf_files_points_to_the_file(tmp_path: Path, gguf: Path) -> None:
    refused(gguf.parent, "no config.json", "model.gguf")


def test_a_shard_is_missing(tmp_path: Path) -> None:
    folder = write_hf(LLAMA, tmp_path / "sharded", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors is missing", "model.norm.weight")


@pytest.mark.parametrize("kept", [0, 5, 100, 5000, -1])
def test_safetensors_cut_short(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:kept])
    refused(folder, "model.safetensors", "truncated", str(len(data[:kept])))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda data: b"\xff" * 8 + data[8:], "18446744073709551615"),
        (lambda data: data[:8] + b"}" + data[9:], "not valid JSON"),
        (lambda data: (10**6).to_bytes(8, "little") + b"[" * 10**6, "not valid JSON"),
        (lambda data: data.replace(b'"F32"', b'"F16"', 1), "needs"),
        (lambda data: data.replace(b'"data_offsets"', b'"data_offsetz"', 1), "entry for tensor"),
        (lambda data: data.replace(b'"data_offsets": [0, ', b'"data_offsets": [8, ', 1), "needs"),
    ],
)
def test_a_damaged_safetensors_header(folder: Path, damage: Callable[[bytes], bytes], word: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    refused(folder, str(path), word)


def test_safetensors_with_one_byte_changed_never_end_in_a_traceback(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    header_bytes = 8 + int.from_bytes(data[:8], "little")
    places = [*range(40), *np.random.default_rng(0).integers(0, header_bytes, 200)]
    refusals = 0
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 + place % 255
        path.write_bytes(changed)
        try:
            read_everything(folder)
        except ModelError:
            refusals += 1
    assert refusals > 150


def test_weights_of_an_unsupported_type(folder: Path) -> None:
    patched(folder / "model.safetensors", b'"F32"', b'"F64"')
    refused(folder, "model.embed_tokens.weight is F64", "BF16")


def test_a_tensor_is_missing_or_of_another_type(folder: Path) -> None:
    weights = tiny_weights(LLAMA)
    removed = weights.pop("model.layers.1.self_attn.k_proj.weight")
    save_safetensors(folder / "model.safetensors", weights)
    refused(folder, "model.layers.1.self_attn.k_proj.weight", "missing", "2 layers")
    weights["model.layers.1.self_attn.k_proj.weight"] = removed[:-1]
    save_safetensors(folder / "model.safetensors", weights)
    refused(folder, "model.layers.1.self_attn.k_proj.weight", "[31, 96]", "[32, 96]")


def test_a_number_that_is_none(folder: Path) -> None:
    weights = tiny_weights(LLAMA)
    weights["model.layers.0.mlp.up_proj.weight"][3, 7] = np.nan
    save_safetensors(folder / "model.safetensors", weights)
    refused(folder, "model.layers.0.mlp.up_proj.weight", "nan", "row 3, column 7")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ("GPT2LMHeadModel", "LlamaForCausalLM")),
        ({"architectures": None, "model_type": "gpt2"}, ("'gpt2'",)),
        ({"hidden_size": None}, ("hidden_size is missing",)),
        ({"hidden_size": "large"}, ("hidden_size is 'large'",)),
        ({"num_attention_heads": 0}, ("num_attention_heads is 0", "at least 1")),
        ({"num_hidden_layers": True}, ("num_hidden_layers is True",)),
        ({"num_key_value_heads": 4}, ("6 query heads", "4 kv heads")),
        ({"head_dim": 15}, ("15 rotary dimensions",)),
        ({"rms_norm_eps": -1}, ("rms_norm_eps is -1",)),
        ({"rope_theta": 1}, ("the rotary base is 1",)),
        ({"hidden_act": "gelu"}, ("hidden_act is 'gelu'", "silu")),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings is 'yes'",)),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ("'longrope'", "yarn")),
        ({"rope_scaling": {"type": "linear"}}, ("factor is missing",)),
        ({"rope_scaling": [1]}, ("rope_scaling is [1]",)),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 2,
                    "low_freq_factor": 4,
                    "high_freq_factor": 1,
                }
            },
            ("high_freq_factor is 1",),
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantised", "GGUF")),
        ({"vocab_size": 300}, ("model.embed_tokens.weight", "[288, 96]", "[300, 96]")),
        ({"num_hidden_layers": 3}, ("model.layers.2.input_layernorm.weight", "missing")),
    ],
)
def test_a_wrong_setting(folder: Path, settings: dict[str, Any], words: tuple[str, ...]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    refused(folder, *words)


@pytest.mark.parametrize("text", ["{", "[]", "", "[" * 100_000])
def test_a_config_that_is_no_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, "config.json")


def test_an_index_without_a_map(tmp_path: Path) -> None:
    folder = write_hf(LLAMA, tmp_path / "sharded", shards=2)
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, "model.safetensors.index.json", "weight_map")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.999])
def test_gguf_cut_short(gguf: Path, share: float) -> None:
    data = gguf.read_bytes()
    gguf.write_bytes(data[: int(len(data) * share)])
    refused(gguf, "model.gguf")


def test_gguf_cut_within_a_tensor_names_it(gguf: Path) -> None:
    data = gguf.read_bytes()
    last = max(read_gguf_header(gguf).tensors, key=lambda tensor: tensor.offset)
    gguf.write_bytes(data[: last.offset + 10])
    refused(gguf, last.name, "truncated", f"{last.offset + 10:,}")


def test_gguf_with_one_byte_changed_never_ends_in_a_traceback(gguf: Path) -> None:
    """Every byte of the header's beginning, and random ones of the whole: a ModelError, or a model."""
    data = bytearray(gguf.read_bytes())
    header_bytes = read_gguf_header(gguf).data_offset
    state = np.random.default_rng(0)
    places = [*range(400), *state.integers(0, header_bytes, 300), *state.integers(0, len(data), 50)]
    refusals = 0
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 0xFF
        gguf.write_bytes(changed)
        try:
            read_everything(gguf)
        except ModelError:
            refusals += 1
    assert refusals > 50


def patched(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert data.count(old) >= 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def test_gguf_of_another_family(gguf: Path) -> None:
    patched(gguf, struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"gemma")
    refused(gguf, "'gemma'", "llama, qwen2, qwen3")


def test_gguf_without_a_tensor(gguf: Path) -> None:
    patched(gguf, b"blk.1.ffn_up.weight", b"blk.1.ffn_xy.weight")
    refused(gguf, "blk.1.ffn_up.weight", "missing")


def test_gguf_without_an_embedding(gguf: Path) -> None:
    patched(gguf, b"token_embd.weight", b"token_xxxx.weight")
    refused(gguf, "token_embd.weight", "missing")


@pytest.mark.parametrize(("number", "name"), [(16, "IQ2_XXS (number 16)"), (77, "number 77")])
def test_gguf_of_an_unsupported_type(gguf: Path, number: int, name: str) -> None:
    tensor = b"blk.0.ffn_up.weight" + struct.pack("<IQQ", 2, LLAMA.hidden, LLAMA.intermediate)
    patched(gguf, tensor + struct.pack("<I", 8), tensor + struct.pack("<I", number))
    refused(gguf, "blk.0.ffn_up.weight", name, "Q4_K")


def test_gguf_with_a_wrong_shape(gguf: Path) -> None:
    head, number = b"blk.0.ffn_up.weight", LLAMA.intermediate
    patched(
        gguf,
        head + struct.pack("<IQQ", 2, LLAMA.hidden, number),
        head + struct.pack("<IQQ", 2, LLAMA.hidden, number - 1),
    )
    refused(gguf, "blk.0.ffn_up.weight", f"[{number - 1}, 96]", f"[{number}, 96]")


def test_gguf_with_a_damaged_scale(gguf: Path) -> None:
    tensor = next(t for t in read_gguf_header(gguf).tensors if t.name == "blk.0.ffn_up.weight")
    data = bytearray(gguf.read_bytes())
    data[tensor.offset + 34 : tensor.offset + 36] = np.float16("inf").tobytes()  # the second block's
    gguf.write_bytes(data)
    refused(gguf, "blk.0.ffn_up.weight", "row 0, column ")


def test_a_hub_name_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"no file or folder some-org/some-model.*huggingface_hub"):
        load_model("some-org/some-model")


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    def unreachable(name: str, **_: object) -> str:
        raise OSError("no route to the hub")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=unreachable))
    with pytest.raises(ModelError, match=r"some-org/some-model.*no route to the hub"):
        load_model("some-org/some-model")
