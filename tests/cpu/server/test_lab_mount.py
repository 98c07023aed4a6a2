"""The lab and the walk on a server that serves: behind its key, in processes of their own, gone when it ends."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from server_process import serving, write_model


def workers(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "lab_worker" in " ".join(child.cmdline())]


def test_the_lab_runs_beside_the_engine(tmp_path: Path) -> None:
    key = {"authorization": "Bearer secret"}
    with serving(write_model(tmp_path), "--num-gpu-blocks-override", "64", "--api-key", "secret") as server:
        pid = server.process.pid
        assert server.http.get("/page/config.json").json()["parts"] == ["live", "lab", "walk"]
        assert server.http.get("/lab/settings").status_code == 401
        assert server.http.get("/lab/settings", headers=key).json()["steps"] == 3_000
        assert server.http.get("/walk/stops", headers=key).json()["stops"]
        assert workers(pid) == [], "nothing was asked that needs a process"
        answer = server.http.post("/lab/answers", json={"settings": {"max_tokens": 16_384}}, headers=key)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        found = {line["policy"]: line["tokens_per_step"] for line in lines if line["complete"]}
        assert found["reserved"] == 12.0
        assert found["paged"] == pytest.approx(95.4, rel=0.025)
        wrong = server.http.post("/lab/answers", json={"settings": {"seed": -1}}, headers=key)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "seed")
        assert server.http.get("/lab/nothing", headers=key).status_code == 404
        started = workers(pid)
        assert started and all(process.nice() >= 10 for process in started)
        body = {"prompt": "hello", "max_tokens": 3}
        assert server.http.post("/v1/completions", json=body, headers=key).status_code == 200
    gone, alive = psutil.wait_procs(started, timeout=10)
    assert len(gone) == len(started) and alive == []
