"""What a server writes to standard error: nothing is lost, nothing floods, and all of it is JSON where asked."""

from __future__ import annotations

import concurrent.futures
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from server_process import ServerProcess, serving

COMPLETIONS = "/v1/completions"


def body(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"{number} " * 8, "max_tokens": 40, "ignore_eos": True, "seed": number, **more}


def crowd(server: ServerProcess, count: int, clients: int = 12) -> None:
    """``count`` requests, ``clients`` at a time."""
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers = pool.map(lambda number: server.post(COMPLETIONS, body(number)), range(count))
        assert {answer.status_code for answer in answers} == {200}


def test_every_line_is_an_object_and_every_event_is_in_one(model: str) -> None:
    with serving(
        model, "--num-gpu-blocks-override", "24", "--max-model-len", "200", "--thrash-preemptions", "2",
        "--log-format", "json", "--max-num-queued-reqs", "20", "--headroom-tokens", "0",
    ) as server:  # fmt: skip
        crowd(server, 130)
        assert server.post(COMPLETIONS, body(0, max_tokens=500)).status_code == 400
        server.post("/reset_prefix_cache", None)
        server.wait_until_idle()
        evicted = server.metric("evicted_blocks_total")
        preempted = server.metric("num_preemptions_total")
        assert evicted > 0
        assert preempted > 10
        # An idle engine tells what it held back, without a further request.
        server.wait_for(r'"message":"Workload: the latest 1\d\d requests had')
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.lines]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    told = [line["message"] for line in lines]
    for start in (
        "CPU KV cache size: 384 tokens", "Maximum concurrency for 200 tokens per request: 1.92x",
        "Pool: 24 blocks of 16",
        "Only this machine can connect", "Ready in ", "Evicted ", "Preempted cmpl-", "Admission paused: ",
        "Admission resumed after ", "Refused a request: This model's maximum context length is 200",
        "Prefix cache reset: ",
        "SIGTERM: no request is left to wait for", "Stopped after 130 requests and 5,200 generated tokens",
    ):  # fmt: skip
        assert any(line.startswith(start) for line in told), start
    text = "\n".join(told)
    assert sum(map(int, re.findall(r"^Evicted (\d+) cached", text, re.MULTILINE))) == evicted
    summed = sum(map(int, re.findall(r"^Preempted (\d+) more", text, re.MULTILINE)))
    assert text.count("Preempted cmpl-") + summed == preempted


def test_an_idle_server_tells_what_it_held_back(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "24", "--max-model-len", "200") as server:
        crowd(server, 40, clients=2)
        server.wait_until_idle()
        evicted = server.metric("evicted_blocks_total")
        assert evicted > 20

        def told() -> int:
            return sum(map(int, re.findall(r"Evicted (\d+) cached", server.output)))

        server.wait_for(r"Evicted \d+ cached")
        deadline = time.monotonic() + 10
        while told() < evicted and time.monotonic() < deadline:
            time.sleep(0.02)
        assert told() == evicted
        assert server.output.count("Evicted") < 10


@pytest.mark.parametrize("flags", [(), ("--disable-log-stats",)])
def test_the_workload_is_told_unless_statistics_are_off(model: str, flags: tuple[str, ...]) -> None:
    with serving(model, "--num-gpu-blocks-override", "100", *flags) as server:
        crowd(server, 105)
        assert server.stop() == 0
    found = re.findall(r"Workload: the latest 10\d requests had [5-7]\d tokens at p50", server.output)
    assert len(found) == (0 if flags else 1)


def test_refusals_do_not_flood(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "24") as server:
        for _ in range(300):
            assert server.post(COMPLETIONS, body(1, max_tokens=5000)).status_code == 400
        refused = server.metric("admission_rejections_total", reason="too_long")
        assert refused == 300

        def told() -> int:
            summed = re.findall(r"Refused (\d+) more requests", server.output)
            return server.output.count("Refused a request") + sum(map(int, summed))

        server.wait_for(r"Refused \d+ more requests")
        deadline = time.monotonic() + 5
        while told() < refused and time.monotonic() < deadline:
            time.sleep(0.02)
        assert told() == refused
        assert server.output.count("Refused a request") < 300


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--port", "99999"), "port 99999 is not in 0 to 65535 (see --port)"),
        (("--host", "256.0.0.1"), "cannot listen on host '256.0.0.1'"),
        (("--max-model-len", "100000"), "--max-model-len is 100000, but"),
        (("--max-num-batched-tokens", "5", "--no-enable-chunked-prefill"), "leave one of them out"),
        (("--record", "/no/such/folder/x"), "cannot write /no/such/folder/x"),
    ],
)
def test_a_mistake_at_start_is_one_line_or_one_object(model: str, flags: tuple[str, ...], said: str) -> None:
    def start(*more: str) -> str:
        command = [program, "serve", model, "--port", "0", *flags, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        return line

    program = str(Path(sys.executable).with_name("octavo"))
    assert said in start()
    told = json.loads(start("--log-format", "json"))
    assert told["level"] == "error"
    assert said in told["message"]
