"""The walk: each stop is what really happened, the story is the same every time, and the written one is not stale."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from octavo.dashboard.walk import SIZE, Walk, stops
from octavo.dashboard.walk_pool import CACHE, SPEC
from octavo.dashboard.walk_text import text
from octavo.memory import sizing
from octavo.scheduling.audit import audit

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def walk() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stops()["stops"]
    return found


def stop(walk: list[dict[str, Any]], word: str) -> dict[str, Any]:
    (found,) = [one for one in walk if word in one["title"]]
    return found


def test_the_written_walk_is_the_played_one() -> None:
    written = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
    assert written == text(), "run `python -m octavo.dashboard.walk_text docs/walkthrough.md`"


def test_the_story_is_the_same_every_time() -> None:
    assert Walk().stops() == Walk().stops()


def test_it_goes_from_admission_to_eviction(walk: list[dict[str, Any]]) -> None:
    wanted = ("Admitted", "Forked", "Copied", "Preempted", "Resumed", "Finished", "Evicted")
    lines = [line for one in walk for line in one["events"]]
    first = [next(i for i, line in enumerate(lines) if line.startswith(word)) for word in wanted[:5]]
    assert first == sorted(first)
    assert all(any(line.startswith(word) for line in lines) for word in wanted)
    assert 9 <= len(walk) <= 12
    assert [one["step"] for one in walk] == sorted(one["step"] for one in walk)


def test_memory_and_scheduler_are_sound_at_every_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    tell = Walk._stop

    def audited(self: Walk, title: str, *rest: Any) -> Any:
        audit(self._pool.scheduler)
        seen.append(title)
        return tell(self, title, *rest)

    monkeypatch.setattr(Walk, "_stop", audited)
    Walk().stops()
    assert len(seen) == len(stops()["stops"])


def test_every_map_adds_up(walk: list[dict[str, Any]]) -> None:
    for one in walk:
        states = [cell["state"] for cell in one["cells"]]
        assert len(states) == CACHE.num_blocks == one["pool"]["total"]
        for state in ("live", "cached", "free"):
            assert states.count(state) == one["pool"][state], one["title"]
        for row in one["requests"]:
            assert all(row["id"] in one["cells"][block]["holders"] for block in row["blocks"])
            assert len(row["blocks"]) == sizing.blocks_for(row["tokens"], SIZE)
        assert set(one["blocks"]) <= set(range(CACHE.num_blocks))


def test_each_formula_is_right(walk: list[dict[str, Any]]) -> None:
    """The expressions are texts for readers; here they are computed again."""
    for one in walk:
        formula = one["formula"]
        number = float(re.match(r"[\d,]+", formula["result"])[0].replace(",", ""))  # type: ignore[index]
        expression = re.sub(r"[a-z]", "", formula["expression"])
        ceiling = "⌈" in expression
        for sign, python in (("×", "*"), ("⌈", "("), ("⌉", ")"), (",", "")):
            expression = expression.replace(sign, python)
        value = eval(expression)
        if "%" in formula["result"]:
            value = round(100 * value)
        assert number == (-(-value // 1) if ceiling else value), one["title"]
    assert walk[0]["formula"]["result"] == f"{sizing.block_bytes(SPEC, SIZE):,} bytes"


def test_a_shared_block_has_two_holders_and_a_copied_one_has_one(walk: list[dict[str, Any]]) -> None:
    shared = stop(walk, "shares the prefix")
    assert [len(shared["cells"][block]["holders"]) for block in shared["blocks"]] == [3, 3, 2]
    copied = stop(walk, "copies it")
    assert [len(copied["cells"][block]["holders"]) for block in copied["blocks"]] == [1, 1]


def test_the_victims_blocks_are_cached_and_then_found(walk: list[dict[str, Any]]) -> None:
    full, preempted = stop(walk, "pool is full"), stop(walk, "give way")
    recomputed = stop(walk, "computed again")
    assert full["pool"]["live"] == CACHE.num_blocks
    assert preempted["waiting"] == ("C",)
    cached = {i for i, cell in enumerate(preempted["cells"]) if cell["state"] == "cached"}
    (victim,) = [row for row in recomputed["requests"] if row["id"] == "C"]
    assert cached & set(victim["blocks"]), "nothing of what it had was found again"


def test_cached_blocks_are_hit_and_evicted(walk: list[dict[str, Any]]) -> None:
    cached, hit, evicted = stop(walk, "turn cached"), stop(walk, "finds them"), stop(walk, "needs the room")
    assert all(cached["cells"][block]["state"] == "cached" for block in cached["blocks"])
    assert set(hit["blocks"]) <= set(cached["blocks"])
    assert all(hit["cells"][block]["holders"] == ["D"] for block in hit["blocks"])
    assert all(evicted["cells"][block]["holders"] == ["E"] for block in evicted["blocks"])
