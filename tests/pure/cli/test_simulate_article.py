"""The article's experiment through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from simulate_helpers import ARTICLE, Simulate


@pytest.fixture(scope="module")
def article() -> dict[tuple[str, str], dict[str, Any]]:
    code = "import sys; from octavo.cli.main import main; sys.argv = ['octavo', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, "simulate", "--preset", "article", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    rows = json.loads(done.stdout)["rows"]
    assert all(set(row) == {"name", "figure", "article", "octavo", "sd"} for row in rows)
    return {(row["name"], row["figure"]): row for row in rows}


NAMES = {
    "contiguous_2048", "contiguous_16384", "contiguous_256", "paged", "paged_block_256", "shared",
    "shared_block_256", "oracle_spread_100", "oracle_spread_0", "paged_spread_0",
}  # fmt: skip
FIGURES = {
    "tokens_per_step", "effective", "sequences", "preemptions", "discarded_tokens", "held_and_empty_mib",
    "blocked_steps", "block_table_mib", "penalised_tokens_per_step",
}  # fmt: skip


def test_the_table_names_every_run_and_figure(article: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert {name for name, _ in article} == NAMES
    assert {figure for _, figure in article} == FIGURES


def test_the_articles_figures_hold(article: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (name, figure), row in article.items():
        if figure in ("tokens_per_step", "penalised_tokens_per_step"):
            assert row["octavo"] == pytest.approx(row["article"], rel=0.025), (name, figure)
        elif figure == "effective":
            assert row["octavo"] == pytest.approx(row["article"], abs=1.5), (name, figure)
    value = {key: row["octavo"] for key, row in article.items()}
    assert value["paged", "held_and_empty_mib"] == pytest.approx(101, rel=0.03)
    assert value["paged", "block_table_mib"] == 1.25
    assert 35 <= value["paged", "preemptions"] <= 60
    assert 90 <= value["paged", "discarded_tokens"] <= 190
    assert 65 <= value["paged_spread_0", "preemptions"] <= 110
    assert 4_000 <= value["paged_spread_0", "discarded_tokens"] <= 7_000
    assert 2_900 <= value["oracle_spread_100", "blocked_steps"] <= 3_000


def test_a_control_of_the_article_runs_one_setting(simulate: Simulate) -> None:
    one = simulate(*ARTICLE, "--allocator", "oracle", "--spread", "100", "--seed", "7", "--json").json
    assert one["settings"]["allocator"] == "oracle"
    assert (one["settings"]["spread"], one["settings"]["seed"]) == (100, 7)
    assert (one["settings"]["steps"], one["settings"]["warmup_steps"]) == (300, 100)
    assert set(one["figures"]) >= FIGURES
    first = one["first_blocked"]
    assert first["largest_run"] < first["slots_needed"] <= first["slots_free"]


def test_pow2_is_reserved_rounded_up(simulate: Simulate) -> None:
    pow2 = simulate(*ARTICLE, "--allocator", "pow2", "--json").json
    rounded = simulate(*ARTICLE, "--allocator", "reserved", "--round-up", "--json").json
    plain = simulate(*ARTICLE, "--allocator", "reserved", "--json").json
    assert pow2["figures"] == rounded["figures"] != plain["figures"]


def test_the_kernel_penalty_is_what_was_asked_for(simulate: Simulate) -> None:
    figures = simulate(*ARTICLE, "--kernel-penalty", "50", "--json").json["figures"]
    assert figures["penalised_tokens_per_step"] == pytest.approx(figures["tokens_per_step"] / 2)


def test_the_articles_log(simulate: Simulate) -> None:
    done = simulate(*ARTICLE, "--allocator", "oracle", "--log")
    lines = done.out.splitlines()
    assert lines[0].startswith("step 0: Admitted 1: ")
    blocked = [line for line in lines if "Blocked" in line]
    assert len(blocked) == 1, "the first one, and then the count"
    assert all(word in blocked[0] for word in ("needs", "are free in", "runs", "the largest"))
    everything = simulate(*ARTICLE, "--allocator", "oracle", "--log=all").out
    blocks = everything.count("Blocked")
    assert blocks > 1
    assert f"{blocks:,} steps blocked by external fragmentation" in done.out
    assert "Finished" in everything and "Finished" not in done.out


def test_the_log_of_preemptions(simulate: Simulate) -> None:
    done = simulate(*ARTICLE, "--spread", "0", "--log", "--json")
    assert done.json["figures"]["preemptions"] > 0, "JSON alone on standard output, the log on the other"
    told = [line for line in done.err.splitlines() if "Preempted" in line]
    assert told
    assert all("needed a block" in line and "discarded" in line for line in told)
