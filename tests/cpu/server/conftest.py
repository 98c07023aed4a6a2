"""One model and one server for the tests that change nothing about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server_process import ServerProcess, serving, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def _shared(model: str) -> Iterator[ServerProcess]:
    with serving(
        model, "--num-gpu-blocks-override", "400", "--served-model-name", "tiny", "--max-body-bytes", "100K"
    ) as server:
        yield server


@pytest.fixture
def server(_shared: ServerProcess) -> Iterator[ServerProcess]:
    """The shared one; every test must leave it idle."""
    yield _shared
    _shared.wait_until_idle()
