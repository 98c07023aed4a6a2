"""``octavo lab`` from the shell: mistakes are one line, and it is there soon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

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


def test_it_ends_at_once_and_without_a_traceback_while_runs_are_answered() -> None:
    settings = {"share": True, "block_size": 1}  # each run takes seconds
    with running_lab() as url:
        body = json.dumps({"settings": settings}).encode()
        asked = urllib.request.Request(url + "/lab/answers", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert json.loads(answer.readline())["complete"] is False
            told = time.monotonic()
            os.kill(running_lab_pid(url), signal.SIGTERM)
            lines = [json.loads(line) for line in answer]
    assert "ending" in lines[-1]["error"]["message"] or "died" in lines[-1]["error"]["message"]
    assert time.monotonic() - told < 10


def running_lab_pid(url: str) -> int:
    port = int(url.rsplit(":", 1)[1])
    children = psutil.Process().children()
    return next(
        child.pid
        for child in children
        if any(one.laddr.port == port for one in child.net_connections() if one.status == "LISTEN")
    )
