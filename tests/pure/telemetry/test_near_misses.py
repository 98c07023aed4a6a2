"""Prompts that nearly share a prefix, from token ids alone."""

from __future__ import annotations

import numpy as np

from octavo.telemetry.near_misses import anchors, near_misses
from octavo.telemetry.prompts import Prompt, ever_found

SIZE = 16
RNG = np.random.default_rng(3)
FRONT = RNG.integers(0, 5_000, 10)
SYSTEM = RNG.integers(0, 5_000, 300)


def prompt(name: str, *parts: object, salt: str | None = None) -> Prompt:
    return Prompt(name, np.concatenate([np.array(part) for part in parts]).astype(np.int32), salt)


def stamped(count: int, salt: str | None = None) -> list[Prompt]:
    """The same system prompt behind a number of three tokens that counts up, and a question of its own each."""
    questions = np.random.default_rng(4).integers(0, 5_000, (count, 20))
    return [
        prompt(f"{i}", FRONT, [7_000, 7_000 + i // 10, 7_000 + i % 10], SYSTEM, questions[i], salt=salt)
        for i in range(count)
    ]


def test_a_timestamp_at_the_front_is_found_with_its_place_and_its_price() -> None:
    prompts = stamped(30)
    (group,) = near_misses(prompts, SIZE)
    assert len(group.members) == 29 and group.leader is prompts[0]
    typical = group.typical
    assert typical.front in (11, 12) and typical.start == 13
    assert group.before == 0, "not even one block is shared: they differ within the first"
    shared = (10 + 300) // SIZE * SIZE
    assert 28 * shared <= group.after <= 30 * (shared + SIZE)
    moved = typical.moved().tokens.tolist()
    assert moved[10:12] == SYSTEM[:2].tolist() or moved[11:13] == SYSTEM[:2].tolist()
    assert sorted(moved) == sorted(typical.prompt.tokens.tolist()), "tokens are moved, not lost"


def test_the_gain_is_what_a_run_of_the_changed_prompts_finds() -> None:
    prompts = stamped(8)
    (group,) = near_misses(prompts, SIZE)
    front, start = group.typical.front, group.typical.start
    changed = [
        prompt(one.request_id, one.tokens[:front], one.tokens[start:], one.tokens[front:start])
        for one in prompts
    ]
    found = [blocks for blocks, _ in ever_found(changed, SIZE)]
    assert group.after == sum(found) and all(blocks >= 304 for blocks in found[1:])


def test_prompts_that_share_their_prefix_already_are_no_near_miss() -> None:
    questions = RNG.integers(0, 5_000, (10, 40))
    assert near_misses([prompt(f"{i}", SYSTEM, questions[i]) for i in range(10)], SIZE) == []


def test_strangers_are_no_near_miss() -> None:
    assert near_misses([prompt(f"{i}", RNG.integers(0, 5_000, 200)) for i in range(10)], SIZE) == []


def test_salts_are_never_compared() -> None:
    one, other = stamped(2)
    other.salt = "other"
    assert near_misses([one, other], SIZE) == []
    assert len(near_misses([*stamped(2), *stamped(2, "salt")], SIZE)) == 2


def test_short_prompts_have_no_anchor() -> None:
    assert anchors(np.arange(15, dtype=np.int32)) == ([], [])
    places, hashes = anchors(np.tile(RNG.integers(0, 5_000, 400), 2).astype(np.int32))
    by_place = dict(zip(places, hashes, strict=True))
    assert 20 < len(places) < 200
    assert all(by_place[place + 400] == by_place[place] for place in places if place <= 384), (
        "wherever the text stands"
    )


def test_a_cache_that_forgets_nothing_finds_answers_too() -> None:
    first = Prompt("1", np.arange(20, dtype=np.int32), None, output=[90, 91, 92, 93, 94, 95])
    second = prompt("2", range(20), [90, 91, 92, 93, 94, 95, 1, 2])
    shorter = prompt("3", range(20), [90, 91, 7])
    assert ever_found([first, second, shorter], 4) == [(0, 0), (24, 25), (20, 22)]
    assert ever_found([first, first], 4)[1] == (16, 19), "one token is always computed"
