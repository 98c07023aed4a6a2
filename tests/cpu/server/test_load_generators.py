"""The load generators, unmodified, where they are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server_process import ServerProcess

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "load_generators.py"
TOOLS = ("vllm", "guidellm", "aiperf")


@pytest.mark.skipif(not any(map(shutil.which, TOOLS)), reason=f"none of {', '.join(TOOLS)} is installed")
def test_they_run_and_get_every_answer(server: ServerProcess, model: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--url", server.url, "--model", "tiny", "--tokenizer", model],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.metric("generation_tokens_total") > 0
