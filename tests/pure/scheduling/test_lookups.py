"""Why blocks were not found, each reason from a run of the real scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.core.plan import FinishReason
from octavo.memory.lookup import Lookup, Miss
from scheduler_helpers import Bench


def bench(blocks: int = 100, **settings: object) -> Bench:
    return Bench(blocks, caching=True, length=2, **settings)  # type: ignore[arg-type]


def lookup_of(bench: Bench, name: str) -> Lookup:
    return bench.scheduler.allocator.lookups.recent[name]


def misses(bench: Bench, name: str) -> list[Miss]:
    return [Miss(miss) for miss in lookup_of(bench, name).misses.tolist()]


def counted(bench: Bench) -> dict[str, int]:
    totals = bench.scheduler.allocator.lookups.totals
    assert totals.hits + sum(totals.misses.values()) == totals.blocks
    return {reason: count for reason, count in totals.misses.items() if count}


def test_never_seen_and_then_found() -> None:
    b = bench()
    for name in ("first", "second"):
        b.add(name, 14)
        b.drain()
    assert misses(b, "first") == [Miss.NEVER_SEEN] * 3
    assert lookup_of(b, "second").hits == 3 and misses(b, "second") == []
    assert lookup_of(b, "second").tokens_below_block == 2
    assert counted(b) == {"never_seen": 3}


def test_a_prompt_shorter_than_a_block_looks_nothing_up() -> None:
    b = bench()
    b.add("short", 4)
    b.drain()
    assert lookup_of(b, "short").blocks == 0 and lookup_of(b, "short").tokens_below_block == 4
    assert b.scheduler.allocator.lookups.totals.tokens_below_block == 4 and counted(b) == {}


def test_evicted_when_for_whom_and_after_how_long() -> None:
    b = bench(blocks=6)
    b.add("old", range(100, 113))
    b.drain()
    ended = b.scheduler.allocator.lookups.step
    b.add("idle", range(1, 4))
    b.steps(2)
    b.drain()
    b.add("taker", range(200, 221))
    b.drain()
    b.add("again", range(100, 113))
    b.drain()
    lookup = lookup_of(b, "again")
    assert misses(b, "again")[-1] == Miss.EVICTED
    last = lookup.evictions[-1]
    assert last.taker == "taker" and last.taker_root == b""
    assert ended <= last.step < lookup.step and 0 < last.idle_steps <= last.step
    assert lookup.ever >= lookup.hits * 4 + 4, "a pool without limit would have had it"
    assert counted(b)["evicted"] == misses(b, "again").count(Miss.EVICTED)


def test_growth_evicts_for_the_row_that_grows() -> None:
    b = bench(blocks=8, rows=2)
    b.add("old", range(100, 113))
    b.drain()
    b.lengths |= {"a": 14, "b": 3}
    b.add("a", range(1, 5))
    b.add("b", range(300, 305))
    b.drain()
    b.add("again", range(100, 113))
    b.drain()
    takers = {eviction.taker for eviction in lookup_of(b, "again").evictions}
    assert "a" in takers


def test_a_long_past_is_unknown_and_not_made_up() -> None:
    b = bench(blocks=8)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 10_000, 21).tolist() for _ in range(60)]
    for i, prompt in enumerate([*prompts, prompts[0], rng.integers(1, 10_000, 21).tolist()]):
        b.add(f"{i}", prompt)
        b.drain()
    assert misses(b, "60") == [Miss.UNKNOWN] * 5, "evicted more evictions ago than there are ghosts"
    assert Miss.NEVER_SEEN in misses(b, "61"), "what was never seen is still known for sure"


def test_being_computed_by_another() -> None:
    b = bench(budget=8)
    b.add("first", 21)
    b.add("second", 21)
    b.steps(3)
    second = lookup_of(b, "second")
    assert second.hits == 4 and misses(b, "second") == [Miss.BEING_COMPUTED], (
        "four were published in the steps before"
    )
    assert second.computing == "first"
    b.drain()


def test_being_computed_in_the_same_step() -> None:
    b = bench()
    b.add("first", 13)
    b.add("second", [*range(1, 9), 50, 51, 52, 53, 54])
    b.add("third", [*range(1, 9), 50, 51, 52, 53, 54])
    b.drain()
    assert misses(b, "second") == [Miss.BEING_COMPUTED] * 2 + [Miss.NEVER_SEEN]
    assert misses(b, "third")[:2] == [Miss.BEING_COMPUTED] * 2 and lookup_of(b, "third").computing == "first"


@pytest.mark.parametrize("end", ["abort", "finish"])
def test_whoever_has_left_computes_nothing(end: str) -> None:
    b = bench(budget=8)
    b.add("first", 21)
    b.step()
    if end == "abort":
        b.scheduler.finish("first", FinishReason.ABORT)
    else:
        b.drain()
    b.add("second", 21)
    b.drain()
    assert lookup_of(b, "second").computing is None and Miss.BEING_COMPUTED not in misses(b, "second")


def test_another_salt() -> None:
    b = bench()
    b.add("open", 13)
    b.drain()
    b.add("salted", 13, salt="mine")
    b.drain()
    b.add("other", 13, salt="yours")
    b.drain()
    b.add("late", range(300, 313), salt="mine")
    b.drain()
    b.add("late open", range(300, 313))
    b.drain()
    assert misses(b, "salted") == [Miss.OTHER_SALT] * 3
    assert misses(b, "other") == [Miss.OTHER_SALT] * 3, "the open one may be told"
    assert misses(b, "late open") == [Miss.FOREIGN_SALT] * 3
    assert counted(b) == {"never_seen": 6, "other_salt": 9}


def test_where_tenants_are_apart_other_salts_are_not_even_looked_at() -> None:
    b = bench()
    b.scheduler.allocator.lookups.across_salts = False
    for name, salt in (("a", "mine"), ("b", "yours"), ("c", None)):
        b.add(name, 13, salt=salt)
        b.drain()
        assert misses(b, name) == [Miss.NEVER_SEEN] * 3
    assert counted(b) == {"never_seen": 9}


def test_behind_a_miss() -> None:
    b = bench(blocks=9, rows=2, budget=8)
    b.lengths |= {"first": 2, "second": 12}
    b.add("first", 6)  # publishes the first block
    b.add("second", 13)  # computes it in the same step and publishes those behind it
    b.drain()
    b.add("other", range(500, 520))  # evicts what was released first
    b.drain()
    b.add("again", 13)
    b.drain()
    fates = misses(b, "again")
    assert lookup_of(b, "again").hits == 0 and Miss.BEHIND_A_MISS in fates and fates[0] == Miss.EVICTED


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"caching": False}, "caching_disabled"),
        ({"caching": False, "allocator": "reserved"}, "contiguous"),
        ({"caching": True}, "prompt_logprobs"),
    ],
)
def test_not_looked_up(settings: dict[str, object], why: str) -> None:
    b = Bench(100, length=2, **settings)  # type: ignore[arg-type]
    b.add("a", 13, 5, prompt_logprobs=0 if why == "prompt_logprobs" else None)
    b.drain()
    assert lookup_of(b, "a").unasked == why
    assert counted(b) == {"not_looked_up": 3}


def test_a_reset_has_no_taker() -> None:
    b = bench()
    b.add("a", 13)
    b.drain()
    b.scheduler.allocator.reset_cache()
    b.add("again", 13)
    b.drain()
    assert [one.taker for one in lookup_of(b, "again").evictions] == [None] * 3


def test_a_preempted_prompt_counts_once() -> None:
    b = bench(blocks=7, rows=3)
    b.lengths |= {"a": 12, "b": 12}
    b.add("a", 9)
    b.add("b", range(100, 109))
    records = b.drain()
    assert any(type(event).__name__ == "Preempted" for record in records for event in record.events)
    assert b.scheduler.allocator.lookups.totals.blocks == 4


def test_three_hit_rates() -> None:
    b = bench(blocks=8)
    b.add("a", range(1, 15))
    b.drain()
    b.add("noise", range(500, 525))
    b.drain()
    b.add("b", [*range(1, 11), 70, 71, 72, 73])  # ten tokens in common: two blocks of four and two tokens
    b.drain()
    lookup = lookup_of(b, "b")
    assert lookup.hits < 2 and lookup.ever == 8 and lookup.ever_by_token == 10
    totals = b.scheduler.allocator.lookups.totals
    assert totals.rates() == (lookup.hits * 4 / 53, 8 / 53, 10 / 53)


def test_a_conversation_goes_on_behind_the_last_full_block_of_the_answer() -> None:
    b = bench()
    b.lengths["turn 1"] = 5
    b.add("turn 1", 8)
    records = b.drain()
    answer = [int(token) for record in records for token in record.result.token_ids]
    b.add("turn 2", [*range(1, 9), *answer, 900, 901])
    b.drain()
    lookup = lookup_of(b, "turn 2")
    assert lookup.hits == 3, "8 tokens of the prompt, and 4 of the answer, the last of which was not computed"
    assert lookup.ever_by_token == 12
    b.lengths["turn 3"] = 4
    b.add("turn 3", [*range(1, 9), *answer[:2], 800, 801, 802])
    b.drain()
    assert lookup_of(b, "turn 3").hits == 2 and lookup_of(b, "turn 3").ever_by_token == 10


def test_memory_is_bounded() -> None:
    from octavo.memory.lookups import RECENT_MAX

    b = bench(blocks=30)
    for i in range(RECENT_MAX + 50):
        b.add(f"{i}", [i + 1] * 6, 1, salt=f"{i}" if i % 2 else None)
        b.step()
    lookups = b.scheduler.allocator.lookups
    assert len(lookups.recent) == RECENT_MAX and "0" not in lookups.recent
    assert (
        len(lookups._salted) <= 60 and len(lookups._fresh) <= 64 + 2 * 4 + 1 and lookups._lost_names <= 1025
    )
