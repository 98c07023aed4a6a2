"""Runs that are watched: the article's run step by step, two policies on the same requests, recordings, bounds."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab_recordings import CACHE, change_decision, enlarge_pool, write_recording
from octavo.core.errors import ConfigError
from octavo.dashboard import lab_session
from octavo.dashboard.lab_errors import LabError
from octavo.dashboard.lab_session import SESSIONS_MAX, Sessions, check_recording
from octavo.dashboard.lab_settings import LabSettings
from octavo.simulation import article


def open_session(sessions: Sessions, name: str = "one", **settings: Any) -> dict[str, Any]:
    return sessions.do({"do": "open", "session": name, "settings": asdict(LabSettings(**settings))})


def advance(sessions: Sessions, steps: int, name: str = "one", whole: bool = False) -> dict[str, Any]:
    return sessions.do({"do": "advance", "session": name, "steps": steps, "whole": whole})


def test_a_watched_run_is_the_articles_run() -> None:
    sessions = Sessions()
    opened = open_session(sessions)
    assert (opened["step"], opened["ended"]) == (0, False)
    assert [side["policy"] for side in opened["sides"]] == ["reserved", "paged"]
    assert [side["slots_per_cell"] for side in opened["sides"]] == [16, 1]
    for steps in (1, 10, 489):
        seen = advance(sessions, steps)
    assert seen["step"] == 500
    for side, name in zip(seen["sides"], ("contiguous_2048", "paged"), strict=True):
        run = article.run(
            article.ArticleSettings(**{**asdict(article.RUNS[name]), "steps": 500, "warmup_steps": 0})
        )
        so_far = side["so_far"]
        assert so_far["tokens_per_step"] == pytest.approx(run.tokens_per_step)
        assert so_far["effective"] == pytest.approx(run.effective)
        assert so_far["preemptions"] == run.preemptions
        assert so_far["discarded_tokens"] == run.discarded_tokens
        assert so_far["blocked_steps"] == run.blocked_steps


def test_both_sides_see_the_same_requests() -> None:
    sessions = Sessions()
    open_session(sessions, allocator="oracle", compare="paged")
    seen = advance(sessions, 1, whole=True)
    described = [
        {request["id"]: request["prompt"] for request in side["frame"]["requests"]} for side in seen["sides"]
    ]
    both = described[0].keys() & described[1].keys()
    assert len(both) > 100
    assert {name: described[0][name] for name in both} == {name: described[1][name] for name in both}


def test_a_run_ends_where_the_articles_does() -> None:
    sessions = Sessions()
    open_session(sessions, max_tokens=16_384, compare="none")
    for _ in range(6):
        seen = advance(sessions, 500)
    assert (seen["step"], seen["ended"]) == (3_000, False)
    seen = advance(sessions, 10)
    assert (seen["step"], seen["ended"]) == (3_000, True)
    assert seen["sides"][0]["now"]["sequences"] == 12


def test_a_request_that_stays_blocked_is_told_once() -> None:
    sessions = Sessions()
    open_session(sessions, allocator="oracle", compare="none", spread=100, round_up=False)
    told = [
        entry["request"]
        for _ in range(3)
        for entry in advance(sessions, 200)["sides"][0]["frame"]["log"]
        if entry["kind"] == "Blocked"
    ]
    assert told and all(a != b for a, b in pairwise(told))


def test_a_closed_run_says_so() -> None:
    sessions = Sessions()
    open_session(sessions)
    sessions.do({"do": "close", "session": "one"})
    with pytest.raises(LabError) as caught:
        advance(sessions, 1)
    assert (caught.value.status, caught.value.param) == (404, "session")


def test_runs_are_bounded_and_the_idle_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sessions = Sessions()
    for number in range(SESSIONS_MAX):
        open_session(sessions, str(number), compare="none")
        now += 0.1
    with pytest.raises(LabError) as caught:
        open_session(sessions, "one more", compare="none")
    assert caught.value.status == 429
    now += lab_session.YIELDS_S
    open_session(sessions, "one more", compare="none")
    with pytest.raises(LabError):  # the one that nobody had looked at for longest
        advance(sessions, 1, "0")
    advance(sessions, 1, "1")
    now += lab_session.IDLE_S + 1
    with pytest.raises(LabError):
        advance(sessions, 1, "1")


def test_a_recording_is_stepped_through(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    steps = write_recording(path)
    sessions = Sessions()
    opened = sessions.do({"do": "open", "session": "r", "recording": str(path)})
    assert opened["sides"][0]["frame"]["pool"]["total"] == CACHE.num_blocks
    kinds: set[str] = set()
    seen = advance(sessions, 1, "r")
    while not seen["ended"]:
        (side,) = seen["sides"]
        kinds |= {entry["kind"] for entry in side["frame"]["log"]}
        pool = side["frame"]["pool"]
        assert pool["live"] + pool["cached"] + pool["free"] == CACHE.num_blocks
        assert side["differences"] == []
        seen = advance(sessions, 7, "r")
    assert seen["step"] == steps
    assert {"Admitted", "Preempted", "Evicted"} <= kinds
    assert seen["sides"][0]["so_far"]["preemptions"] > 0


def test_a_decision_that_comes_out_otherwise_ends_the_replay_and_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_recording(path)
    change_decision(path, 20)
    sessions = Sessions()
    sessions.do({"do": "open", "session": "r", "recording": str(path)})
    seen = advance(sessions, 500, "r")
    assert seen["ended"] and seen["step"] <= 20
    assert "pool was" in seen["sides"][0]["differences"][0]


def test_a_damaged_line_is_named_when_it_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_recording(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:50], "{", *lines[51:]]))
    sessions = Sessions()
    sessions.do({"do": "open", "session": "r", "recording": str(path)})
    with pytest.raises(ConfigError, match="the recording:51: the line is not JSON") as caught:
        advance(sessions, 500, "r")
    assert caught.value.param == "recording" and str(tmp_path) not in caught.value.message


def test_a_file_that_is_no_recording_or_too_large_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(ConfigError, match="no recording"):
        check_recording(path)
    write_recording(path)
    enlarge_pool(path, 10**12)
    with pytest.raises(ConfigError, match="1,000,000,000,000 blocks; the lab draws at most 4,000,000"):
        check_recording(path)
