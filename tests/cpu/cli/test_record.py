"""``octavo generate --record``: the file replays without a difference, and is a trace for the simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tiny_models
from octavo.simulation.replay import recorded_requests, replay_recording

OCTAVO = Path(sys.executable).with_name("octavo")


def test_a_recorded_generation_replays(tmp_path: Path) -> None:
    model = tiny_models.write_llama(tmp_path / "model", max_model_len=256)
    path = tmp_path / "run.jsonl.gz"
    engine = ["--model", str(model), "--num-gpu-blocks-override", "9", "--block-size", "8", "--threads", "1"]
    command = [
        str(OCTAVO),
        "generate",
        *engine,
        "--raw",
        "--ignore-eos",
        "--max-tokens",
        "30",
        "--record",
        str(path),
    ]
    done = subprocess.run(
        [*command, "the first", "another one", "and a third"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    steps, differences = replay_recording(path)
    assert differences == []
    assert steps >= 30
    assert "preempted" in done.stderr.lower(), "the pool is too small for all three"
    assert [one.output_tokens for one in recorded_requests(path)] == [30, 30, 30]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "run.jsonl"
    done = subprocess.run(
        [str(OCTAVO), "generate", "hello", "--record", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert "--record" in done.stderr
