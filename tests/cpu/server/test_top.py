"""``octavo top`` against a real server, and the state that it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from server_process import ServerProcess, serving

OCTAVO = str(Path(sys.executable).with_name("octavo"))


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [OCTAVO, "top", "--once", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_state_counts_every_block(server: ServerProcess) -> None:
    server.post("/reset_prefix_cache", None)
    body = {
        "prompt": list(range(97, 123)) * 3,
        "max_tokens": 1500,
        "ignore_eos": True,
        "n": 2,
        "stream": True,
    }
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: a generator that is dropped closes the connection
        assert "text" in next(lines)
        state = server.http.get("/state").json()
    cells = state["map"]["cells"]
    assert state["map"]["blocks_per_cell"] == 1
    assert len(cells) == state["pool"]["total"] == 400
    assert cells.count("L") + cells.count("S") == state["pool"]["live"] > 0
    assert cells.count("C") == state["pool"]["cached"]
    assert cells.count("F") == state["pool"]["free"]
    assert [request["prompt_tokens"] for request in state["running"]] == [78, 78]
    assert sum(request["blocks"] for request in state["running"]) >= state["pool"]["live"]
    assert state["totals"]["generation_tokens"] > 0


def test_top_shows_it(server: ServerProcess) -> None:
    shown = top(server.url)
    assert shown.returncode == 0, shown.stderr
    assert "400 blocks of 16 tokens, paged" in shown.stdout
    assert "running 0 of 128   waiting 0" in shown.stdout
    assert shown.stdout.count("■") == 400 + 4


def test_no_server_is_one_line() -> None:
    shown = top("http://127.0.0.1:9")
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1
    assert "no Octavo server at http://127.0.0.1:9" in shown.stderr


def test_a_server_with_a_key(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    with serving(model, "--num-gpu-blocks-override", "50", "--api-key", "sesame") as locked:
        refused = top(locked.url)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert line.endswith("answers 401 Unauthorized; give it a key with --api-key")
        wrong = top(locked.url, "--api-key", "other")
        assert wrong.returncode == 2
        assert "the key is not one of the server's" in wrong.stderr
        shown = top(locked.url, "--api-key", "sesame")
        assert shown.returncode == 0, shown.stderr
        assert "50 blocks of 16 tokens" in shown.stdout
        monkeypatch.setenv("OCTAVO_API_KEY", "sesame")
        assert top(locked.url).returncode == 0
        assert "sesame" not in locked.output
