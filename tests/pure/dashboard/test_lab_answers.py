"""Answers by real worker processes: the article's figures, early lines, the latest question, bounds."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from octavo.dashboard.lab_answers import Answers
from octavo.dashboard.lab_errors import LabError
from octavo.dashboard.lab_processes import WAITING_MAX, Processes
from octavo.dashboard.lab_settings import LabSettings, settings_of
from octavo.simulation import article

Line = dict[str, Any]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def lines_of(answers: Answers, settings: LabSettings, page: str = "page") -> list[Line]:
    return [line async for line in answers.ask(settings, page)]


def complete(lines: list[Line]) -> dict[str, Line]:
    return {line["policy"]: line for line in lines if line["complete"]}


def test_the_three_answers_are_the_articles_runs() -> None:
    async def main() -> None:
        processes = Processes()
        answers = Answers(processes)
        found = complete(await lines_of(answers, settings_of({})))
        assert found.keys() == {"reserved", "oracle", "paged"}
        for policy, name in (("reserved", "contiguous_2048"), ("paged", "paged")):
            figures, line = article.run(article.RUNS[name]), found[policy]
            assert line["tokens_per_step"] == figures.tokens_per_step
            assert line["effective"] == pytest.approx(figures.effective)
            assert line["empty_mib"] == pytest.approx(figures.held_and_empty_mib)
            assert line["preemptions"] == figures.preemptions
            assert line["discarded_tokens"] == figures.discarded_tokens
            assert line["blocked_steps"] == figures.blocked_steps
        assert found["paged"]["slowed_tokens_per_step"] == pytest.approx(
            0.77 * found["paged"]["tokens_per_step"]
        )
        assert found["paged"]["table_mib"] == 1.25
        assert "external fragmentation" in found["reserved"]["first_blocked"]

        # What was run is known; controls that change no run are applied to it.
        began = processes.watching._process
        again = await lines_of(answers, settings_of({"kernel_penalty": 50}))
        assert [line["complete"] for line in again] == [True] * 3
        assert complete(again)["paged"]["slowed_tokens_per_step"] == found["paged"]["tokens_per_step"] / 2
        assert began is None, "nothing is watched, so nothing was started for it"
        await processes.close()

    run(main())


def test_a_long_run_is_told_early_and_then_whole() -> None:
    async def main() -> None:
        processes = Processes()
        lines = await lines_of(Answers(processes), settings_of({"share": True, "block_size": 4}))
        paged = [line for line in lines if line["policy"] == "paged"]
        assert len(paged) > 1
        assert [line["complete"] for line in paged] == [False] * (len(paged) - 1) + [True]
        assert paged[0]["steps"] < article.STEPS
        assert paged[0]["tokens_per_step"] == pytest.approx(paged[-1]["tokens_per_step"], rel=0.2)
        assert paged[-1]["shared_tokens"] == 1000
        await processes.close()

    run(main())


def test_the_latest_question_of_a_page_wins_and_frees_the_workers() -> None:
    async def main() -> None:
        processes = Processes()
        answers = Answers(processes)
        slow = asyncio.create_task(lines_of(answers, settings_of({"share": True, "block_size": 1})))
        await asyncio.sleep(1.0)
        began = time.monotonic()
        found = complete(await lines_of(answers, settings_of({})))
        assert found["paged"]["tokens_per_step"] == pytest.approx(95.7, abs=0.2)
        old = await slow
        assert "paged" not in complete(old), "the older question was not answered to its end"
        assert time.monotonic() - began < 20
        # Another page's questions go on.
        other = asyncio.create_task(lines_of(answers, settings_of({"seed": 3}), "other"))
        await lines_of(answers, settings_of({"seed": 4}))
        assert complete(await other).keys() == {"reserved", "oracle", "paged"}
        await processes.close()

    run(main())


def test_a_worker_that_dies_is_told_and_started_again() -> None:
    async def main() -> None:
        processes = Processes()
        answers = Answers(processes)
        asking = asyncio.create_task(lines_of(answers, settings_of({"share": True, "block_size": 1})))
        await asyncio.sleep(1.0)
        for worker in processes._answering:
            if worker._process is not None:
                os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(LabError, match="has died"):
            await asking
        assert complete(await lines_of(answers, settings_of({}))).keys() == {"reserved", "oracle", "paged"}
        await processes.close()

    run(main())


def test_questions_are_bounded() -> None:
    async def main() -> None:
        processes = Processes()
        answers = Answers(processes)
        questions = [
            asyncio.create_task(lines_of(answers, settings_of({"seed": seed}), f"page {seed}"))
            for seed in range(WAITING_MAX)
        ]
        _, waiting = await asyncio.wait(questions, return_when=asyncio.FIRST_EXCEPTION)
        refused = [one.exception() for one in questions if one.done()]
        assert waiting, "those that found room are answered"
        assert all(isinstance(error, LabError) and error.status == 429 for error in refused)
        for question in waiting:
            question.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        # Whoever does not wait any more is in nobody's way.
        assert len(await lines_of(answers, settings_of({}))) >= 3
        await processes.close()

    run(main())


def test_workers_run_at_low_priority_and_end_with_their_server() -> None:
    async def main() -> int:
        processes = Processes()
        await lines_of(Answers(processes), settings_of({"max_tokens": 300}))
        process = processes._answering[0]._process
        assert process is not None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        if hasattr(os, "SCHED_IDLE"):
            assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        await processes.close()
        return process.pid

    pid = run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
