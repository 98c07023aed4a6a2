"""Recounts the scheduler's state and its memory; AssertionError on any difference. Slow on purpose: for tests."""

from __future__ import annotations

import numpy as np

from octavo.memory.audit import audit as audit_memory
from octavo.scheduling.scheduler import Scheduler


def audit(scheduler: Scheduler) -> None:
    """To be called between ``apply`` and the next ``plan``, and between ``plan`` and ``apply``."""
    running = scheduler.running
    count = running.count
    rows = running.row[:count]
    assert len(set(rows.tolist())) == count, "two sequences share a row"
    assert len(running.sequences) == len(running.ids) == count
    assert running.rows().tolist() == rows.tolist() and running.request_ids() == tuple(running.ids)
    known, computed = running.known[:count], running.computed[:count]
    forked = set(scheduler.forking)
    ahead = np.array([row in forked for row in rows.tolist()], np.intp)
    assert (computed < known + ahead).all(), "a sequence has computed what it does not know"
    assert (known <= running.limit[:count]).all(), "a sequence ran past its end"
    slots = scheduler.allocator.table.num_blocks[rows] * scheduler.allocator.block_size
    assert (running.slots[:count] == slots).all(), "slots are miscounted"
    assert running.backlog == int((known - computed).sum()), "known minus computed is miscounted"
    assert running.written == int(computed.sum()), "the written tokens are miscounted"
    for i, sequence in enumerate(running.sequences):
        prompt = sequence.request.prompt_token_ids
        tokens = scheduler.tokens[rows[i], : known[i]]
        assert not sequence.queued and sequence.leader is None and running.ids[i] == sequence.request_id
        assert (tokens[: len(prompt)] == prompt).all(), "a prompt was overwritten"
        assert tokens[-1] == running.newest[i], "the newest token is another one"
    _audit_groups(scheduler)
    _audit_swapped(scheduler)
    written = dict(zip(rows.tolist(), computed.tolist(), strict=True))
    audit_memory(scheduler.allocator, written, _covered(scheduler))


def _covered(scheduler: Scheduler) -> dict[int, int] | None:
    """Tokens of each row that have keys and values, or get them in the plan that is running.

    None once a block of the second tier was damaged: whoever computes it again keeps those behind it.
    """
    running, count = scheduler.running, scheduler.running.count
    if scheduler.allocator.offload.totals.damaged:
        return None
    tokens = running.computed[:count].copy()
    if scheduler.in_flight:
        tokens += running.scheduled[:count]
    return dict(zip(running.row[:count].tolist(), tokens.tolist(), strict=True))


def _audit_swapped(scheduler: Scheduler) -> None:
    """Every held block of the second tier has one sequence that waits for it, or whose row it is being copied to."""
    waiting, offload = scheduler.waiting.first(len(scheduler.waiting)), scheduler.allocator.offload
    found = [one.claim.swapped for one in waiting] + [one.swapped for one in offload.loading.values()]
    held = [block for swapped in found if swapped is not None for block in swapped.blocks]
    assert len(set(held)) == len(held), "two sequences wait for the same block"
    assert set(held) == offload.tier.held, "a block of the tier is held and nobody waits for it"
    for sequence in waiting:
        if (swapped := sequence.claim.swapped) is not None:
            assert 0 < swapped.tokens < len(sequence.token_ids), "a swapped sequence has a token to compute"


def _audit_groups(scheduler: Scheduler) -> None:
    running = scheduler.running
    held: dict[int, set[int]] = {}
    reserved = 0
    for i, sequence in enumerate(running.sequences):
        reserved += sequence.spare_rows if sequence.leads else 0
        if sequence.group is not None:
            held.setdefault(id(sequence.group), set()).add(int(running.row[i]))
            assert sequence.group.rows >= held[id(sequence.group)], "a group does not know one of its rows"
        assert all(other.leader is sequence for other in sequence.pending), "a fork waits for somebody else"
    groups = {id(sequence.group): sequence.group for sequence in running.sequences}
    for key, rows in held.items():
        group = groups[key]
        assert group is not None and group.rows == rows, "a group counts a row that it does not hold"
    for leader in (one for one in running.sequences if one.beams is not None and one.leads):
        beams, rows = leader.beams, held[id(leader.group)]
        assert beams is not None and sorted(beams.rows) == sorted(rows), "a search's places are not its rows"
        where = [i for i, one in enumerate(running.sequences) if one.beams is beams]
        assert where == list(range(where[0], where[0] + len(rows))), "a search's rows do not stand together"
        assert len(set(running.known[where].tolist())) == 1, "beams of different lengths"
    assert reserved == scheduler.rows_reserved, "the rows of those who will fork are miscounted"
    assert running.count + reserved <= scheduler.config.max_num_seqs, "more rows are promised than there are"
