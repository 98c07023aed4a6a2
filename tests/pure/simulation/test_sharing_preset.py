"""What several answers to a prompt share, on made-up lengths and beside the paper's figures on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.core.plan import Candidates
from octavo.simulation.beam_candidates import simulated_candidates
from octavo.simulation.orca import ALPACA, EFFICIENCY, PROFILE, SHAREGPT, Dataset
from octavo.simulation.sharing import SAVINGS, Method, Saved, run
from octavo.simulation.traces import open_trace

TRACES = Path(__file__).parents[4] / "shared" / "traces"


def saved(
    method: Method, width: int, pairs: list[tuple[int, int]], dataset: Dataset = ALPACA, requests: int = 40
) -> Saved:
    means = None if len(pairs) < 10 else dataset.means
    return run(
        method,
        width,
        dataset,
        pairs,
        means=means,
        requests=requests,
        seed=0,
        profile=PROFILE,
        efficiency=EFFICIENCY,
    )


def test_nothing_is_shared_of_prompts_below_a_block_once_answers_part() -> None:
    found = saved("parallel", 4, [(10, 40)])
    assert found.percent < 1.0, "only in the step that computes the prompt"
    assert found.copied_blocks == 40 * 3


def test_long_prompts_share_what_arithmetic_says() -> None:
    """512 tokens are 32 blocks; 64 more are one to four blocks of each answer."""
    found = saved("parallel", 4, [(512, 64)], requests=3)
    entries = sum(4 * (32 + -(-written // 16)) for written in range(1, 64))
    held = sum(32 + 4 * -(-written // 16) for written in range(1, 64))
    assert found.percent == pytest.approx(100 * (1 - held / entries), abs=0.5)
    assert found.copied_blocks == 0 and found.preemptions == 0


def test_beams_share_more_than_samples_and_less_than_everything() -> None:
    pairs = [(20, 60), (10, 90)]
    for width in (2, 4):
        sampled, searched = (saved(method, width, pairs).percent for method in ("parallel", "beam"))
        assert sampled < searched < 100 * (1 - 1 / width)


def test_candidates_are_likelihoods_in_order_and_depend_on_what_was_said() -> None:
    found = simulated_candidates(7, 3, 11, 8, last=False, vocabulary=1 << 31)
    assert isinstance(found, Candidates) and len(set(found.token_ids.tolist())) == 8
    assert (found.logprobs[:-1] >= found.logprobs[1:]).all() and found.logprobs[0] <= 0
    assert not found.stops.any()
    again = simulated_candidates(7, 3, 11, 8, last=True, vocabulary=1 << 31)
    assert (again.token_ids == found.token_ids).all() and again.stops.all()
    other = simulated_candidates(7, 3, 12, 8, last=False, vocabulary=1 << 31)
    assert (other.token_ids != found.token_ids).any()


@pytest.mark.skipif(not TRACES.is_dir(), reason="no trace files beside the repository")
@pytest.mark.parametrize(
    ("dataset", "file"), [(ALPACA, "alpaca_5k_lengths"), (SHAREGPT, "sharegpt_single_turn")]
)
def test_the_papers_figures_are_near(dataset: Dataset, file: str) -> None:
    """Parallel sampling, which depends on lengths alone, within 4 points; beam search within 15."""
    pairs = [(int(a), int(b)) for a, b in open_trace(TRACES / f"{file}.csv").lengths().tolist()]
    requests = 200 if dataset is ALPACA else 60
    for (name, method, width), paper in SAVINGS.items():
        if name == dataset.name and width != 4 and (method == "parallel" or width == 2):
            found = saved(method, width, pairs, dataset, requests)
            assert found.percent == pytest.approx(paper, abs=4 if method == "parallel" else 15), (
                method,
                width,
            )
