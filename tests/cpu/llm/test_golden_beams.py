"""Beam search on SmolLM2-135M-Instruct in float32: the answers and scores that transformers gave for 14 prompts.

Golden values: tests/reference/recompute_beams.py (torch, transformers; the same dequantised weights).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.core.beam_params import BeamParams
from octavo.core.sampling_params import SamplingParams
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from octavo.scheduling.audit import audit
from reference.beams import MAX_TOKENS, NAMES, SETTINGS

pytestmark = pytest.mark.model

SCORE_TOLERANCE = 2e-3
"""Absolute, of scores that reach -25: sums of up to 28 float32 log-probabilities."""


@pytest.fixture(scope="module")
def expected(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "beams.json").read_text(encoding="utf-8"))
    assert list(found) == list(NAMES) and len(found) >= 10
    return found


@pytest.mark.parametrize("blocks", [2_000, 32])
def test_beams_are_those_of_transformers(embedded_model: Path, expected: dict[str, Any], blocks: int) -> None:
    """All searches at once, in a pool that holds them and in one in which they preempt each other."""
    session = build_session(
        EngineOptions(model=str(embedded_model), dtype="f32", num_blocks=blocks, max_num_seqs=32, threads=2)
    )
    asked = {}
    for name, answers in expected.items():
        for setting, fields in list(SETTINGS.items())[: 4 if blocks > 100 else 1]:
            beam = BeamParams(**fields)
            sampling = SamplingParams(beam=beam, n=beam.width, max_tokens=MAX_TOKENS)
            request = session.prepare(answers["prompt_token_ids"], sampling)
            asked[name, setting] = session.add_choices(request)
    while session.step() is not None:
        audit(session.engine.scheduler)
    assert session.engine.scheduler.pool_state.live == 0
    ended = 0
    for (name, setting), completions in asked.items():
        wanted = expected[name][setting]
        assert [one.token_ids for one in completions] == wanted["token_ids"], (name, setting)
        scores = [one.beam.score for one in completions if one.beam is not None]
        assert scores == pytest.approx(wanted["scores"], abs=SCORE_TOLERANCE), (name, setting)
        ended += sum(one.beam.stopped for one in completions if one.beam is not None)
    assert ended > len(asked) / 2, "searches whose beams never end by themselves show half of it"
    preemptions = sum(completions[0].preemptions for completions in asked.values())
    assert (preemptions > 0) == (blocks == 32)
