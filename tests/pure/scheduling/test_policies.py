from __future__ import annotations

import numpy as np
import pytest

from octavo.memory import HashChain
from octavo.scheduling.policies import UNLIMITED, WaitingQueue, deal, victim
from octavo.scheduling.sequence import Sequence
from scheduler_helpers import make_request


def sequence(arrival: int, priority: int = 0) -> Sequence:
    return Sequence(make_request(f"r{arrival}", 3, priority=priority), arrival, 10, HashChain())


def pop_all(queue: WaitingQueue) -> list[int]:
    order = []
    while len(queue):
        order.append(queue.head().arrival)
        queue.pop()
    return order


def test_first_come_first_served_ignores_priority() -> None:
    queue = WaitingQueue("fcfs")
    for arrival, priority in ((2, 0), (0, 9), (1, -3)):
        queue.push(sequence(arrival, priority))
    assert pop_all(queue) == [0, 1, 2]


def test_priority_first_then_arrival() -> None:
    queue = WaitingQueue("priority")
    for arrival, priority in ((0, 1), (1, 0), (2, 1), (3, 0)):
        queue.push(sequence(arrival, priority))
    assert pop_all(queue) == [1, 3, 0, 2]


def test_a_withdrawn_entry_is_skipped_and_not_counted() -> None:
    queue = WaitingQueue("fcfs")
    entries = [sequence(arrival) for arrival in range(4)]
    for entry in entries:
        queue.push(entry)
    queue.withdraw(entries[0])
    queue.withdraw(entries[2])
    assert len(queue) == 2
    assert pop_all(queue) == [1, 3]


def test_many_withdrawn_entries_are_swept() -> None:
    queue = WaitingQueue("fcfs")
    entries = [sequence(arrival) for arrival in range(300)]
    for entry in entries:
        queue.push(entry)
    for entry in entries[1:]:
        queue.withdraw(entry)
    assert len(queue._heap) < 150 and len(queue) == 1
    assert pop_all(queue) == [0]


def alive(*flags: int) -> np.ndarray:
    return np.array(flags, np.bool_)


def test_the_victim_is_the_most_recently_admitted() -> None:
    sequences = [sequence(i, priority=9 - i) for i in range(4)]
    assert victim(sequences, alive(1, 1, 1, 1), "fcfs") == 3
    assert victim(sequences, alive(1, 1, 1, 0), "fcfs") == 2


def test_the_victim_under_priority_is_the_least_important_but_never_the_oldest() -> None:
    sequences = [sequence(i, priority) for i, priority in enumerate((9, 2, 5, 5, 0))]
    assert victim(sequences, alive(1, 1, 1, 1, 1), "priority") == 3
    assert victim(sequences, alive(1, 1, 1, 0, 1), "priority") == 2
    assert victim(sequences, alive(1, 1, 0, 0, 1), "priority") == 1


def test_the_oldest_alone_has_no_victim() -> None:
    with pytest.raises(AssertionError):
        victim([sequence(0)], alive(1), "fcfs")


@pytest.mark.parametrize(
    ("wanted", "budget", "dealt"),
    [
        ((1, 1, 5), UNLIMITED, [1, 1, 5]),
        ((1, 1, 5), 7, [1, 1, 5]),
        ((1, 1, 5), 4, [1, 1, 2]),
        ((1, 1, 5), 1, [1, 0, 0]),
        ((3, 2, 1), 4, [3, 1, 0]),
        ((3, 2, 1), 0, [0, 0, 0]),
    ],
)
def test_a_budget_is_dealt_out_in_order(wanted: tuple[int, ...], budget: int, dealt: list[int]) -> None:
    result = deal(np.array(wanted, np.intp), budget)
    assert result.tolist() == dealt and result.dtype == np.intp
