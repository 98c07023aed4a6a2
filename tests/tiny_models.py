"""Tiny random models of every family, written as Hugging Face folders and as GGUF files; deterministic.

Weights are multiples of 1/512 below a half: eight significant bits, so that F32, F16 and BF16 files of a model hold
the very same numbers, and one set of expected logits serves them all.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from native_helpers import to_bf16
from octavo.execution.loading.families import FAMILIES, from_hf_config
from octavo.execution.loading.fields import Fields
from octavo.execution.loading.names import weight_names

Floats = NDArray[np.float32]

VOCAB_SIZE = 288
EOS_TOKEN_ID = 257
_SPECIAL = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
_CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """What a config.json of this model says."""

    name: str
    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    intermediate: int = 96
    layers: int = 2
    max_len: int = 256

    @property
    def config(self) -> dict[str, Any]:
        return {
            "architectures": [self.architecture],
            "model_type": self.architecture.removesuffix("ForCausalLM").lower(),
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": self.max_len,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "eos_token_id": EOS_TOKEN_ID,
            "bos_token_id": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            **self.extra,
        }


def _rope(kind: str, **settings: float) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, **settings}}


_LLAMA3 = _rope(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)

TINY_MODELS = {
    model.name: model
    for model in (
        TinyModel("llama", "LlamaForCausalLM", 96, 6, 2, 16, {"tie_word_embeddings": True}),
        TinyModel("llama3", "LlamaForCausalLM", 128, 4, 1, 32, _LLAMA3),
        TinyModel(
            "llama-linear", "LlamaForCausalLM", 64, 2, 2, 32,
            {"attention_bias": True, "mlp_bias": True, **_rope("linear", factor=2.0)},
        ),
        TinyModel("llama-wide", "LlamaForCausalLM", 256, 4, 2, 64, intermediate=256),
        TinyModel("mistral", "MistralForCausalLM", 64, 8, 2, 16, {"sliding_window": None}),
        TinyModel("mistral-window", "MistralForCausalLM", 64, 4, 4, 16, {"sliding_window": 64}),
        TinyModel(
            "qwen2", "Qwen2ForCausalLM", 96, 3, 1, 32,
            {"tie_word_embeddings": True, "use_sliding_window": False},
        ),
        TinyModel(
            "qwen2-yarn", "Qwen2ForCausalLM", 64, 4, 2, 16,
            {**_rope("yarn", factor=4.0, original_max_position_embeddings=64), "use_sliding_window": False},
        ),
        TinyModel("qwen3", "Qwen3ForCausalLM", 64, 4, 2, 64, {"attention_bias": False, "use_sliding_window": False}),
    )
}  # fmt: skip


def tiny_weights(model: TinyModel) -> dict[str, Floats]:
    """Weights by Hugging Face name. Each tensor has its own seed, so that none depends on the others."""
    _, architecture = from_hf_config(Fields(model.name, model.config))
    weights = {}
    for wanted in weight_names(architecture):
        seed = zlib.crc32(f"{model.name}/{wanted.canonical}".encode())
        # RandomState, because its stream never changes between NumPy versions, and Generator's may.
        noise = np.random.RandomState(seed).standard_normal(wanted.shape)
        if wanted.canonical.endswith("norm"):
            values = 1.0 + 0.1 * noise
        elif len(wanted.shape) == 1:
            values = 0.1 * noise
        elif wanted.canonical == "embed":
            values = 0.15 * noise
        else:
            values = noise / math.sqrt(wanted.shape[1])
        scale = 128 if wanted.canonical.endswith("norm") else 512  # a norm's weights lie around 1
        limit = 255 / scale
        weights[wanted.hugging_face] = (np.clip(np.round(values * scale) / scale, -limit, limit)).astype(
            np.float32
        )
    return weights


def _encoded(values: Floats, dtype: str) -> bytes:
    match dtype:
        case "F32":
            return values.tobytes()
        case "F16":
            return values.astype(np.float16).tobytes()
        case "BF16":
            return to_bf16(values).tobytes()
    raise AssertionError(dtype)


def save_safetensors(path: Path, tensors: Mapping[str, Floats], dtype: str = "F32") -> None:
    """Written by hand, because the safetensors package takes bf16 from a tensor library alone."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, values in tensors.items():
        start = len(data)
        data += _encoded(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_hf(model: TinyModel, folder: Path, dtype: str = "F32", shards: int = 1) -> Path:
    """A folder with config.json, generation_config.json, tokenizer files and weights in ``shards`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS_TOKEN_ID, 256]}))
    write_tokenizer(folder)
    weights = tiny_weights(model)
    if shards == 1:
        save_safetensors(folder / "model.safetensors", weights, dtype)
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(weights.items())[shard::shards])
        save_safetensors(folder / file, part, dtype)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder


def write_llama(
    folder: Path, *, num_heads: int = 4, num_kv_heads: int = 2, head_dim: int = 16, max_model_len: int = 256
) -> Path:
    """A Llama folder for tests that need some model, of whatever size."""
    name = f"llama-{num_heads}-{num_kv_heads}-{head_dim}"
    model = TinyModel(
        name,
        "LlamaForCausalLM",
        num_heads * head_dim,
        num_heads,
        num_kv_heads,
        head_dim,
        max_len=max_model_len,
    )
    return write_hf(model, folder)


def _byte_tokens() -> list[str]:
    """The 256 printable stand-ins of bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in, extra = dict(zip(printable, map(chr, printable), strict=True)), 256
    for byte in range(256):
        if byte not in stand_in:
            stand_in[byte] = chr(extra)
            extra += 1
    return [stand_in[byte] for byte in range(256)]


_MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("o", "n"), ("Ġ", "a"), ("e", "r"))


