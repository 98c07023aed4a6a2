"""``octavo profile``: a file that the simulator prices steps with, and mistakes that are named before minutes pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tiny_models
from octavo.simulation.cost_model import FittedProfile
from octavo.simulation.profile_files import load_profile

OCTAVO = Path(sys.executable).with_name("octavo")


def profile(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(OCTAVO), "profile", "--threads", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_a_measured_profile_is_one_for_the_simulator(tmp_path: Path) -> None:
    model = tiny_models.write_llama(tmp_path / "model", max_model_len=256)
    pool = ["--num-gpu-blocks-override", "300", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    done = profile(
        "--model", str(model), *pool, "--name", "Here, now", "--seconds", "0.1", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "profiles" / "here-now.json"
    found = load_profile(str(path))
    assert isinstance(found, FittedProfile)
    assert found.name == "Here, now"
    for named in ("1 threads", "bf16 weights", "model,", "blocks of 16", "64 tokens a step"):
        assert named in found.source
    facts = json.loads(done.stdout)
    assert set(facts["errors"]) == {"prefill", "long prompt", "join", "decode"}
    cells = {tuple(one["cell"]): one for one in facts["measurements"]}
    assert cells["prefill", "64"]["tokens"] == 64
    assert cells["prefill", "64"]["sampled"] == 1
    assert cells["decode", "16", "8"]["sequences"] == cells["decode", "16", "8"]["sampled"] == 8
    assert cells["decode", "96", "4"]["kv_tokens"] > 4 * 96
    assert all(one["seconds"] > 0 for one in facts["measurements"])

    simulated = subprocess.run(
        [str(OCTAVO), "simulate", "--profile", str(path), "--num-requests", "5", *pool[:2]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert simulated.returncode == 0, simulated.stderr


def test_mistakes_are_named_before_anything_is_measured(tmp_path: Path) -> None:
    model = str(tiny_models.write_llama(tmp_path / "model", max_model_len=256))
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = profile("--model", model, "--output", str(blocked / "p.json"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write" in done.stderr and "--output" in done.stderr
    done = profile("--model", model, "--seconds", "-1", cwd=tmp_path)
    assert done.returncode == 2 and "--seconds is -1" in done.stderr
    done = profile("--model", model, "--num-gpu-blocks-override", "1", "--max-num-seqs", "1", cwd=tmp_path)
    assert done.returncode == 2 and "too small to measure in" in done.stderr
