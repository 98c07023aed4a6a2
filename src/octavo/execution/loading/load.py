"""``load_model``: a folder, a GGUF file or a hub name -> ``LoadedModel``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.execution.loading.architecture import Architecture
from octavo.execution.loading.encodings import Target
from octavo.execution.loading.families import from_gguf, from_hf_config
from octavo.execution.loading.fields import Fields
from octavo.execution.loading.gguf_file import read_gguf
from octavo.execution.loading.hub import fetch
from octavo.execution.loading.names import LINEAR_PARTS
from octavo.execution.loading.problems import model_error
from octavo.execution.loading.safetensors_file import read_folder, read_json
from octavo.execution.loading.weights import KEPT_BLOCKS, Quantization, Weights, choose, unpermute
from octavo.text.gguf_tokenizer import gguf_eos_token_ids

WeightDtype = Literal["auto", "f32", "bf16"]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model's sizes and weights; the weights are still in their file."""

    spec: ModelSpec
    architecture: Architecture
    weights: Weights
    eos_token_ids: tuple[int, ...]
    """The model's own end tokens, from generation_config.json, config.json or GGUF metadata."""
    path: Path
    """The folder or the GGUF file, where the tokenizer is too."""
    notes: tuple[str, ...] = ()
    """Sentences that a user should see before relying on the model."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """A GGUF file's metadata, so that its tokenizer need not read the header again; empty for a folder."""


def load_model(
    source: str | Path, dtype: WeightDtype = "auto", quantization: Quantization | None = None
) -> LoadedModel:
    """``source`` is a Hugging Face folder, a GGUF file or a hub name. ``auto`` is bf16, the faster one.

    Reads headers and settings and checks every tensor's name, shape and place; the weights' bytes are read when
    ``LoadedModel.weights`` is asked for them. Raises ModelError, naming file, tensor and number, for a model that is
    missing, damaged or not supported, and ConfigError for another dtype or quantization.
    """
    if dtype not in ("auto", "f32", "bf16"):
        raise ConfigError(f"dtype {dtype!r} is not supported; choose auto, bf16 or f32", param="--dtype")
    if quantization not in (None, "int8", "gguf"):
        raise ConfigError(
            f"quantization {quantization!r} is not supported; choose int8 or gguf", param="--quantization"
        )
    target: Target = "bf16" if dtype == "auto" else dtype
    path = _locate(source)
    if not path.is_dir():
        return _load_gguf(path, target, quantization)
    if quantization == "gguf":
        raise ConfigError(
            f"{path} is no GGUF file, whose blocks could be kept; choose int8, or name a GGUF file",
            param="--quantization",
        )
    return _load_folder(path, target, quantization)


def _locate(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if isinstance(source, str) and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(?<!\.gguf)", source):
        return fetch(source)
    raise model_error(
        f"{path} does not exist; give a Hugging Face folder, a GGUF file or a hub name org/name"
    )


def _load_folder(folder: Path, dtype: Target, quantization: Quantization | None) -> LoadedModel:
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            files = sorted(folder.glob("*.gguf"))
            hint = f"; to use {files[0].name}, name the file itself" if files else ""
            raise model_error(f"{folder} has no {needed}{hint}")
    config = Fields(str(folder / "config.json"), read_json(folder / "config.json"))
    _, architecture = from_hf_config(config)
    tensors = choose(folder, architecture, read_folder(folder), gguf=False)
    weights = Weights(tensors, dtype, quantization=quantization)
    return _loaded(folder.resolve().name, folder, architecture, weights, _hf_eos(folder, config))


def _hf_eos(folder: Path, config: Fields) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    if path.is_file():
        tokens = Fields(str(path), read_json(path)).token_ids("eos_token_id")
        if tokens:
            return tokens
    return config.token_ids("eos_token_id")


def _load_gguf(path: Path, dtype: Target, quantization: Quantization | None) -> LoadedModel:
    file = read_gguf(path)
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise model_error(f"{path}: tensor token_embd.weight is missing")
    family, architecture = from_gguf(str(path), file.metadata, file.tensors, embed.shape[0])
    tensors = choose(path, architecture, file.tensors, gguf=True)
    if family.gguf_permuted:
        tensors = unpermute(architecture, tensors)
    factors = None
    if (stored := file.tensors.get("rope_freqs.weight")) is not None:
        if stored.shape != (architecture.rotary_dim // 2,):
            raise model_error(
                f"{path}: tensor rope_freqs.weight has shape {list(stored.shape)}, "
                f"{architecture.rotary_dim} rotary dimensions need {[architecture.rotary_dim // 2]}"
            )
        factors = Weights({"rope": stored}, "f32").vector("rope")
    eos = gguf_eos_token_ids(file.metadata)
    weights = Weights(tensors, dtype, factors, quantization)
    loaded = _loaded(path.stem, path, architecture, weights, eos)
    notes = (*loaded.notes, *_not_kept(path, architecture, weights))
    return replace(loaded, metadata=file.metadata, notes=notes)


def _not_kept(path: Path, a: Architecture, weights: Weights) -> list[str]:
    """A sentence where linear layers of a GGUF file cannot stay in its blocks."""
    if weights.quantization != "gguf":
        return []
    names = [
        tuple(f"{layer}.{part}" for part in parts) for layer in range(a.num_layers) for parts in LINEAR_PARTS
    ]
    layers = [weights.matrix(*parts) for parts in (*names, ("embed" if a.tied else "logits",))]
    others = [matrix for matrix in layers if matrix.format == matrix.dtype]
    stored = sorted({tensor.encoding.name for matrix in others for tensor in matrix.tensors})
    if not others:
        return []
    return [
        f"{path.name}: {len(others)} of {len(layers)} linear layers are stored as {', '.join(stored)} and kept as "
        f"{weights.dtype}: --quantization gguf keeps layers that are {', '.join(KEPT_BLOCKS)} throughout"
    ]


def _loaded(
    name: str, path: Path, a: Architecture, weights: Weights, eos_token_ids: tuple[int, ...]
) -> LoadedModel:
    max_model_len, notes = a.max_position_embeddings, tuple[str, ...]()
    if a.sliding_window is not None and a.sliding_window < max_model_len:
        # Inside the window, sliding attention is full attention; beyond it Octavo would compute something else.
        notes = (
            f"{name} attends to the last {a.sliding_window} tokens alone, which Octavo does not do: its context is cut "
            f"from {max_model_len} to {a.sliding_window} tokens, where the two agree",
        )
        max_model_len = a.sliding_window
    spec = ModelSpec(
        name=name,
        num_layers=a.num_layers,
        num_heads=a.num_heads,
        num_kv_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        hidden_size=a.hidden_size,
        intermediate_size=a.intermediate_size,
        vocab_size=a.vocab_size,
        max_model_len=max_model_len,
        kv_dtype=weights.dtype,
        weight_dtype=weights.dtype,
        num_parameters=weights.num_parameters,
    )
    return LoadedModel(spec, a, weights, eos_token_ids, path, notes)
