#!/usr/bin/env python3
"""The peers' models, from the embedded GGUF: run in a venv with torch, transformers, accelerate and gguf.

    python benchmarks/engines/make_models.py OUT                       OUT/smollm2: a Hugging Face folder in bf16
    python benchmarks/engines/make_models.py OUT --random-1b           OUT/random-1b: a 1B-class shape, random weights
    python benchmarks/engines/make_models.py OUT --gguf                OUT/smollm2-bf16.gguf, for llama.cpp
    python benchmarks/engines/make_models.py OUT --random-1b --gguf    OUT/random-1b.gguf, from that folder

OpenVINO's own form comes from its tool, in its venv:
``optimum-cli export openvino -m OUT/smollm2 --task text-generation-with-past --weight-format fp16 OUT/smollm2-ov``
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

DEFAULT = Path("~/.cache/octavo/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()


def folder(source: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    config = read.config
    if hasattr(config, "quantization_config"):  # it remembers the file's type and would refuse to be saved
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(out)


def random_1b(source: Path, out: Path) -> None:
    """Llama 3.2 1B's sizes with SmolLM2's vocabulary and tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def writer_like(source: Path, out: Path, instead: dict[str, int]) -> Any:
    """A GGUF writer with the source's metadata (sizes, tokenizer, chat template), but these integers instead."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for field in reader.fields.values():
        skipped = ("general.architecture", "general.file_type", "general.quantization_version")
        if field.name.startswith("GGUF.") or field.name in skipped:
            continue
        kind = field.types[0]
        sub_kind = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, instead.get(field.name, field.contents()), kind, sub_kind)
    return writer


def add_tensor(writer: Any, name: str, data: np.ndarray[Any, Any]) -> None:
    """In bf16 if it has more than one dimension, else in f32."""
    import gguf

    if data.ndim > 1:
        packed = gguf.quantize(data, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, data.astype(np.float32))


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bf16_gguf(source: Path, out: Path) -> None:
    import gguf

    writer = writer_like(source, out, {})
    for tensor in gguf.GGUFReader(source).tensors:
        add_tensor(writer, tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    finish(writer)


def gguf_name(name: str) -> str:
    """A Llama tensor's name in GGUF, from its name in a Hugging Face folder."""
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for old, new in parts.items():
        name = name.replace(old, new)
    return name


def folder_gguf(source: Path, folder: Path, out: Path) -> None:
    """The random Llama of ``folder``, with the tokenizer of ``source``."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    writer = writer_like(source, out, {f"llama.{name}": size for name, size in sizes.items()})
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        data = parameter.detach().numpy()
        for projection, count in heads.items():
            if (
                projection in name
            ):  # llama.cpp turns neighbouring dimensions, transformers the two halves of a head
                halves = data.reshape(count, 2, config.head_dim // 2, config.hidden_size)
                data = halves.swapaxes(1, 2).reshape(data.shape)
        add_tensor(writer, gguf_name(name), np.ascontiguousarray(data))
    finish(writer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", type=Path, default=DEFAULT, help="the embedded GGUF file")
    parser.add_argument("--random-1b", action="store_true")
    parser.add_argument("--gguf", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.random_1b and given.gguf:
        folder_gguf(given.source, given.out / "random-1b", given.out / "random-1b.gguf")
    elif given.random_1b:
        random_1b(given.source, given.out / "random-1b")
    elif given.gguf:
        bf16_gguf(given.source, given.out / "smollm2-bf16.gguf")
    else:
        folder(given.source, given.out / "smollm2")


if __name__ == "__main__":
    main()
