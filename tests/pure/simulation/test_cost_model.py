"""Prices of steps: features counted exactly, rooflines by hand, and profiles as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.core.plan import StepPlan
from octavo.simulation.cost_model import FittedProfile, Roofline, RooflineProfile, body_parameters
from octavo.simulation.features import PlanFeatures, features
from octavo.simulation.profile_files import bundled_profiles, load_profile, save_profile

SPEC = ModelSpec(
    name="toy",
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    hidden_size=32,
    intermediate_size=64,
    vocab_size=100,
    max_model_len=128,
)
BODY = 2 * (2 * 32 * 8 * 6 + 3 * 32 * 64)
HEAD = 100 * 32
CARD = RooflineProfile("card", "made up", 1e9, 1e6, {"bf16": 1e8})


def plan(computed: list[int], scheduled: list[int], samples: list[bool], copies: int = 0) -> StepPlan:
    return StepPlan(
        step=0,
        rows=np.arange(len(computed), dtype=np.int32),
        computed=np.array(computed, np.int32),
        scheduled=np.array(scheduled, np.int32),
        token_ids=np.zeros(sum(scheduled), np.int32),
        samples=np.array(samples, np.bool_),
        block_table=np.zeros((4, 4), np.int32),
        copies=np.zeros((copies, 2), np.int32),
        started=(),
        ended=(),
    )


def test_features_of_decode_and_of_chunks() -> None:
    assert features(plan([10, 5], [1, 1], [True, True], 2)) == PlanFeatures(2, 2, 2, 17, 17, 2)
    # A chunk of 4 behind 3: its tokens look at 4 + 5 + 6 + 7 keys.
    assert features(plan([10, 3], [1, 4], [True, False])) == PlanFeatures(5, 2, 1, 18, 11 + 22)
    assert features(plan([], [], [])) == PlanFeatures(0, 0, 0, 0, 0)


def test_rows_that_fork_cost_nothing() -> None:
    """Three tokens end a prompt of 8, two rows fork from it, and one decodes: as many tokens as rows."""
    forking = structs.replace(
        plan([5, 8, 8, 20], [3, 0, 0, 1], [True] * 4), forks=np.array([[0, 1], [0, 2]], np.int32)
    )
    assert features(forking) == features(plan([5, 20], [3, 1], [True, True]))


def test_features_do_not_overflow() -> None:
    found = features(plan([1_000_000] * 3, [100_000] * 3, [True] * 3))
    assert found.pairs == 3 * (10**11 + 100_000 * 100_001 // 2)


def test_parameters_of_the_linear_layers() -> None:
    assert body_parameters(SPEC) == BODY
    two = 2 * (2 * 32 * 8 * 6 + 2 * 32 * 64)
    assert body_parameters(replace(SPEC, num_parameters=two + HEAD + 50)) == two
    assert body_parameters(replace(SPEC, num_parameters=BODY + 2 * HEAD)) == BODY


def test_a_roofline_by_hand() -> None:
    decode = PlanFeatures(tokens=2, sequences=2, sampled=2, kv_tokens=1_000, pairs=1_000)
    read = 2 * (BODY + HEAD) / 1e6
    compute = 2 * 2 * (BODY + HEAD) / 1e8
    kv = (1_000 + 2) * SPEC.kv_bytes_per_token / 1e6
    attention = 4 * 2 * 4 * 8 * 1_000 / 1e8

    def seconds(**changes: object) -> float:
        return replace(CARD, **changes).cost_model(SPEC).seconds(decode)  # type: ignore[arg-type, attr-defined, no-any-return]

    assert read > compute
    assert kv > attention
    assert seconds() == pytest.approx(read + kv)
    assert seconds(overlap="whole") == pytest.approx(max(read + kv, compute + attention))
    assert seconds(overlap="none") == pytest.approx(read + kv + compute + attention)
    assert seconds(step_overhead_s=0.5) == pytest.approx(read + kv + 0.5)
    assert seconds(memory_efficiency=0.5) == pytest.approx(2 * (read + kv))


def test_transfers_take_their_time_with_tokens_and_without() -> None:
    card = replace(CARD, host_bytes_per_s=1e5)
    decode = PlanFeatures(tokens=2, sequences=2, sampled=2, kv_tokens=1_000, pairs=1_000)
    for size in (16, 32):
        one = size * SPEC.kv_bytes_per_token / 1e5
        model = card.cost_model(SPEC, size)
        assert isinstance(model, Roofline)
        waiting = PlanFeatures(0, 0, 0, 0, 0, transferred_blocks=3)
        assert model.seconds(waiting) == pytest.approx(3 * one)
        more = model.seconds(decode._replace(transferred_blocks=5)) - model.seconds(decode)
        assert more == pytest.approx(5 * one)
    fitted = FittedProfile("mine", "here", {"constant": 1.0, "transferred_blocks": 0.25}).cost_model(SPEC)
    transfers = np.array([[0, 9], [9, 1]], np.int32)
    assert fitted.price(structs.replace(plan([4], [1], [True]), transfers=transfers)) == pytest.approx(1.5)
    assert fitted.price(structs.replace(plan([], [], []), transfers=transfers)) == pytest.approx(0.5)


def test_a_long_prefill_is_bound_by_arithmetic() -> None:
    prefill = PlanFeatures(tokens=500, sequences=1, sampled=0, kv_tokens=500, pairs=125_250)
    model = CARD.cost_model(SPEC)
    expected = 2 * BODY * 500 / 1e8 + max(
        4 * 2 * 4 * 8 * 125_250 / 1e8, 1_000 * SPEC.kv_bytes_per_token / 1e6
    )
    assert model.seconds(prefill) == pytest.approx(expected)  # type: ignore[attr-defined]
    assert model.price(plan([], [], [])) == 0.0
    assert model.price(plan([5], [1], [True])) > 0.0


def test_published_numbers() -> None:
    assert bundled_profiles() == ["a100", "a100-40gb", "h100", "h200", "l4", "mi300x"]
    h100 = load_profile("h100")
    assert isinstance(h100, RooflineProfile)
    assert (h100.memory_bytes_per_s, h100.flops_per_s["bf16"], h100.memory_bytes) == (3.35e12, 989.4e12, 80e9)
    for name in bundled_profiles():
        profile = load_profile(name)
        assert isinstance(profile, RooflineProfile)
        assert "roofline" in profile.name
        assert "data sheet" in profile.source
        assert "lower bound" in profile.source


def test_eight_billion_parameters_on_an_h100() -> None:
    """A sanity check that anyone can do: 15 GB of weights at 3.35 TB/s is about 4.5 ms a token."""
    spec = ModelSpec("8b", 32, 32, 8, 128, 4096, 14336, 128256, 131072, num_parameters=8_030_261_248)
    seconds = load_profile("h100").cost_model(spec).price(plan([1_000], [1], [True]))
    assert seconds == pytest.approx(
        (2 * (8_030_261_248 - 128256 * 4096) + 1_002 * 131_072) / 3.35e12, rel=1e-3
    )


def test_fitted_prices_by_hand() -> None:
    coefficients = {"constant": 1.0, "tokens": 0.1, "kv_tokens": 0.01, "tokens_over_8": 0.5}
    model = FittedProfile("mine", "here", coefficients, knots=(8,)).cost_model(SPEC)
    assert model.price(plan([9, 4], [1, 1], [True, True])) == pytest.approx(1.0 + 0.2 + 0.15)
    assert model.price(plan([0], [10], [True])) == pytest.approx(1.0 + 1.0 + 0.1 + 1.0)
    assert model.price(plan([], [], [])) == 0.0


@pytest.mark.parametrize("profile", [CARD, FittedProfile("mine", "here", {"constant": 1.0}, 5, 0.02, (8,))])
def test_profiles_survive_a_file(tmp_path: Path, profile: RooflineProfile | FittedProfile) -> None:
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(str(tmp_path / "p.json")) == profile


GOOD = {
    "format": "octavo-profile",
    "version": 1,
    "kind": "roofline",
    "name": "x",
    "source": "y",
    "memory_bytes": 1e9,
    "memory_bytes_per_s": 1e9,
    "flops_per_s": {"bf16": 1e9},
}
FITTED = {"format": "octavo-profile", "version": 1, "kind": "fitted", "name": "x", "source": "y"}
BAD = [
    ({**GOOD, "format": "other"}, "it has no"),
    ({**GOOD, "version": 7}, "its version is 7"),
    ({**GOOD, "kind": "guess"}, "its kind is 'guess'"),
    ({**GOOD, "memory_bytes_per_s": "fast"}, "memory_bytes_per_s is 'fast'"),
    ({**GOOD, "memory_bytes_per_s": -1}, "memory_bytes_per_s is -1"),
    ({**GOOD, "step_overhead_s": -1}, "step_overhead_s is -1"),
    ({**GOOD, "flops_per_s": [1]}, "flops_per_s is not an object"),
    ({**GOOD, "colour": 1}, "field 'colour' is not known"),
    ({**GOOD, "overlap": "some"}, "overlap is 'some'"),
    ({key: value for key, value in GOOD.items() if key != "memory_bytes"}, "a field is missing"),
    ([1], "it has no"),
    ({**FITTED, "coefficients": {"constant": -1.0}}, "coefficient constant is -1.0"),
    ({**FITTED, "coefficients": {"colour": 1.0}}, "coefficient 'colour' is not known"),
    ({**FITTED, "coefficients": {"constant": 0.0}}, "would take no time"),
    ({**FITTED, "coefficients": {"constant": 1.0}, "knots": [1.5]}, "knots is not a list"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_wrong_profiles_are_named(tmp_path: Path, fields: object, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=message) as error:
        load_profile(str(path))
    assert error.value.param == "--profile"


def test_unreadable_profiles_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a readable file nor one of a100"):
        load_profile("h1000")
    path = tmp_path / "p.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_profile(str(path))
    with pytest.raises(ConfigError, match="no flops_per_s for f32"):
        CARD.cost_model(replace(SPEC, weight_dtype="f32"))
