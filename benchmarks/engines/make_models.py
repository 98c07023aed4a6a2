#!/usr/bin/env python3
"""The peers' models, from the embedded GGUF: run in a venv with torch, transformers and gguf.

    python benchmarks/engines/make_models.py OUT                       OUT/smollm2: a Hugging Face folder in bf16
    python benchmarks/engines/make_models.py OUT --random-1b           OUT/random-1b: a 1B-class shape, random weights
    python benchmarks/engines/make_models.py OUT --gguf                OUT/smollm2-bf16.gguf, for llama.cpp

OpenVINO's own form comes from its tool, in its venv:
``optimum-cli export openvino -m OUT/smollm2 --task text-generation-with-past --weight-format fp16 OUT/smollm2-ov``
"""

from __future__ import annotations

import argparse
from pathlib import Path

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


def bf16_gguf(source: Path, out: Path) -> None:
    """Every tensor of more than one dimension in bf16; everything else as it is."""
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
        writer.add_key_value(field.name, field.contents(), kind, sub_kind)
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type)
        if data.ndim > 1:
            packed = gguf.quantize(data, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, data.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    if given.random_1b:
        random_1b(given.source, given.out / "random-1b")
    elif given.gguf:
        bf16_gguf(given.source, given.out / "smollm2-bf16.gguf")
    else:
        folder(given.source, given.out / "smollm2")


if __name__ == "__main__":
    main()
