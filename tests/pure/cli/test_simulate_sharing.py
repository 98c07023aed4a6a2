"""The sharing preset through the command line."""

from __future__ import annotations

from pathlib import Path

from simulate_helpers import Simulate


def test_sharing(simulate: Simulate, tmp_path: Path) -> None:
    for name in ("sharegpt_single_turn.csv", "alpaca_5k_lengths.csv"):
        (tmp_path / name).write_text("prompt_tokens,output_tokens\n20,30\n40,60\n100,20\n")
    flags = ("--preset", "sharing", "--traces", str(tmp_path), "--jobs", "1", "--num-requests", "6")
    found = simulate(*flags, "--as-measured", "--json").json
    rows = {(row["dataset"], row["method"], row["sequences"]): row for row in found["rows"]}
    assert len(rows) == 12
    assert rows["alpaca", "beam", 4]["paper_percent_saved"] == 53.13
    assert rows["sharegpt", "parallel", 4]["paper_percent_saved"] is None
    for (_, method, width), row in rows.items():
        assert 0 < row["percent_saved"] < 100 * (1 - 1 / width), (method, width)
    text = simulate(*flags, "--as-measured").out
    assert "(6.09 %)" in text and "(55.16 %)" in text and "(30.5 %)" in text
