"""``octavo explain-cache`` on recordings of the real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tiny_models
from octavo.cli.explain_cache import command
from octavo.core.config import CacheConfig
from octavo.core.errors import ConfigError
from octavo.telemetry.recording import Recorder, open_for_writing
from scheduler_helpers import Bench, make_request

SYSTEM = np.random.default_rng(5).integers(20, 90, 80).tolist()


def record(path: Path, stamps: list[list[int]], **settings: object) -> list[str]:
    """Requests one after another, each a stamp at token 4 of the same system prompt; returns their ids."""
    bench = Bench(200, caching=True, length=3, **settings)  # type: ignore[arg-type]
    with open_for_writing(path) as file:
        cache = CacheConfig(200, 4, enable_prefix_caching=True)
        recorder = Recorder(file, cache, bench.scheduler.config)
        for number, stamp in enumerate(stamps):
            request = make_request(f"r{number}", [*SYSTEM[:4], *stamp, *SYSTEM[4:], 91 + number], 5)
            recorder.added(request, number)
            bench.scheduler.add(request)
            for step in bench.drain():
                recorder.emit(step, number)
    return [f"r{number}" for number in range(len(stamps))]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_stamp_at_the_front_and_what_moving_it_gains(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    names = record(path, [[100, 101], [102, 103], [104, 105], [106, 107]])
    facts = json.loads(run(str(path), "--json"))
    assert facts["requests"] == 4 and facts["prompt_tokens"] == 4 * 83 and facts["block_size"] == 4
    assert facts["cached_tokens"] == {"achieved": 12, "without_evictions": 12, "by_token": 12}
    (group,) = facts["groups"]
    assert (group["prompts"], group["position"], group["differing_tokens"]) == (4, 4, 2)
    assert [one["tokens"] for one in group["examples"]] == [[100, 101], [102, 103], [104, 105]]
    assert [one["request_id"] for one in group["examples"]] == names[:3]
    assert (group["found_before"], group["found_after"], group["gain"]) == (12, 240, 228)
    text = run(str(path))
    assert "4 prompts differ from token 4 on, for 2 tokens, and are alike again for 76" in text
    assert "r1: [102 103]" in text and "(+228)" in text


def test_the_gain_is_real(tmp_path: Path) -> None:
    """The same requests with the stamp moved, through the real scheduler."""
    bench = Bench(200, caching=True, length=3)
    for number in range(4):
        bench.add(f"r{number}", [*SYSTEM, 91 + number, 100 + 2 * number, 101 + 2 * number], 5)
        bench.drain()
    assert bench.scheduler.allocator.lookups.totals.tokens_hit == 240


def test_differing_tokens_as_text(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, [[21, 22], [23, 24]])
    model = tmp_path / "model"
    tiny_models.write_llama(model)
    (group,) = json.loads(run(str(path), "--json", "--model", str(model)))["groups"]
    assert all(one["text"] for one in group["examples"])
    assert group["examples"][0]["text"] != group["examples"][1]["text"]


def test_no_near_misses(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, [[], [], []])
    output = run(str(path), "--block-size", "8")
    assert "No near misses" in output and "blocks of 8" in output


def test_a_file_that_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="no recording"):
        run(str(path))
