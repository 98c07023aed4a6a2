"""The paper's baselines through the command line."""

from __future__ import annotations

from pathlib import Path

from simulate_helpers import Simulate


def test_orca(simulate: Simulate, tmp_path: Path) -> None:
    lengths = "prompt_tokens,output_tokens\n" + "".join(
        f"{20 + 37 * i % 400},{30 + 61 * i % 900}\n" for i in range(200)
    )
    (tmp_path / "sharegpt_single_turn.csv").write_text(lengths)
    (tmp_path / "a.csv").write_text("prompt_tokens,output_tokens\n" + "10,20\n30,90\n15,100\n12,30\n")
    flags = (
        "--preset",
        "orca",
        "--traces",
        str(tmp_path),
        "--alpaca",
        str(tmp_path / "a.csv"),
        "--jobs",
        "1",
    )
    found = simulate(*flags, "--num-requests", "30", "--json").json
    assert found["capacity"]["requests"] == 7
    assert round(found["capacity"]["left_over_percent"], 2) == 8.85
    assert [one["source"] for one in found["lengths"]] == ["sharegpt_single_turn.csv", "a.csv"]
    assert [one["drawn_means"] for one in found["lengths"]] == [[161.31, 337.99], [19.31, 58.45]]
    batched = {
        (row["dataset"], row["name"]): row for row in found["rows"] if row["figure"] == "batched_requests"
    }
    assert len(batched) == 8
    assert batched["sharegpt", "paged"]["paper"] == 30.42
    assert {row["note"] for row in found["sharing"]} == {"octavo simulate --preset sharing"}
    assert [row["paper_percent_saved"] for row in found["sharing"]] == [6.09, 8.53, 9.79, 37.56, 53.13, 55.16]
    text = simulate(*flags, "--num-requests", "10", "--as-measured").out
    assert "exactly 7 requests of 2,048; 8.85 % are left over" in text
    assert "octavo simulate --preset sharing" in text
    assert "drawn as they are" in text
