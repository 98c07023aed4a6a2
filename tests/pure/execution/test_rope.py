"""Rotary tables against formulas written as their papers print them, dimension by dimension."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from octavo.execution.loading.architecture import Architecture, RopeScaling
from octavo.execution.loading.families import from_hf_config
from octavo.execution.loading.fields import Fields
from octavo.execution.rope import inverse_frequencies, rope_tables
from tiny_models import TINY_MODELS, llama3_factors

DIM = 32
THETA = 10000.0


def architecture(scaling: RopeScaling) -> Architecture:
    _, plain = from_hf_config(Fields("test", TINY_MODELS["llama3"].config))
    return replace(plain, rope_scaling=scaling)


PLAIN = [THETA ** (-i / DIM) for i in range(0, DIM, 2)]


def test_plain_frequencies_fall_geometrically() -> None:
    frequencies, factor = inverse_frequencies(architecture(RopeScaling()))
    assert frequencies == pytest.approx(PLAIN, rel=1e-12)
    assert factor == 1.0


def test_linear_scaling_divides_every_frequency() -> None:
    frequencies, factor = inverse_frequencies(architecture(RopeScaling("linear", 4.0)))
    assert frequencies == pytest.approx([f / 4 for f in PLAIN], rel=1e-12)
    assert factor == 1.0


def test_llama3_scaling_is_what_converters_store_as_factors() -> None:
    scaled, _ = inverse_frequencies(architecture(RopeScaling("llama3", 4.0, 64, 1.0, 4.0)))
    factors = llama3_factors(TINY_MODELS["llama3"])
    assert scaled == pytest.approx(np.array(PLAIN) / factors, rel=1e-6)
    assert {1.0, 4.0} < set(factors.tolist()), "the test needs kept, stretched and blended waves"


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_keeps_fast_dimensions_and_stretches_slow_ones(truncate: bool) -> None:
    original, factor = 64, 8.0
    scaling = RopeScaling("yarn", factor, original, beta_fast=8.0, beta_slow=1.0, truncate=truncate)
    scaled, attention = inverse_frequencies(architecture(scaling))
    borders = [
        DIM * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(THETA)) for turns in (8.0, 1.0)
    ]
    low, high = (math.floor(borders[0]), math.ceil(borders[1])) if truncate else borders
    low = max(low, 0)
    for i, plain in enumerate(PLAIN):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        assert scaled[i] == pytest.approx(plain * (1 - ramp) + plain / factor * ramp, rel=1e-12)
    assert attention == pytest.approx(0.1 * math.log(factor) + 1)


def test_yarn_attention_factor_can_be_given() -> None:
    given = RopeScaling("yarn", 8.0, 64, attention_factor=1.25)
    assert inverse_frequencies(architecture(given))[1] == 1.25
    scales = RopeScaling("yarn", 8.0, 64, mscale=0.7, mscale_all_dim=1.4)
    expected = (0.07 * math.log(8) + 1) / (0.14 * math.log(8) + 1)
    assert inverse_frequencies(architecture(scales))[1] == pytest.approx(expected)
    assert inverse_frequencies(architecture(RopeScaling("yarn", 1.0, 64)))[1] == 1.0


def test_tables_hold_scaled_cos_and_sin_of_every_position() -> None:
    model = architecture(RopeScaling("yarn", 8.0, 64, attention_factor=2.0))
    cos, sin = rope_tables(model, 40)
    assert cos.shape == sin.shape == (40, DIM // 2)
    assert cos.dtype == sin.dtype == np.float32
    assert (cos[0] == 2).all()
    assert (sin[0] == 0).all()
    np.testing.assert_allclose(cos**2 + sin**2, 4, rtol=1e-6)
    frequencies, _ = inverse_frequencies(model)
    np.testing.assert_allclose(sin[39], 2 * np.sin(39 * frequencies), atol=1e-5)


def test_stored_factors_divide_the_frequencies() -> None:
    model, factors = architecture(RopeScaling()), np.linspace(1, 4, DIM // 2, dtype=np.float32)
    cos, _ = rope_tables(model, 8, factors)
    np.testing.assert_allclose(cos[7], np.cos(7 * np.array(PLAIN) / factors), atol=1e-6)


def test_only_rotary_dimensions_have_columns() -> None:
    cos, sin = rope_tables(replace(architecture(RopeScaling()), rotary_dim=8), 3)
    assert cos.shape == sin.shape == (3, 4)
