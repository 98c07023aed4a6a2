"""Published sizes add up to the published parameters; a config.json is read or refused by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.simulation.cost_model import body_parameters
from octavo.simulation.model_specs import KNOWN, model_spec, weight_bytes


@pytest.mark.parametrize("name", KNOWN)
def test_sizes_add_up(name: str) -> None:
    """Layers with an embedding, tied to the head or not, are all but norms and biases."""
    spec = model_spec(name)
    table = spec.vocab_size * spec.hidden_size
    nearest = min(abs(body_parameters(spec) + n * table - spec.num_parameters) for n in (1, 2))
    assert nearest < 0.002 * spec.num_parameters
    assert weight_bytes(spec) == 2 * spec.num_parameters


def test_bytes_a_token() -> None:
    assert model_spec("OPT-13B").kv_bytes_per_token == 819_200
    assert model_spec("qwen3-8b").kv_bytes_per_token == 147_456
    assert model_spec("llama-3.1-8b").kv_bytes_per_token == 131_072


CONFIG: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128,
    "vocab_size": 100, "max_position_embeddings": 1024,
}  # fmt: skip


def test_a_config_file(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_key_value_heads": 2, "head_dim": 32}))
    spec = model_spec(str(folder))
    assert (spec.name, spec.num_kv_heads, spec.head_dim, spec.max_model_len) == ("mine", 2, 32, 1024)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    spec = model_spec(str(folder / "config.json"))
    assert (spec.num_kv_heads, spec.head_dim) == (4, 16)
    assert weight_bytes(spec) == 2 * (body_parameters(spec) + 2 * 6_400)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ("{}", "num_attention_heads"),
        (json.dumps({**CONFIG, "vocab_size": 0}), "vocab_size"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=expected) as error:
        model_spec(str(tmp_path))
    assert error.value.param == "--model-spec"
    with pytest.raises(ConfigError, match="nothing-of-the-kind"):
        model_spec("nothing-of-the-kind")
