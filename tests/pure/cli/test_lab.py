"""``octavo lab`` from the shell: mistakes are one line, and it is there soon."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from lab_process import running_lab

OCTAVO = str(Path(sys.executable).with_name("octavo"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OCTAVO, "lab", *arguments], capture_output=True, text=True, timeout=30)


def test_a_file_that_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    missing = run("--recording", str(path))
    assert missing.returncode == 2
    assert (
        str(path) in missing.stderr and "--recording" in missing.stderr and "Traceback" not in missing.stderr
    )
    path.write_text("{}\n")
    assert "no recording" in run("--recording", str(path)).stderr


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = run("--port", str(taken.getsockname()[1]))
    assert found.returncode == 2 and "--port" in found.stderr


def test_it_answers_as_soon_as_it_says_so() -> None:
    with running_lab() as url:
        for path in ("/", "/lab/settings", "/walk/stops", "/static/lab.js"):
            with urllib.request.urlopen(url + path, timeout=20) as answer:
                assert answer.status == 200
