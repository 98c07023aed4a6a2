"""The grid runs the steps that it means to, and their fit prices them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_models
from octavo.llm.build import build_session
from octavo.llm.options import EngineOptions
from octavo.llm.profiling import (
    BATCHES,
    DECODE_STEPS,
    Bench,
    Measurement,
    StepTimer,
    errors_by_kind,
    fit_measurements,
    grouped,
)
from octavo.simulation.cost_model import Fitted
from octavo.simulation.features import PlanFeatures


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    model = tiny_models.write_llama(tmp_path, max_model_len=512)
    timer = StepTimer()
    options = EngineOptions(
        str(model), num_blocks=400, max_num_seqs=16, max_num_batched_tokens=64, threads=1, seed=0
    )
    return Bench(build_session(options, sinks=[timer]), timer)


def test_a_prefill_is_one_step_of_its_tokens(bench: Bench) -> None:
    bench.prefill(32)
    ((cell, steps),) = bench.cells.items()
    assert cell == ("prefill", "32")
    assert [step for step, _ in steps] == [PlanFeatures(32, 1, 1, 32, 32 * 33 // 2)]


def test_a_long_prompt_attends_to_its_earlier_chunks(bench: Bench) -> None:
    bench.long_prompt(160)
    steps = [steps[0][0] for steps in bench.cells.values()]
    assert [(step.tokens, step.sampled, step.kv_tokens) for step in steps] == [
        (64, 0, 64),
        (64, 0, 128),
        (32, 1, 160),
    ]


def test_decode_cells_hold_decode_steps_alone_and_nobody_is_preempted(bench: Bench) -> None:
    bench.decode(96)
    decode = {cell: steps for cell, steps in bench.cells.items() if cell[0] == "decode"}
    assert list(decode) == [("decode", "96", str(batch)) for batch in BATCHES if batch <= 16]
    for cell, steps in decode.items():
        batch = int(cell[2])
        assert len(steps) == DECODE_STEPS
        for step, seconds in steps:
            assert step.tokens == step.sequences == step.sampled == batch
            assert seconds > 0
            assert batch * 96 < step.kv_tokens < batch * (96 + 80)
    assert not bench.session.board.completions
    assert bench.session.engine.scheduler.pool_state.live == 0


def test_batches_fit_rows_and_pool(bench: Bench) -> None:
    assert bench.batches(16) == [1, 2, 4, 8, 16]
    assert bench.batches(384) == [1, 2, 4, 8]
    assert bench.batches(511) == []


def test_a_fit_prices_what_it_was_fitted_to() -> None:
    def seconds(step: PlanFeatures) -> float:
        return 1e-3 + 2e-5 * step.tokens + 1e-4 * step.sampled + 1e-7 * step.kv_tokens

    steps = [
        PlanFeatures(tokens, rows, rows, tokens + rows * context, tokens * context)
        for tokens in (1, 4, 16, 64, 256)
        for rows in (1, 2, 8)
        for context in (10, 500)
        if rows <= tokens
    ]
    measured = [Measurement(("made",), step, seconds(step), 1) for step in steps]
    profile = fit_measurements("made", "nowhere", measured)
    assert profile.mean_error < 1e-6
    unseen = PlanFeatures(40, 5, 5, 2_000, 9_000)
    assert Fitted(profile).seconds(unseen) == pytest.approx(seconds(unseen), rel=1e-3)
    errors = errors_by_kind(profile, measured)
    assert errors["made"][0] == len(measured)
    assert errors["made"][1] <= errors["made"][2] < 1e-5


def test_like_steps_are_averaged_slow_ones_too() -> None:
    step = PlanFeatures(4, 4, 4, 1_000, 1_000)
    other = PlanFeatures(64, 1, 1, 64, 2_000)
    found = grouped([(step, 1.0)] * 18 + [(step, 100.0)] * 2 + [(other, 5.0)])
    assert [(one.step, one.seconds, one.steps) for one in found] == [(step, 10.9, 20), (other, 5.0, 1)]
