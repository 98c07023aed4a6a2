"""The second tier through the whole engine: a restart, other settings, damage, a recording."""

from __future__ import annotations

import gc
import json
import os
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_models
from octavo.core.errors import ConfigError
from octavo.core.sampling_params import SamplingParams
from octavo.execution.tier_file import ENTRY_BYTES
from octavo.llm.build import build_session
from octavo.llm.completions import Completion
from octavo.llm.llm import LLM
from octavo.llm.options import EngineOptions
from octavo.memory import OffloadTotals
from octavo.server.explanations import Explainer
from octavo.simulation.replay import replay_recording
from octavo.telemetry.recording import open_for_writing
from octavo.telemetry.sinks import LineSink

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPT = 100
FOUND = 96
"""Of its tokens: six full blocks."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=256)


@pytest.fixture
def options(model: Path, tmp_path: Path) -> EngineOptions:
    """A pool of 9 blocks, for one request of 8."""
    return EngineOptions(
        model=str(model),
        num_blocks=9,
        max_model_len=140,
        max_num_seqs=4,
        threads=1,
        seed=0,
        kv_offload_bytes=1 << 20,
        kv_offload_path=str(tmp_path / "tier"),
    )


def prompt(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 200, PROMPT).tolist()


def run(
    options: EngineOptions, *seeds: int, record: Any = None, park: bool = False
) -> tuple[list[Completion], OffloadTotals]:
    """These prompts, one after the other, in a process of their own, as it were. ``park``: which ends as it should."""
    session = build_session(options, record=record)
    answers = []
    for seed in seeds:
        completion = session.add(session.prepare(prompt(seed), GREEDY))
        session.run([completion])
        answers.append(completion)
    totals = session.engine.scheduler.allocator.offload.totals
    session.engine.drain()
    if park:
        session.park()
    del session
    gc.collect()  # the file is free again
    return answers, totals


def test_what_was_computed_is_found_after_a_restart(options: EngineOptions) -> None:
    (first, *_), totals = run(options, 1, 2, 3)
    assert first.cached_tokens == 0 and totals.spilled >= 6 and totals.found == 0
    (again, unknown), totals = run(options, 1, 4)
    assert again.cached_tokens == FOUND and totals.found == 6
    assert again.token_ids == first.token_ids and unknown.cached_tokens == 0


def test_the_offline_api_leaves_its_cache_behind(options: EngineOptions) -> None:
    found = []
    for close in (False, True, False):
        llm = LLM(**asdict(options))
        (output,) = llm.generate([prompt(1)], GREEDY, use_tqdm=False)
        found.append(output.num_cached_tokens)
        if close:
            llm.close()
        del llm
        gc.collect()
    assert found == [0, 0, FOUND]


def test_the_start_tells_of_the_tier(options: EngineOptions) -> None:
    def lines(options: EngineOptions) -> list[str]:
        told: list[str] = []
        build_session(options, lines=LineSink(told.append))
        gc.collect()
        return [line for line in told if line.startswith("Second tier")]

    assert lines(replace(options, kv_offload_bytes=None, kv_offload_path=None)) == []
    (line,) = lines(replace(options, kv_offload_bytes=None, kv_offload_path=None, preemption="swap"))
    assert line.startswith("Second tier: 9 blocks, ") and line.endswith(" in memory")
    run(options, 1, park=True)
    (line,) = lines(options)
    assert line.endswith("tier, 7 of them full from before")


def test_the_second_tier_is_a_hit_of_its_own_kind(options: EngineOptions) -> None:
    run(options, 1, park=True)
    session = build_session(options)
    explainer = Explainer(session.engine)
    requests = [session.prepare(prompt(1), GREEDY) for _ in range(2)]
    for request in requests:
        session.run([session.add(request)])
    told = explainer.of(requests)
    assert told[0] is not None and told[1] is not None
    assert told[0]["cached_tokens"] == told[1]["cached_tokens"] == FOUND
    assert told[0]["blocks"] == [{"first": 0, "count": 6, "found": "second_tier"}]
    assert told[1]["blocks"] == [{"first": 0, "count": 6, "found": "hit"}]


CHILD = """
import json, sys
from test_offload import EngineOptions, GREEDY, build_session, prompt
session = build_session(EngineOptions(**json.loads(sys.argv[1])))
while True:
    for seed in range(1, 7):
        session.run([session.add(session.prepare(prompt(seed), GREEDY))])
        print(seed, flush=True)
