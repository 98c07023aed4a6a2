"""Decode steps timed whole and operator by operator; and what the command prints of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.cli.main import octavo
from octavo.core.errors import ConfigError
from octavo.llm.benching import decode_times
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from octavo.llm.session import Session
from tiny_models import TINY_MODELS, write_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(TINY_MODELS["llama-wide"], tmp_path_factory.mktemp("bench") / "m.gguf", "Q4_1")


@pytest.fixture(scope="module")
def session(model: Path) -> Session:
    return build_session(
        EngineOptions(model=str(model), quantization="gguf", num_blocks=64, max_num_seqs=8, threads=1)
    )


def test_operators_are_counted_and_judged_by_their_limits(session: Session) -> None:
    times = decode_times(session, 3, 40, 5, profile=True)
    limits = times.limits
    assert limits is not None
    assert limits.bytes_per_s > 1e8
    assert all(rate > 1e8 for rate in limits.operations_per_s.values())
    counts = {one.name: one.count for one in times.operators}
    assert counts["paged_attention"] == counts["rope"] == 2, "two layers"
    assert counts["rms_norm"] == 5
    linear = [one for one in times.operators if one.name.startswith("linear")]
    assert sum(one.count for one in linear) == 9
    assert all(one.name.endswith("q4_1") for one in linear)
    judged = [one for one in times.operators if one.limit_s is not None]
    assert judged == [one for one in times.operators if one.name.startswith(("linear", "paged_attention"))]
    assert all(one.limit_s > 0 for one in judged if one.limit_s is not None)
    assert times.limit_s == pytest.approx(sum(one.limit_s or 0 for one in judged))
    assert all(one.seconds >= one.best_s > 0 for one in times.operators)
    assert times.step_s >= times.best_step_s > 0
    assert times.tokens_per_s == pytest.approx(3 / times.step_s)


def test_the_engine_is_idle_afterwards(session: Session) -> None:
    decode_times(session, 8, 20, 2)
    assert not session.board.completions
    session.engine.drain()
    assert session.engine.scheduler.pool_state.live == 0


@pytest.mark.parametrize(
    ("batch", "context", "message"),
    [
        (9, 20, "batch of 9 exceeds --max-num-seqs 8"),
        (1, 255, "need 263 tokens; the longest request has 256"),
        (8, 200, "needs 104 blocks; the pool has 64"),
    ],
)
def test_what_does_not_fit_is_refused(session: Session, batch: int, context: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_times(session, batch, context, 2)


def test_the_command_prints_both(model: Path) -> None:
    flags = ["bench", str(model), "--steps", "2", "--context", "20", "--batch", "2", "--threads", "1"]
    flags += ["--num-gpu-blocks-override", "64", "--quantization", "int8", "--profile"]
    text = CliRunner().invoke(octavo, flags, catch_exceptions=False).stdout
    assert "int8 weights" in text
    assert "batch 2:" in text
    assert "paged_attention" in text
    facts = json.loads(CliRunner().invoke(octavo, [*flags, "--json"], catch_exceptions=False).stdout)
    assert [row["batch"] for row in facts["batches"]] == [2]
    assert facts["batches"][0]["limits"]["operations_per_s"].keys() == {"f32", "bf16", "int8", "int4"}
    assert "planning, sampling, telling" in [one["name"] for one in facts["batches"][0]["operators"]]
