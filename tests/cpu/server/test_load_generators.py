"""The load generators, unmodified, where they are installed: on the PATH, or where OCTAVO_VLLM and the others say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server_process import ServerProcess

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "load_generators.py"
TOOLS = ("vllm", "guidellm", "aiperf")


def program(tool: str) -> str:
    return os.environ.get(f"OCTAVO_{tool.upper()}", tool)


@pytest.mark.parametrize("tool", TOOLS)
def test_it_runs_and_gets_every_answer(server: ServerProcess, model: str, tool: str) -> None:
    if shutil.which(program(tool).split()[0]) is None:
        pytest.skip(f"{tool} is not installed")
    others = [argument for other in TOOLS if other != tool for argument in (f"--{other}", "not-asked-for")]
    command = [sys.executable, str(SCRIPT), "--url", server.url, "--model", "tiny", "--tokenizer", model]
    done = subprocess.run([*command, *others], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"$ {tool} " in done.stdout
    assert "1280 asked for" in done.stdout


def test_a_tool_that_fails_or_is_absent_is_said(server: ServerProcess, model: str, tmp_path: Path) -> None:
    """A tool that asks for nothing gets too little, whatever its exit code."""
    idle = tmp_path / "idle"
    idle.write_text("#!/bin/sh\necho 1.0\n")
    idle.chmod(0o755)
    command = [sys.executable, str(SCRIPT), "--url", server.url, "--model", "tiny", "--tokenizer", model]
    flags = ["--vllm", "not-there", "--guidellm", str(idle), "--aiperf", "not-there"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "vllm: not installed, left out" in done.stdout
    assert "exit code 0, 0 tokens generated, 1280 asked for" in done.stdout
    assert done.stdout.splitlines()[-1] == "failed: guidellm, guidellm"
