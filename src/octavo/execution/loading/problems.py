"""The one kind of error that loading raises."""

from __future__ import annotations

from octavo.core.errors import ModelError


def model_error(message: str) -> ModelError:
    """What is wrong with a model; another ``model`` is always what would change it."""
    return ModelError(message, param="model")
