"""The rows of beam searches: survivors' tokens, forks, releases. ``BeamSearch`` decides, this carries it out.

``decide`` belongs to applying a result; ``carry_out`` comes first in the next plan, because until then whoever hears of
a step may read its block table.

The rows of one search stand side by side among the running ones and are served together or not at all. The *leader*,
the sequence that was queued, computes the prompt; the other rows come from those that were kept free for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.core.events import BeamsDecided, Forked
from octavo.core.plan import Candidates, FinishReason, RowStart
from octavo.memory import HashChain
from octavo.scheduling.beam_search import Survivor
from octavo.scheduling.ledger import Ledger
from octavo.scheduling.sequence import Sequence


def decide(ledger: Ledger, leader: Sequence, candidates: Mapping[int, Candidates]) -> None:
    """Take a search one token further: every row of it was in the step, and its newest token there is a placeholder."""
    beams, group = leader.beams, leader.group
    assert beams is not None and group is not None
    group.measure(ledger.allocator.table)
    rows, prompt = beams.rows, leader.prompt_tokens
    at = prompt + beams.search.length
    survivors = beams.search.advance(
        [candidates[row] for row in rows], lambda place: ledger.tokens[rows[place], prompt:at]
    )
    if survivors:
        ledger.moves.append((leader, survivors))
        return
    answers = beams.search.answers(leader.request.sampling.n)
    ledger.events.append(BeamsDecided(leader.request_id, answers))
    reason = FinishReason.STOP if answers[0].stopped else FinishReason.LENGTH
    ledger.end({ledger.running.sequences.index(leader): reason})


def carry_out(ledger: Ledger) -> None:
    """Bring rows, blocks and tokens to what the searches decided."""
    for leader, survivors in ledger.moves:
        _move(ledger, leader, survivors)
    ledger.moves.clear()


def _move(ledger: Ledger, leader: Sequence, survivors: list[Survivor]) -> None:
    beams = leader.beams
    assert beams is not None
    rows, prompt = beams.rows, leader.prompt_tokens
    at = prompt + beams.search.length - 1
    parents = [rows[survivor.parent] for survivor in survivors]
    dead = [row for row in rows if row not in parents]
    beams.rows = _places(ledger, leader, parents, dead)
    for row, parent in zip(beams.rows, parents, strict=True):
        if row != parent:
            _fork(ledger, leader, parent, row, at)
    where = _positions(ledger)
    for row, parent, survivor in zip(beams.rows, parents, survivors, strict=True):
        ledger.tokens[row, at] = survivor.token
        ledger.running.newest[where[row]] = survivor.token
        if row != parent:
            output = ledger.tokens[row, prompt : at + 1].copy()
            ledger.started.append(RowStart(row, leader.request, output, at))


def _places(ledger: Ledger, leader: Sequence, parents: list[int], dead: list[int]) -> list[int]:
    """The row of each survivor: the first one of a parent stays in its row, the others take over dead or free ones.

    Dead rows are given up; those that nobody takes leave the running ones.
    """
    beams = leader.beams
    assert beams is not None
    missing = len(parents) - len(set(parents))
    for row in dead:
        ledger.allocator.release(row)
    reused, unused = dead[:missing], dead[missing:]
    ledger.ended += reused
    fresh = [ledger.free_rows.pop() for _ in range(missing - len(reused))]
    if unused:
        _drop(ledger, leader, unused)
    if fresh:
        _insert(ledger, leader, fresh, like=parents[0])
    taken: set[int] = set()
    places = []
    spare = iter([*reused, *fresh])
    for parent in parents:
        places.append(next(spare) if parent in taken else parent)
        taken.add(parent)
    return places


def _drop(ledger: Ledger, leader: Sequence, unused: list[int]) -> None:
    """Rows that were released and that no beam needs now. They stay kept for the search."""
    running, where = ledger.running, _positions(ledger)
    assert leader.group is not None and leader.beams is not None
    gone = [where[row] for row in unused]
    place = running.sequences.index(leader)
    if place in gone:  # the leader stands for the search as long as it lasts
        other = next(where[row] for row in leader.beams.rows if row not in unused)
        follower = running.sequences[other]
        follower.chain, leader.chain = leader.chain, follower.chain
        running.sequences[place], running.sequences[other] = follower, leader
    for row in unused:
        leader.group.rows.discard(row)
        ledger.vacate(row)
    running.remove(gone)


def _insert(ledger: Ledger, leader: Sequence, fresh: list[int], like: int) -> None:
    """Rows for more beams, behind those of the search. ``like``: a row of it."""
    running = ledger.running
    assert leader.group is not None
    mine = _positions(ledger)
    behind = max(i for i, sequence in enumerate(running.sequences) if sequence.beams is leader.beams) + 1
    position = mine[like]
    computed, known = int(running.computed[position]), int(running.known[position])
    for offset, row in enumerate(fresh):
        chain = HashChain(leader.request.cache_salt)
        follower = Sequence(leader.request, leader.arrival, leader.limit, chain, leader.group)
        follower.beams = leader.beams
        running.insert(behind + offset, follower, row, computed, known, int(running.slots[position]))
        leader.group.rows.add(row)


def _fork(ledger: Ledger, leader: Sequence, parent: int, row: int, computed: int) -> None:
    """An emptied row becomes another copy of its parent."""
    running, allocator, where = ledger.running, ledger.allocator, _positions(ledger)
    allocator.fork(parent, row)
    ledger.tokens[row, :computed] = ledger.tokens[parent, :computed]
    running.slots[where[row]] = running.slots[where[parent]]
    running.sequences[where[row]].chain.digests = running.sequences[where[parent]].chain.digests.copy()
    blocks = int(allocator.table.num_blocks[row])
    ledger.events.append(Forked(leader.request_id, leader.request_id, row, computed, blocks))


def _positions(ledger: Ledger) -> dict[int, int]:
    running = ledger.running
    return {row: position for position, row in enumerate(running.row[: running.count].tolist())}
