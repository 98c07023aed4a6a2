"""``octavo simulate --sweep``."""

from __future__ import annotations

import csv
from pathlib import Path

from simulate_helpers import ARTICLE, SMALL, WORK, Simulate


def test_a_sweep_runs_every_combination(simulate: Simulate, tmp_path: Path) -> None:
    flags = (*SMALL, *WORK, "--csv", str(tmp_path / "sweep.csv"), "--sweep", "max-num-seqs=2,8")
    runs = simulate(*flags, "enable-prefix-caching=true,false", "--jobs", "2", "--json").json["sweep"]
    assert [run["settings"] for run in runs] == [
        {"max-num-seqs": seqs, "enable-prefix-caching": caching}
        for seqs in (2, 8)
        for caching in (True, False)
    ]
    alone = simulate(*SMALL, *WORK, "--max-num-seqs", "2", "--json").json
    del alone["series"]
    assert runs[0]["report"] == alone
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [row["max-num-seqs"] for row in csv.DictReader(file)] == ["2", "2", "8", "8"]


def test_a_sweep_of_the_article(simulate: Simulate) -> None:
    done = simulate(*ARTICLE, "--sweep", "block-size=16,256", "--jobs", "1")
    header, *rows = done.out.splitlines()
    assert header.split()[:2] == ["block-size", "tokens/step"]
    assert [row.split()[0] for row in rows] == ["16", "256"]
