"""Near misses: prompts that hold the same text, but behind a part that differs, so that no block of it is shared.

A timestamp or a user's name at the front of a system prompt makes every block behind it another one. Such prompts are
found by *anchors*: windows of tokens chosen by their hash alone, so that the same text has the same anchors wherever it
stands. The first prompt with an anchor leads the group of those that have it, too, in another place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.telemetry.prompts import Prompt, common_prefix, ever_found

WINDOW = 16
"""Tokens of an anchor."""
ANCHORS_EACH = 8
"""One window in so many is an anchor."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Member:
    """A prompt that is like its group's leader, then differs, then is like it again."""

    prompt: Prompt
    front: int
    """Leading tokens that are alike."""
    start: int
    """Where it is like the leader again: its tokens from ``front`` to here are what differs."""
    leader_start: int
    """The same place in the leader."""
    length: int
    """Tokens that are alike from there on."""

    def moved(self) -> Prompt:
        """The prompt with what differs at its end."""
        return _moved(self.prompt, self.front, self.start)


@dataclass(frozen=True, slots=True)
class Group:
    leader: Prompt
    members: tuple[Member, ...]
    """In their order of arrival, without the leader."""
    tokens: int
    """Of all their prompts."""
    before: int
    """Of these, tokens that they could find of each other, in whole blocks, were nothing forgotten."""
    after: int
    """The same with what differs moved to the end of each."""

    @property
    def typical(self) -> Member:
        """One of those that differ from the leader in the place in which most of them do."""
        places = Counter((one.front, one.leader_start) for one in self.members)
        place = places.most_common(1)[0][0]
        return next(one for one in self.members if (one.front, one.leader_start) == place)


def near_misses(prompts: Sequence[Prompt], block_size: int) -> list[Group]:
    """Groups of at least two prompts, the one that would gain the most first; none that would gain nothing."""
    known: dict[tuple[str | None, int], tuple[int, int]] = {}
    members: dict[int, list[Member]] = {}
    found = ever_found(prompts, block_size)
    for number, (prompt, (_, by_token)) in enumerate(zip(prompts, found, strict=True)):
        places, hashes = anchors(prompt.tokens)
        member = None
        for place, anchor in zip(places, hashes, strict=True):
            first = known.setdefault((prompt.salt, anchor), (number, place))
            if member is None and first[0] != number and place >= by_token:
                member = _align(prompt, place, prompts[first[0]], first[1], block_size)
                if member is not None:
                    members.setdefault(first[0], []).append(member)
    groups = [_group(prompts[leader], those, block_size) for leader, those in members.items()]
    return sorted((one for one in groups if one.after > one.before), key=lambda one: one.before - one.after)


def anchors(tokens: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """(places, hashes) of the windows that are anchors, in order."""
    count = len(tokens) - WINDOW + 1
    if count < 1:
        return [], []
    values = tokens.astype(np.uint64)
    hashes = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(WINDOW):
            hashes = hashes * _FACTOR + values[i : i + count] + np.uint64(1)
        hashes ^= hashes >> np.uint64(29)
        hashes *= _FACTOR
    places = np.flatnonzero((hashes >> np.uint64(40)) % np.uint64(ANCHORS_EACH) == 0)
    return places.tolist(), hashes[places].tolist()


def _align(prompt: Prompt, place: int, leader: Prompt, there: int, block_size: int) -> Member | None:
    """The member that this prompt is by an anchor at ``place`` here and ``there``; None if it gains nothing by it."""
    mine, theirs = prompt.tokens, leader.tokens
    front = common_prefix(mine, theirs)
    back = min(place, there) - front
    if back <= 0 or (mine[place : place + WINDOW] != theirs[there : there + WINDOW]).any():
        return None  # it is alike from the front, or another window with the same hash
    alike = common_prefix(mine[place - back : place][::-1], theirs[there - back : there][::-1])
    start, leader_start = place - alike, there - alike
    length = common_prefix(mine[start:], theirs[leader_start:])
    if length < block_size or length < start - front:
        return None
    return Member(prompt, front, start, leader_start, length)


def _group(leader: Prompt, members: list[Member], block_size: int) -> Group:
    members = _agreed(members)
    group = Group(leader, tuple(members), 0, 0, 0)
    typical = group.typical
    now = [leader, *(one.prompt for one in members)]
    then = [_moved(leader, typical.front, typical.leader_start), *(one.moved() for one in members)]
    before, after = (sum(blocks for blocks, _ in ever_found(those, block_size)) for those in (now, then))
    return replace(group, tokens=sum(len(one.tokens) for one in now), before=before, after=after)


def _agreed(members: list[Member]) -> list[Member]:
    """The same with one place in which nearly all of them differ: by chance some are like the leader for a few tokens
    longer, as two timestamps of the same hour are, or again a few tokens earlier."""
    strays = len(members) // 10
    front = sorted(one.front for one in members)[strays]
    leader_start = sorted(one.leader_start for one in members)[-1 - strays]
    agreed = []
    for one in members:
        later = max(0, leader_start - one.leader_start)
        if one.front < front or later >= one.length:
            agreed.append(one)
            continue
        start, length = one.start + later, one.length - later
        agreed.append(Member(one.prompt, front, start, one.leader_start + later, length))
    return agreed


def _moved(prompt: Prompt, front: int, start: int) -> Prompt:
    tokens = prompt.tokens
    moved = np.concatenate((tokens[:front], tokens[start:], tokens[front:start]))
    return Prompt(prompt.request_id, moved, prompt.salt)
