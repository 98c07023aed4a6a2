"""Synthetic tokens are shared exactly where content is."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.simulation.content import VOCABULARY, Segment, content_key, content_tokens, tokens_at


def test_a_token_depends_on_content_and_position_alone() -> None:
    key = content_key(1, 2)
    whole = content_tokens([Segment(key, 100)])
    parts = content_tokens([Segment(key, 30), Segment(key, 70, 30)])
    assert whole.dtype == np.int32
    assert (whole == parts).all()
    assert (whole[40:50] == tokens_at(np.full(10, key, np.uint64), np.arange(40, 50))).all()
    assert whole[:3].tolist() == [1478316565, 1066901545, 1827449688]


def test_other_contents_share_no_token() -> None:
    keys = [content_key(1, number) for number in range(50)] + [content_key(2, number) for number in range(50)]
    assert len(set(keys)) == 100
    tokens = np.stack([content_tokens([Segment(key, 200)]) for key in keys])
    assert all(len(np.unique(column)) == 100 for column in tokens.T)


def test_key_parts_have_an_order() -> None:
    assert content_key(1, 2) != content_key(2, 1)
    assert content_key(1) != content_key(1, 0)
    assert 0 <= content_key(-5, 1 << 70) < 1 << 64


@pytest.mark.parametrize("vocabulary", [2, 49_152, VOCABULARY])
def test_tokens_stay_inside_the_vocabulary(vocabulary: int) -> None:
    tokens = content_tokens([Segment(content_key(3), 5_000)], vocabulary)
    assert tokens.min() >= 0
    assert tokens.max() < vocabulary
    assert tokens.max() > vocabulary // 2 - 1


def test_a_vocabulary_of_one_costs_nothing() -> None:
    assert content_tokens([Segment(1, 3), Segment(2, 2)], 1).tolist() == [0] * 5
    assert content_tokens([]).tolist() == []
