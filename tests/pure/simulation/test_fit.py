"""Fitting: known coefficients are found again, and none comes out negative."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.simulation.features import PlanFeatures
from octavo.simulation.fit import TERMS, fit, non_negative_least_squares
from octavo.simulation.random_numbers import Uniform, stream


def steps(count: int, rng: Uniform) -> list[PlanFeatures]:
    made = []
    for _ in range(count):
        sequences = 1 + int(rng.random() * 64)
        tokens = sequences + int(rng.random() ** 3 * 500)
        context = tokens + int(rng.random() * 2_000 * sequences)
        made.append(
            PlanFeatures(tokens, sequences, sequences, context, context + tokens * int(rng.random() * 99))
        )
    return made


def test_known_coefficients_are_found_again() -> None:
    made = steps(200, stream(1, "steps"))
    true = {"constant": 2e-3, "tokens": 3e-5, "sequences": 1e-5, "kv_tokens": 2e-8, "pairs": 5e-10}

    def seconds(step: PlanFeatures) -> float:
        sums = sum(true[name] * value for name, value in zip(step._fields, step, strict=True) if name in true)
        return true["constant"] + sums + 4e-5 * max(step.tokens - 32, 0)

    profile = fit("machine", "test", [(step, seconds(step)) for step in made], knots=(32, 300))
    assert profile.mean_error < 1e-9
    assert profile.steps == 200
    for name, value in {**true, "tokens_over_32": 4e-5}.items():
        assert profile.coefficients[name] == pytest.approx(value, rel=1e-5), name
    assert profile.coefficients["tokens_over_300"] == pytest.approx(0.0, abs=1e-12)
    spec = ModelSpec("x", 1, 1, 1, 1, 1, 1, 1, 1)
    model = profile.cost_model(spec)
    assert model.seconds(made[5]) == pytest.approx(seconds(made[5]))  # type: ignore[attr-defined]


def test_noise_makes_no_coefficient_negative() -> None:
    rng = stream(2, "steps")
    made = [(step, 1e-3 * (0.9 + 0.2 * rng.random())) for step in steps(100, rng)]
    profile = fit("machine", "test", made)
    assert all(value >= 0 for value in profile.coefficients.values())
    assert 0.02 < profile.mean_error < 0.08
    assert profile.coefficients["constant"] == pytest.approx(1e-3, rel=0.1)


def test_the_active_set_solution_is_optimal() -> None:
    """At the optimum no zero coefficient would lower the error, and the others have no slope (KKT)."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        matrix, target = rng.normal(size=(12, 5)), rng.normal(size=12)
        x = non_negative_least_squares(matrix, target)
        slope = matrix.T @ (target - matrix @ x)
        assert (x >= 0).all()
        assert (slope[x == 0] <= 1e-9).all()
        assert slope[x > 0] == pytest.approx(np.zeros(int((x > 0).sum())), abs=1e-9)
    assert non_negative_least_squares(np.eye(2), np.array([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_too_little_or_impossible_measurements() -> None:
    made = steps(20, stream(1, "steps"))
    with pytest.raises(ConfigError, match="3 measured steps cannot fix 5"):
        fit("m", "t", [(step, 1.0) for step in made[:3]], knots=())
    with pytest.raises(ConfigError, match="took no time"):
        fit("m", "t", [(step, 0.0) for step in made])
    assert len(TERMS) == 5
