"""Which beams live on: ends, length penalties, the three ways to stop, diverse groups. Scores by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from octavo.core.beam_params import BeamParams
from octavo.core.errors import RequestError
from octavo.core.plan import Candidates
from octavo.scheduling.beam_search import BeamSearch

END = 0


def after(likelihoods: Mapping[int, float]) -> Candidates:
    """Token -> log-probability; token 0 ends."""
    ranked = sorted(likelihoods.items(), key=lambda one: -one[1])
    ids = np.array([token for token, _ in ranked], np.int32)
    return Candidates(ids, np.array([value for _, value in ranked], np.float32), ids == END)


class Searched:
    """A search with the tokens that its places hold."""

    def __init__(self, max_tokens: int = 100, **params: object) -> None:
        self.search = BeamSearch(BeamParams(**params), max_tokens)  # type: ignore[arg-type]
        self.tokens: list[list[int]] = [[]]

    def step(self, *likelihoods: Mapping[int, float]) -> list[list[int]]:
        survivors = self.search.advance(
            [after(one) for one in likelihoods], lambda place: np.array(self.tokens[place], np.int32)
        )
        self.tokens = [[*self.tokens[one.parent], one.token] for one in survivors]
        return self.tokens


def test_the_best_sums_survive_whoever_their_parents_are() -> None:
    found = Searched(width=2)
    assert found.step({1: -1, 2: -1.5, 3: -4, 4: -5}) == [[1], [2]]
    assert found.step({5: -3, 6: -3.5}, {7: -1, 8: -1.25, 9: -9}) == [[2, 7], [2, 8]]
    assert not found.search.done


def test_an_end_among_the_best_is_kept_and_one_behind_them_is_not() -> None:
    found = Searched(width=2)
    assert found.step({1: -1, END: -1.5, 2: -2, 3: -3}) == [[1], [2]]
    assert found.step({END: -9, 4: -1, 5: -2.5}, {6: -1, 7: -2}) == [[1, 4], [2, 6]]
    assert [one.token_ids for one in found.search.answers(9)] == [(END,)]


def test_scores_are_divided_by_the_length_to_the_power_of_the_penalty() -> None:
    for penalty, best in ((0.0, (END,)), (3.0, (1, END))):
        found = Searched(width=2, length_penalty=penalty, max_tokens=2)
        found.step({END: -1, 1: -1.5, 2: -3})
        assert found.step({END: -0.5, 3: -4}, {4: -1}) == []
        assert found.search.done
        answer = found.search.answers(1)[0]
        assert answer.token_ids == best
        assert answer.score == pytest.approx(answer.logprob / len(best) ** penalty)
        assert answer.stopped


def test_beams_of_full_length_are_answers_that_did_not_stop() -> None:
    found = Searched(width=2, max_tokens=1)
    assert found.step({3: -1, 4: -2, 5: -3}) == []
    assert [(one.token_ids, one.stopped) for one in found.search.answers(2)] == [((3,), False), ((4,), False)]


def ended(early_stopping: object, penalty: float) -> bool:
    """Two beams have ended at length 2, a running one is worse now and could become better."""
    found = Searched(width=2, length_penalty=penalty, early_stopping=early_stopping, max_tokens=50)
    found.step({1: -1, 2: -1.1, 3: -9})
    found.step({END: -0.1, 4: -0.9}, {END: -0.1, 5: -2, 6: -2.5})
    return found.search.done


def test_the_three_ways_to_stop() -> None:
    assert ended(True, 1.0) and ended(True, 0.0)
    assert ended(False, 1.0), "-1.9 / 2 is below both -1.1 / 2 and -1.2 / 2"
    assert not ended("never", 1.0), "-1.9 / 50 could be reached"
    assert ended("never", 0.0), "without a penalty sums only fall"


def test_groups_avoid_what_earlier_groups_took() -> None:
    same = {1: -1.0, 2: -1.2, 3: -1.9}
    free = Searched(width=2, groups=2, diversity_penalty=0.1)
    assert free.step(same) == [[1], [1]], "-1 - 0.1 is still above -1.2"
    diverse = Searched(width=2, groups=2, diversity_penalty=0.5)
    assert diverse.step(same) == [[1], [2]]
    three = Searched(width=3, groups=3, diversity_penalty=1.0)
    assert three.step(same) == [[1], [2], [3]], "-1.9 is above -2 and -2.2"


def test_the_penalty_stays_out_of_the_sums() -> None:
    found = Searched(width=2, groups=2, diversity_penalty=0.5, max_tokens=2, length_penalty=0.0)
    found.step({1: -1.0, 2: -1.2})
    found.step({5: -1.0, 6: -3.0}, {5: -1.0, 6: -3.0})
    assert [one.score for one in found.search.answers(2)] == pytest.approx([-2.0, -2.2])


def test_a_group_that_is_done_leaves_its_places() -> None:
    found = Searched(width=2, groups=2, early_stopping=True, diversity_penalty=2.0)
    assert found.step({1: -1, 2: -2}) == [[1], [2]]
    assert found.step({END: -0.5, 3: -1}, {4: -0.5, 5: -1}) == [[2, 4]]
    assert not found.search.done
    assert found.step({END: -1.0, 6: -2}) == []
    assert found.search.done and len(found.search.answers(9)) == 2


def test_a_vocabulary_smaller_than_the_search() -> None:
    found = Searched(width=6)
    assert found.step({1: -1, 2: -2}) == [[1], [2]]
    assert len(found.step({1: -1, 2: -2}, {1: -1, 2: -2})) == 4
    assert len(found.step(*[{1: -1, 2: -2}] * 4)) == 6


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"width": 0}, "beam_width"),
        ({"width": 1_000}, "beam_width"),
        ({"width": 2, "length_penalty": math.nan}, "length_penalty"),
        ({"width": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"width": 4, "groups": 3}, "num_beam_groups"),
        ({"width": 4, "groups": 2, "diversity_penalty": -1.0}, "diversity_penalty"),
        ({"width": 4, "diversity_penalty": 1.0}, "diversity_penalty"),
    ],
)
def test_settings_that_make_no_sense_are_refused(params: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        BeamParams(**params)  # type: ignore[arg-type]
    assert caught.value.param == param