def vocabulary() -> list[str]:
    """Token texts by id: bytes, special tokens, merges, and unused ones up to VOCAB_SIZE."""
    tokens = [*_byte_tokens(), *_SPECIAL, *("".join(pair) for pair in _MERGES)]
    return [*tokens, *(f"<unused{i}>" for i in range(VOCAB_SIZE - len(tokens)))]


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(vocabulary())}, list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": _CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _permuted(values: Floats, heads: int) -> Floats:
    """What the converter to GGUF does to llama's query and key rows: pairs half a head apart become neighbours."""
    shape = values.shape
    halves = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(shape)


def _random_k_blocks(shape: tuple[int, ...], kind: GGMLQuantizationType, seed: int) -> NDArray[np.uint8]:
    """K-quants cannot be written by the gguf package: random blocks with small scales are as good for a test."""
    elements, nbytes = GGML_QUANT_SIZES[kind]
    state = np.random.RandomState(seed)
    blocks = state.randint(0, 256, (shape[0] * shape[1] // elements, nbytes)).astype(np.uint8)
    scale = np.full((len(blocks), 1), 2e-4 if kind.name != "Q6_K" else 2e-5, np.float16).view(np.uint8)
    if kind.name != "Q6_K":
        blocks[:, 0:2], blocks[:, 2:4] = scale, np.full((len(blocks), 1), 1.5e-3, np.float16).view(np.uint8)
    else:
        blocks[:, -2:] = scale
    return blocks.reshape(shape[0], -1)


def write_gguf(model: TinyModel, path: Path, encoding: str = "F32") -> Path:
    """All matrices in ``encoding`` (a name of GGMLQuantizationType), vectors in F32, as converters do."""
    _, a = from_hf_config(Fields(model.name, model.config))
    family = next(f for f in FAMILIES if f.name == a.family)
    arch = family.gguf_architecture or "llama"
    writer = GGUFWriter(str(path), arch)
    writer.add_block_count(a.num_layers)
    writer.add_context_length(model.max_len)
    writer.add_embedding_length(a.hidden_size)
    writer.add_feed_forward_length(a.intermediate_size)
    writer.add_head_count(a.num_heads)
    writer.add_head_count_kv(a.num_kv_heads)
    writer.add_key_length(a.head_dim)
    writer.add_value_length(a.head_dim)
    writer.add_layer_norm_rms_eps(a.rms_norm_eps)
    writer.add_rope_freq_base(a.rope_theta)
    writer.add_rope_dimension_count(a.rotary_dim)
    _write_scaling(writer, model)
    _write_vocabulary(writer)
    weights, kind = tiny_weights(model), GGMLQuantizationType[encoding]
    for wanted in weight_names(a):
        values = weights[wanted.hugging_face]
        part = wanted.canonical.rpartition(".")[2].removesuffix("_bias")
        if family.gguf_permuted and part in ("q", "k"):
            values = _permuted(values, a.num_heads if part == "q" else a.num_kv_heads)
        if values.ndim == 1 or encoding == "F32":
            writer.add_tensor(wanted.gguf, values)
        elif encoding in ("Q4_K", "Q5_K", "Q6_K"):
            blocks = _random_k_blocks(values.shape, kind, zlib.crc32(wanted.canonical.encode()))
            writer.add_tensor(wanted.gguf, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(wanted.gguf, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_scaling(writer: GGUFWriter, model: TinyModel) -> None:
    from gguf.constants import RopeScalingType

    scaling = model.extra.get("rope_scaling")
    if scaling is None:
        return
    if scaling["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(model))
        return
    writer.add_rope_scaling_type(RopeScalingType(scaling["rope_type"]))
    writer.add_rope_scaling_factor(scaling["factor"])
    if "original_max_position_embeddings" in scaling:
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def llama3_factors(model: TinyModel) -> Floats:
    """The divisors that a converter stores for llama3's scaling, computed dimension by dimension as published."""
    scaling, factors = model.extra["rope_scaling"], []
    context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    for dimension in range(0, model.head_dim, 2):
        wave = 2 * math.pi * 10000.0 ** (dimension / model.head_dim)
        if wave < context / high:
            factors.append(1.0)
        elif wave > context / low:
            factors.append(scaling["factor"])
        else:
            smooth = (context / wave - low) / (high - low)
            factors.append(1.0 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def _write_vocabulary(writer: GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    kinds = [3 if text in _SPECIAL else 5 if text.startswith("<unused") else 1 for text in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in _MERGES])
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_CHAT_TEMPLATE)
