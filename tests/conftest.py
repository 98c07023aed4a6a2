"""Fixtures of every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A shared or busy machine takes long over an example now and then; that says nothing about the code.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model's file: from OCTAVO_MODEL_FILE, or where ``make model`` keeps it. Skips where it is absent."""
    from octavo.execution.embedded import FILE_NAME, cache_folder

    path = Path(os.environ.get("OCTAVO_MODEL_FILE") or cache_folder() / FILE_NAME)
    if not path.is_file():
        pytest.skip(f"the embedded model is not at {path}; `make model` fetches it")
    return path


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the values that tests/reference/recompute.py stored."""
    return Path(__file__).parent / "reference" / "golden"