"""


def test_a_process_killed_at_work_leaves_a_tier_that_answers_alike(options: EngineOptions) -> None:
    seeds = range(1, 7)
    expected, _ = run(replace(options, kv_offload_bytes=None, kv_offload_path=None), *seeds)
    found = 0
    for attempt in range(3):
        command = [sys.executable, "-c", CHILD, json.dumps(asdict(options))]
        path = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[2])))
        environment = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            for _ in range(6 + 5 * attempt):
                assert process.stdout.readline()
            process.kill()
        answers, totals = run(options, *seeds)
        assert [one.token_ids for one in answers] == [one.token_ids for one in expected]
        assert totals.damaged <= 1
        found += totals.found
    assert found > 60


def test_a_process_that_ends_as_it_should_leaves_everything_that_it_had_cached(
    options: EngineOptions,
) -> None:
    (first,), totals = run(options, 1)
    assert totals.spilled == 0, "nothing had to be evicted"
    (again,), _ = run(options, 1, park=True)
    assert again.cached_tokens == 0
    (again,), _ = run(options, 1)
    assert again.cached_tokens == FOUND and again.token_ids == first.token_ids


@pytest.mark.parametrize("block", range(6))
def test_damage_to_the_file_costs_a_recompute_and_never_a_token(options: EngineOptions, block: int) -> None:
    (first, *_), _ = run(options, 1, 2, 3)
    path = Path(options.kv_offload_path or "")
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[4096 + block * 1000 :: 9000] ^= 255  # some bytes of every block: they are of 4 KiB and more
    damaged = data.tobytes()
    path.write_bytes(damaged)
    (again,), totals = run(options, 1)
    assert again.token_ids == first.token_ids
    assert again.cached_tokens < FOUND and totals.damaged >= 1


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"dtype": "f32"}, "--dtype"),
        ({"quantization": "int8"}, "--quantization"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
        ({"block_size": 8, "num_blocks": 18}, "--block-size"),
        ({"path": "portable"}, "--cpu-path"),
    ],
)
def test_a_file_of_other_settings_is_refused_by_the_flag(
    options: EngineOptions, changes: dict[str, Any], flag: str
) -> None:
    run(replace(options, path="avx2"), 1)
    with pytest.raises(ConfigError) as caught:
        build_session(replace(options, **{"path": "avx2", **changes}))
    assert flag in caught.value.message and caught.value.param == "--kv-offload-path"


def test_a_file_of_another_model_is_refused(options: EngineOptions, tmp_path: Path) -> None:
    """Of the same sizes, with one weight changed."""
    run(options, 1)
    other = tmp_path / "other"
    other.mkdir()
    for file in Path(options.model or "").iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            data[-7] ^= 1
        (other / file.name).write_bytes(data)
    with pytest.raises(ConfigError, match="was written for the model"):
        build_session(replace(options, model=str(other)))


def test_a_copy_of_the_model_elsewhere_is_the_same_model(options: EngineOptions, tmp_path: Path) -> None:
    run(options, 1, 2, 3)
    other = tmp_path / Path(options.model or "").name
    other.mkdir()
    for file in Path(options.model or "").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (again,), _ = run(replace(options, model=str(other)), 1)
    assert again.cached_tokens == FOUND


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"kv_offload_bytes": None}, "--kv-offload-bytes"),
        ({"kv_offload_bytes": 100}, "--kv-offload-bytes"),
        ({"kv_offload_bytes": 0}, "--kv-offload-bytes"),
        ({"allocator": "reserved"}, "--kv-offload-bytes"),
        ({"kv_offload_path": "/nowhere/at/all"}, "--kv-offload-path"),
    ],
)
def test_mistakes_name_their_flag(options: EngineOptions, changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_session(replace(options, **changes))
    assert caught.value.param == flag


def test_a_run_that_met_damage_replays(options: EngineOptions, tmp_path: Path) -> None:
    (first,), _ = run(options, 1, park=True)
    tier, path = Path(options.kv_offload_path or ""), tmp_path / "run.jsonl"
    data = tier.read_bytes()
    entry = data.index(struct.pack("<QQ", 1, 3))  # state and stamp: the third block that was spilled
    at = entry + ENTRY_BYTES + 1000
    tier.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with open_for_writing(path) as file:
        (again, _), totals = run(options, 1, 2, record=file)
    assert totals.damaged == 1 and again.token_ids == first.token_ids
    assert again.cached_tokens < FOUND, "what was told at admission was taken back"
    assert '"damaged":[' in path.read_text(encoding="utf-8")
    steps, differences = replay_recording(path)
    assert differences == [] and steps > 40


def test_a_run_that_found_blocks_of_an_earlier_one_replays(options: EngineOptions, tmp_path: Path) -> None:
    run(options, 1, 2, 3)
    path = tmp_path / "run.jsonl"
    with open_for_writing(path) as file:
        _, totals = run(options, 1, 5, 2, record=file, park=True)
    assert totals.found >= 6 and totals.spilled > 0
    steps, differences = replay_recording(path)
    assert differences == [] and steps > 60
