from __future__ import annotations

import numpy as np

from octavo.memory import HashChain
from octavo.scheduling.running import Running, gather
from octavo.scheduling.sequence import Sequence
from scheduler_helpers import make_request


def running(count: int) -> Running:
    state = Running(8)
    for i in range(count):
        sequence = Sequence(make_request(f"r{i}", i + 2), i, 50, HashChain())
        state.append(sequence, row=10 + i, computed=i, known=i + 2, slots=16, scheduled=1)
    return state


def test_totals_follow_the_members() -> None:
    state = running(4)
    assert (state.backlog, state.written) == (8, 6)
    state.remove([1])
    assert (state.backlog, state.written) == (6, 5)
    state.remove([0, 2])
    assert (state.backlog, state.written) == (2, 2)


def test_the_others_keep_their_order() -> None:
    state = running(5)
    before = state.rows()
    state.remove([3, 0])
    assert state.row[: state.count].tolist() == [11, 12, 14]
    assert state.newest[: state.count].tolist() == [3, 4, 6]
    assert state.request_ids() == ("r1", "r2", "r4")
    assert [sequence.request_id for sequence in state.sequences] == ["r1", "r2", "r4"]
    assert before.tolist() == [10, 11, 12, 13, 14], "an old plan keeps its rows"


def test_views_are_shared_until_the_membership_changes() -> None:
    state = running(2)
    assert state.rows() is state.rows() and state.request_ids() is state.request_ids()
    rows = state.rows()
    state.remove([1])
    assert state.rows() is not rows


def test_input_tokens_are_gathered_row_after_row() -> None:
    tokens = np.arange(40, dtype=np.int32).reshape(4, 10)
    rows, computed, scheduled = (np.array(x, np.intp) for x in ([2, 0, 3, 1], [4, 0, 9, 5], [1, 3, 1, 1]))
    newest, samples = np.array([24, 2, 39, 18]), np.array([True, True, True, False])
    found = gather(tokens, rows, computed, scheduled, newest, samples)
    assert found.tolist() == [24, 0, 1, 2, 39, 15] and found.dtype == np.int32
    none = np.zeros(0, np.intp)
    assert gather(tokens, none, none, none, none, none.astype(np.bool_)).tolist() == []
