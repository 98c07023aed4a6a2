"""The paper's pool and its baselines."""

from __future__ import annotations

import pytest

from octavo.core.errors import ConfigError
from octavo.simulation import orca
from octavo.simulation.orca import BATCHED_REQUESTS, OPT_13B, POLICIES, POOL_SLOTS, OrcaFigures, build, run
from octavo.simulation.random_numbers import normal, stream


def lengths() -> list[tuple[int, int]]:
    """Pairs like ShareGPT's: wide, right-skewed."""
    import math

    rng = stream(1, "pairs")
    made = [
        (4 + int(90 * math.exp(normal(rng))), 4 + int(230 * math.exp(0.9 * normal(rng))))
        for _ in range(2_000)
    ]
    return [pair for pair in made if sum(pair) <= 2_048]


def test_the_pool_is_the_papers() -> None:
    assert OPT_13B.kv_bytes_per_token == 819_200
    assert 12 * 2**30 // OPT_13B.kv_bytes_per_token == POOL_SLOTS


def test_orca_max_holds_exactly_seven_requests() -> None:
    simulation, _ = build("orca_max", [(100, 400)], rate=1000.0, requests=50)
    simulation.run(orca.Stop(steps=60))
    assert simulation.scheduler.num_running == 7
    left = simulation.scheduler.pool_state.free
    assert left == POOL_SLOTS - 7 * 2048
    assert round(100 * left / POOL_SLOTS, 2) == 8.85


@pytest.fixture(scope="module")
def found() -> dict[str, OrcaFigures]:
    pairs = lengths()
    return {
        policy: run(
            policy, *build(policy, pairs, rate=2.0, requests=250, means=orca.SHAREGPT.means), seconds=200.0
        )
        for policy in POLICIES
    }


def test_the_papers_order_and_rough_figures(found: dict[str, OrcaFigures]) -> None:
    batched = [found[policy].batched_requests for policy in POLICIES]
    assert batched == sorted(batched)
    for policy in POLICIES[:3]:
        assert found[policy].batched_requests == pytest.approx(BATCHED_REQUESTS["sharegpt", policy], rel=0.15)
    latency = [found[policy].normalized_latency_s for policy in POLICIES]
    assert latency == sorted(latency, reverse=True)


def test_shares_are_the_papers_division(found: dict[str, OrcaFigures]) -> None:
    for policy in POLICIES:
        assert sum(found[policy].shares.values()) == pytest.approx(100.0)
    assert found["orca_oracle"].shares["internal"] == 0.0
    assert found["paged"].shares["reserved"] == 0.0
    assert found["paged"].shares["internal"] < 4.0
    assert found["orca_max"].shares["external"] == pytest.approx(8.9, abs=2.0)
    assert found["orca_max"].shares["internal"] > 45.0
    assert found["orca_pow2"].shares["internal"] < found["orca_max"].shares["internal"]


def test_contiguous_requests_are_never_preempted(found: dict[str, OrcaFigures]) -> None:
    assert [found[policy].preemptions for policy in POLICIES[:3]] == [0, 0, 0]


def test_lengths_that_differ_from_the_papers_are_said_to() -> None:
    note = orca.length_note(orca.ALPACA, [(18, 58), (20, 60)])
    assert note.startswith(
        "alpaca: mean prompts 19.00 tokens against 19.31 (-2%), outputs 59.00 tokens against 58.45 (+1%)"
    )


def test_unknown_policies_are_named() -> None:
    with pytest.raises(ConfigError, match="'orca' is not known"):
        build("orca", [(5, 5)], rate=1.0)  # type: ignore[arg-type]
