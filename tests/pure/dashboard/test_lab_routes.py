"""The lab over HTTP: typed mistakes with field and bound, runs, recordings, the walk; and what `octavo lab` loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lab_recordings import write_recording
from octavo.core.errors import ConfigError
from octavo.dashboard import lab_routes
from octavo.dashboard.lab_app import build_lab_app
from octavo.dashboard.lab_routes import Lab
from octavo.dashboard.walk import stops


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(build_lab_app(Lab())) as client:
        yield client


def test_the_page_and_its_facts(client: TestClient) -> None:
    assert client.get("/").status_code == 200
    assert client.get("/page/config.json").json()["parts"] == ["lab", "walk"]
    told = client.get("/lab/settings").json()
    assert told["steps"] == 3_000 and told["recording"] is None
    assert client.get("/walk/stops").json()["stops"][0]["title"] == stops()["stops"][0]["title"]


def test_answers_come_line_by_line(client: TestClient) -> None:
    answer = client.post("/lab/answers", json={"settings": {"max_tokens": "16384"}, "page": "a"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    found = {line["policy"]: line for line in lines if line["complete"]}
    assert found["reserved"]["tokens_per_step"] == 12.0
    assert found["paged"]["tokens_per_step"] == pytest.approx(95.4, rel=0.025)


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("/lab/answers", {"settings": {"max_tokens": 99_999}}, 400, "max_tokens", "from 1 to 16384"),
        ("/lab/sessions", {"settings": {"block_size": 5}}, 400, "block_size", "256"),
        ("/lab/sessions", {"settings": 5}, 400, "settings", "JSON object"),
        ("/lab/sessions", {"recording": "../../etc/passwd"}, 404, "recording", "send it again"),
        ("/lab/sessions", [1], 400, None, "JSON object"),
    ],
)
def test_mistakes_are_typed(
    client: TestClient, path: str, body: object, status: int, param: str | None, words: str
) -> None:
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param)
    assert words in error["message"]


def test_a_body_that_is_no_json_or_too_long(client: TestClient) -> None:
    assert client.post("/lab/answers", content=b"{").status_code == 400
    assert client.post("/lab/answers", content=b"[" * 60_000).status_code == 400
    assert client.post("/lab/answers", content=b" " * 70_000).status_code == 413


def test_a_run_is_opened_watched_and_closed(client: TestClient) -> None:
    opened = client.post("/lab/sessions", json={"settings": {}}).json()
    path = f"/lab/sessions/{opened['session']}"
    seen = client.get(f"{path}/frames?steps=20").json()
    assert seen["step"] == 20
    assert [side["frame"]["kind"] for side in seen["sides"]] == ["delta", "delta"]
    assert client.get(f"{path}/frames?steps=0&whole=1").json()["sides"][0]["frame"]["kind"] == "snapshot"
    wrong = {"steps=501": "0 to 500", "steps=-1": "0 to 500", "steps=x": "0 to 500", "whole=2": "0 to 1"}
    for query, bound in wrong.items():
        answer = client.get(f"{path}/frames?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.split("=")[0])
        assert bound in answer.json()["error"]["message"]
    assert client.delete(path).status_code == 200
    assert client.get(f"{path}/frames").status_code == 404


def test_a_recording_is_sent_and_opened(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl.gz"
    steps = write_recording(path)
    name = client.post("/lab/recordings", content=path.read_bytes()).json()["recording"]
    opened = client.post("/lab/sessions", json={"recording": name}).json()
    assert opened["sides"][0]["about"]["model"].startswith("<img")
    assert client.get(f"/lab/sessions/{opened['session']}/frames?steps=500").json()["step"] == steps
    wrong = client.post("/lab/recordings", content=b"not a recording")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "recording")
    assert str(tmp_path) not in wrong.text and "/tmp" not in wrong.text
    monkeypatch.setattr(lab_routes, "RECORDING_BYTES_MAX", 100)
    assert client.post("/lab/recordings", content=path.read_bytes()).status_code == 413
    for _ in range(lab_routes.RECORDINGS_MAX):
        monkeypatch.setattr(lab_routes, "RECORDING_BYTES_MAX", 1 << 20)
        client.post("/lab/recordings", content=path.read_bytes())
    assert client.post("/lab/sessions", json={"recording": name}).status_code == 404, "the oldest went"


def test_the_recording_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(ConfigError):
        Lab(path)
    write_recording(path)
    with TestClient(build_lab_app(Lab(path))) as client:
        assert client.get("/lab/settings").json()["recording"] == "given"
        assert client.post("/lab/sessions", json={"recording": "given"}).status_code == 200


def test_the_lab_loads_neither_model_nor_native_part() -> None:
    """In a process of its own: everything that `octavo lab` and its workers import before they answer."""
    program = """
import sys
import octavo.cli.lab, octavo.cli.main, octavo.server.listening, octavo.dashboard.lab_app, octavo.dashboard.lab_worker
from octavo.dashboard.lab_routes import Lab
from octavo.dashboard.walk import stops
octavo.dashboard.lab_app.build_lab_app(Lab()); stops()
print(" ".join(sorted(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    heavy = (
        "octavo._native",
        "octavo.execution",
        "octavo.llm",
        "tokenizers",
        "gguf",
        "safetensors",
        "torch",
        "llguidance",
    )
    assert [name for name in heavy if name in loaded] == []
    assert "numpy" in loaded
