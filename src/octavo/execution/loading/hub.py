"""Fetching a model by its hub name, where ``huggingface_hub`` is installed and the network allows."""

from __future__ import annotations

from pathlib import Path

from octavo.execution.loading.problems import model_error

_FILES = ["config.json", "generation_config.json", "tokenizer*.json", "chat_template*", "model*.safetensors*"]


def fetch(name: str) -> Path:
    """Folder of the model ``org/name``, downloaded where the hub's own cache does not have it. Raises ModelError."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise model_error(
            f"there is no file or folder {name}; to fetch it from the hub, install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except (
        Exception
    ) as error:  # the hub's client raises errors of several libraries; all mean that there is no model
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise model_error(
            f"{name} is neither a file nor a folder here, and the hub did not give it: {reason[0]}; "
            "download the model elsewhere and name its folder"
        ) from error
