"""Sizes of models that a simulation can name: published ones by name, or those of a ``config.json``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from octavo.core.errors import ConfigError
from octavo.core.model_spec import DTYPE_BYTES, ModelSpec
from octavo.simulation.cost_model import body_parameters
from octavo.simulation.orca import OPT_13B


def _spec(name: str, sizes: str, parameters: int) -> ModelSpec:
    """``sizes``: layers, heads, key-value heads, head size, hidden, intermediate, vocabulary, context."""
    layers, heads, kv_heads, head_dim, hidden, intermediate, vocab, context = map(int, sizes.split())
    return ModelSpec(
        name=name,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocab_size=vocab,
        max_model_len=context,
        num_parameters=parameters,
    )


KNOWN = {
    spec.name: spec
    for spec in (
        _spec("smollm2-135m", "30 9 3 64 576 1536 49152 8192", 134_515_008),
        _spec("smollm2-360m", "32 15 5 64 960 2560 49152 8192", 361_821_120),
        _spec("smollm2-1.7b", "24 32 32 64 2048 8192 49152 8192", 1_711_376_384),
        _spec("llama-2-7b", "32 32 32 128 4096 11008 32000 4096", 6_738_415_616),
        _spec("llama-2-13b", "40 40 40 128 5120 13824 32000 4096", 13_015_864_320),
        _spec("llama-3.2-1b", "16 32 8 64 2048 8192 128256 131072", 1_235_814_400),
        _spec("llama-3.1-8b", "32 32 8 128 4096 14336 128256 131072", 8_030_261_248),
        _spec("llama-3.1-70b", "80 64 8 128 8192 28672 128256 131072", 70_553_706_496),
        _spec("mistral-7b-v0.3", "32 32 8 128 4096 14336 32768 32768", 7_248_023_552),
        _spec("qwen2.5-0.5b", "24 14 2 64 896 4864 151936 32768", 494_032_768),
        _spec("qwen2.5-7b", "28 28 4 128 3584 18944 152064 32768", 7_615_616_512),
        _spec("qwen3-8b", "36 32 8 128 4096 12288 151936 40960", 8_190_735_360),
        replace(OPT_13B, name="opt-13b"),
    )
}
"""From the ``config.json`` that each model was published with."""


def model_spec(name: str) -> ModelSpec:
    """A known model by name, or the sizes in a ``config.json`` (or in a folder with one). Raises ConfigError."""
    known = KNOWN.get(name.lower())
    if known is not None:
        return known
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"model {name!r} is neither a config.json, nor a folder with one, nor one of {', '.join(KNOWN)}",
            param="--model-spec",
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _complain(path, f"it cannot be read as JSON ({error})")
    if not isinstance(fields, dict):
        _complain(path, "it is not a JSON object")
    return _from_config(path, fields)


def _complain(path: Path, what: str) -> NoReturn:
    raise ConfigError(f"{path}: {what}", param="--model-spec")


def _from_config(path: Path, fields: dict[str, Any]) -> ModelSpec:
    def size(name: str) -> int:
        return _size(path, fields, name)

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    return ModelSpec(
        name=path.resolve().parent.name,
        num_layers=size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=heads if fields.get("num_key_value_heads") is None else size("num_key_value_heads"),
        head_dim=hidden // heads if fields.get("head_dim") is None else size("head_dim"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        vocab_size=size("vocab_size"),
        max_model_len=size("max_position_embeddings"),
    )


def _size(path: Path, fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 1:
        _complain(path, f"{name} is {value!r}; it must be a whole number of at least 1")
    return value


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of the weights; where nobody counted the parameters, embedding and head are taken to be two matrices."""
    counted = spec.num_parameters or body_parameters(spec) + 2 * spec.vocab_size * spec.hidden_size
    return counted * DTYPE_BYTES[spec.weight_dtype]
