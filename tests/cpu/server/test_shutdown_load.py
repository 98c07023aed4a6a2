"""Signals to a server whose pool is full, whose queue is long, and whose clients are in the middle of their streams."""

from __future__ import annotations

import concurrent.futures
import re
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from server_process import ServerProcess, events, serving

AUDITED = Path(__file__).with_name("audited_server.py")
CLIENTS = 40
BODY = {"prompt": "a b c d", "max_tokens": 150, "ignore_eos": True}


def ask(server: ServerProcess, number: int) -> str:
    """How one request ended: a finish reason, a status, or that there was no connection."""
    streaming = number % 2 == 0
    try:
        answer = httpx.post(
            f"{server.url}/v1/completions", json={**BODY, "seed": number, "stream": streaming}, timeout=30
        )
    except httpx.TransportError:
        # It came when nobody listened any more, or was closed before its request was read.
        return "no connection"
    if answer.status_code != 200:
        assert "retry-after" in answer.headers
        return str(answer.status_code)
    last = events(answer.text)[-1] if streaming else answer.json()
    return str(last["choices"][0]["finish_reason"])


@pytest.mark.parametrize("grace", ["0.3", "20"])
def test_a_crowd_at_sigterm(model: str, grace: str) -> None:
    """Everyone learns how their request ended; what is left is nothing."""
    with serving(
        model, "--num-gpu-blocks-override", "30", "--max-model-len", "200", "--shutdown-timeout", grace,
        "--disable-log-stats", script=AUDITED,
    ) as server, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:  # fmt: skip
        asked = [pool.submit(ask, server, number) for number in range(CLIENTS)]
        while server.metric("generation_tokens_total") < 60:
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        ends = Counter(one.result(40) for one in asked)
        assert server.process.wait(20) == 0
    assert "audit clean" in server.output
    assert "Traceback" not in server.output
    assert set(ends) <= {"length", "abort", "503", "no connection"}
    if grace == "20":
        assert ends["abort"] == 0
    (stopped,) = re.findall(r"Stopped after (\d+) requests?", server.output)
    assert int(stopped) == ends["length"] + ends["abort"], "whose request was taken is told how it ended"


def test_a_crowd_at_a_second_sigterm(model: str) -> None:
    with (
        serving(model, "--num-gpu-blocks-override", "30", "--max-model-len", "200") as server,
        concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool,
    ):
        asked = [pool.submit(ask, server, number) for number in range(CLIENTS)]
        while server.metric("generation_tokens_total") < 60:
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("SIGTERM: .* may end within 30 s")
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 3
        for one in asked:  # cut off or answered, but not left waiting
            cut = one.exception(10)
            assert cut is None or isinstance(cut, IndexError)
