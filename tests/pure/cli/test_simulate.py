"""``octavo simulate`` as a user runs it: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Simulate = Callable[..., Done]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["octavo", "simulate", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *capsys.readouterr())

    return run


SMALL = (
    "--clock",
    "steps",
    "--num-gpu-blocks-override",
    "60",
    "--max-num-seqs",
    "8",
    "--max-model-len",
    "512",
)
"""A pool that a few requests fill."""
WORK = ("--num-requests", "20", "--prompt-tokens", "uniform:20:200", "--output-tokens", "uniform:5:60")


# ---------------------------------------------------------------------- the article


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


ARTICLE = ("--preset", "article", "--steps", "300")


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


# ---------------------------------------------------------------------- the paper


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
    assert {row["octavo"] for row in found["sharing"]} == {None}
    text = simulate(*flags, "--num-requests", "10", "--as-measured").out
    assert "exactly 7 requests of 2,048; 8.85 % are left over" in text
    assert "comes with sharing" in text
    assert "drawn as they are" in text


# ---------------------------------------------------------------------- workloads


def test_the_report_adds_up(simulate: Simulate) -> None:
    found = simulate(*SMALL, *WORK, "--json").json
    assert (found["requests_finished"], found["requests_unfinished"], found["clock"]) == (20, 0, "steps")
    assert found["preemptions"] > 0
    assert found["duration"] == found["steps"]
    assert sum(found["pool_shares"].values()) == pytest.approx(1.0)
    text = simulate(*SMALL, *WORK).out
    assert (
        f"20 requests finished, 0 refused (too long for model or pool), 0 unfinished; {found['steps']:,}"
        in text
    )


@pytest.mark.parametrize("arrivals", ["all", "fixed:2", "poisson:1.5", "gamma:1:0.5", "saturated"])
def test_arrivals(simulate: Simulate, arrivals: str) -> None:
    found = simulate(*SMALL, *WORK, "--arrivals", arrivals, "--json").json
    assert found["requests_finished"] == 20


def test_a_rate_curve(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time_s,rps\n0,0\n10,2\n")
    found = simulate(*SMALL, *WORK, "--arrivals", f"curve:{path}:rps:2", "--duration", "12", "--json").json
    assert found["requests_arrived"] > 0
    assert found["series"][0]["time"] > 10, "nothing arrives in the first window"


@pytest.mark.parametrize("allocator", ["paged", "reserved", "pow2", "oracle"])
def test_every_allocator(simulate: Simulate, allocator: str) -> None:
    found = simulate(*SMALL, *WORK, "--allocator", allocator, "--max-tokens", "64", "--json").json
    assert found["requests_finished"] == 20
    assert found["pool"]["allocator"] == allocator


def test_times_come_from_the_profile(simulate: Simulate) -> None:
    flags = ("--num-requests", "5", "--model-spec", "smollm2-135m", "--json")
    fast, slow = simulate("--profile", "h200", *flags).json, simulate("--profile", "l4", *flags).json
    assert fast["steps"] == slow["steps"]
    assert fast["ttft"]["mean"] < slow["ttft"]["mean"]
    assert fast["pool"]["num_blocks"] > slow["pool"]["num_blocks"]


def test_goodput(simulate: Simulate) -> None:
    found = simulate(*SMALL, *WORK, "--slo-ttft", "30", "--json").json
    assert found["slo_attainment"] == found["requests_within_slo"] / 20
    assert 0 < found["requests_within_slo"] < 20


def test_shared_prefixes_hit(simulate: Simulate) -> None:
    plain = simulate(*SMALL, *WORK, "--json").json
    shared = simulate(*SMALL, *WORK, "--shared-prefix", "64:2", "--json").json
    assert (plain["hit_rate"] == 0.0) and shared["hit_rate"] > 0.2


def test_conversations_find_their_history(simulate: Simulate) -> None:
    flags = ("--turns", "3", "--concurrency", "2", "--think-time", "1", "--prompt-tokens", "32")
    found = simulate(*SMALL, *flags, "--output-tokens", "32", "--num-requests", "5", "--json").json
    assert found["requests_finished"] == 15
    assert found["hit_rate"] > 0.4


def test_models_by_name_file_and_numbers(simulate: Simulate, tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 1024,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ("--num-requests", "2", "--clock", "steps", "--num-gpu-blocks-override", "100", "--json")
    assert (
        simulate(*flags, "--model-spec", str(tmp_path)).json["pool"]["bytes"] == 100 * 16 * 2 * 2 * 2 * 16 * 2
    )
    numbers = ("--layers", "2", "--kv-heads", "2", "--head-dim", "16")
    assert simulate(*flags, *numbers).json["pool"]["bytes"] == 100 * 16 * 2 * 2 * 2 * 16 * 2
    changed = simulate(*flags, "--model-spec", "qwen3-8b", "--dtype", "f32").json
    assert changed["pool"]["bytes"] == 100 * 16 * 147_456 * 2
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": "64"}))
    refused = simulate(*flags, "--model-spec", str(tmp_path))
    assert refused.code == 2 and "hidden_size is '64'" in refused.err


# ---------------------------------------------------------------------- traces


def test_a_trace_at_its_own_pace_and_faster(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,40,10\n100,50,0\n200,60,10\n")
    once = simulate(*SMALL, "--trace", str(path), "--json").json
    fast = simulate(*SMALL, "--trace", str(path), "--speed", "10", "--json").json
    assert once["requests_finished"] == fast["requests_finished"] == 3
    assert (once["duration"], fast["duration"]) == (210, 30)
    packed = simulate(*SMALL, "--trace", str(path), "--arrivals", "saturated", "--json").json
    assert packed["duration"] < 30


def test_lengths_of_a_trace_with_other_means(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "10,20\n30,90\n15,100\n12,30\n")
    flags = (*SMALL, "--trace", str(path), "--num-requests", "200")
    found = simulate(*flags, "--mean-lengths", "19.31:58.45", "--json").json
    assert found["prompt_tokens"] / 200 == pytest.approx(19.31, rel=0.15)


MOONCAKE = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 3]}\n'
    '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 4]}\n'
)


def test_cache_replay(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(MOONCAKE)
    found = simulate("--trace", str(path), "--cache-blocks", "1,10", "--json").json
    assert found["block_size"] == 512
    assert [(row["capacity"], row["block_hits"], row["blocks"]) for row in found["rows"]] == [
        (1, 2, 8), (10, 3, 8), (None, 3, 8),
    ]  # fmt: skip
    text = simulate("--trace", str(path), "--cache-blocks", "10").out
    assert "0.3750" in text


# ---------------------------------------------------------------------- outputs


def test_the_time_series(simulate: Simulate, tmp_path: Path) -> None:
    found = simulate(*SMALL, *WORK, "--csv", str(tmp_path / "s.csv"), "--json").json
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == found["series"]
    assert set(rows[0]) == {
        "time",
        "written",
        "reserved",
        "internal",
        "external",
        "free",
        "running",
        "waiting",
    }


def test_a_recording_replays_and_plays_again(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    first = simulate(*SMALL, *WORK, "--record", str(path), "--json").json
    assert first["preemptions"] > 0
    replayed = simulate("--replay", str(path))
    assert replayed.code == 0 and "0 differing decisions" in replayed.out
    again = simulate(*SMALL, "--trace", str(path), "--json").json
    assert (again["requests_finished"], again["output_tokens"]) == (20, first["output_tokens"])


def test_a_differing_decision_is_printed(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    simulate(*SMALL, *WORK, "--record", str(path))
    header, *rest = path.read_text().splitlines()
    fields = json.loads(header)
    fields["scheduler"]["max_num_batched_tokens"] = 100
    path.write_text("\n".join([json.dumps(fields), *rest]) + "\n")
    replayed = simulate("--replay", str(path))
    assert replayed.code == 1
    assert "step 0: " in replayed.out


def test_a_plot(simulate: Simulate, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra octavo[plot] is not installed")
    assert simulate(*SMALL, *WORK, "--plot", str(tmp_path / "p.png")).code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_plotting_library_the_extra_is_named(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = simulate(*SMALL, *WORK, "--plot", str(tmp_path / "p.png"))
    assert done.code == 2 and "octavo[plot]" in done.err


# ---------------------------------------------------------------------- sweeps


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


# ---------------------------------------------------------------------- mistakes

MISTAKES: list[tuple[str, str]] = [
    ("--preset arcticle", "'arcticle' is not known"),
    ("--preset article --max-num-seqs 5", "--max-num-seqs does not go with --preset article"),
    ("--preset article --allocator reserved --share", "cannot share"),
    ("--preset article --round-up --steps 10", "--round-up"),
    ("--preset article --kernel-penalty 100", "--kernel-penalty"),
    ("--preset orca --sweep block-size=8", "--sweep"),
    ("--preset orca --traces /no/such/folder", "/no/such/folder"),
    ("--share", "--share"),
    ("--trace /no/such/file", "/no/such/file"),
    ("--replay /no/such/file", "/no/such/file"),
    ("--trace {lengths}", "has no arrival times"),
    ("--trace {lengths} --cache-blocks 5", "no block ids"),
    ("--trace {lengths} --arrivals all --prompt-tokens 5", "contradict"),
    ("--trace {lengths} --arrivals all --concurrency 5", "--concurrency"),
    ("--trace {lengths} --trace-kind nothing", "'nothing' is not known"),
    ("--trace {lengths} --mean-lengths 5", "--mean-lengths"),
    ("--trace {unsorted}", "{unsorted}:3: "),
    ("--trace {negative}", "{negative}:3: prompt_tokens is -4"),
    ("--trace {columns}", "{columns}:1: "),
    ("--clock steps", "--num-gpu-blocks-override"),
    ("--clock steps --profile h100", "--profile"),
    ("--profile nothing", "'nothing'"),
    ("--model-spec nothing", "'nothing'"),
    ("--model-spec llama-3.1-70b", "no block fits"),
    ("--model-spec opt-13b --max-model-len 4096", "2048"),
    ("--layers 3", "--kv-heads"),
    ("--layers 0", "--layers is 0"),
    ("--arrivals poisson:0", "0"),
    ("--arrivals sometimes", "'sometimes'"),
    ("--prompt-tokens many", "'many'"),
    ("--turns 3", "--concurrency"),
    ("--think-time 3", "--turns"),
    ("--concurrency 3", "--turns"),
    ("--shared-prefix 5:x", "--shared-prefix"),
    ("--num-requests 0", "--num-requests is 0"),
    ("--steps 0", "--steps is 0"),
    ("--steps 10 --warmup-steps 10", "--warmup-steps is 10"),
    ("--slo-ttft -1", "-1"),
    ("--block-size 3", "block size 3"),
    ("--num-gpu-blocks-override 5 --kv-cache-memory-bytes 1GiB", "contradict"),
    ("--allocator oracle --record {new}", "--record"),
    ("--csv /no/such/folder/x", "/no/such/folder/x"),
    ("--sweep block-size=48", "block-size=48: block size 48"),
    ("--sweep block-size=8,x", "'x'"),
    ("--sweep flag=1", "'flag'"),
    ("--sweep block-size", "has no values"),
    ("--sweep block-size=8 --record {new}", "contradict"),
    ("block-size=8", "--sweep"),
    ("--jobs 2", "--sweep"),
    ("--no-such-flag", "--no-such-flag"),
]


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES, ids=[arguments for arguments, _ in MISTAKES])
def test_mistakes_are_named(simulate: Simulate, tmp_path: Path, arguments: str, expected: str) -> None:
    files = {
        "lengths": "prompt_tokens,output_tokens\n5,5\n",
        "unsorted": "arrival_s,prompt_tokens,output_tokens\n5,5,5\n1,5,5\n",
        "negative": "arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,-4,5\n",
        "columns": "arrival_s,prompt_tokens\n0,5\n",
    }
    paths = {name: str(tmp_path / f"{name}.csv") for name in (*files, "new")}
    for name, text in files.items():
        Path(paths[name]).write_text(text)
    done = simulate(*(word.format(**paths) for word in arguments.split()))
    assert done.code == 2
    assert expected.format(**paths) in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


# ---------------------------------------------------------------------- start-up


def test_help_and_small_runs_load_no_model_code() -> None:
    probe = (
        "import sys; from octavo.cli.main import octavo\n"
        "octavo.main(['simulate', '--num-requests', '2', '--json'], standalone_mode=False)\n"
        "heavy = ('gguf', 'tokenizers', 'torch', 'octavo._native', 'matplotlib', 'tqdm', 'octavo.execution')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    probe = (
        "import sys; from octavo.cli.main import octavo\n"
        "try: octavo(['simulate', '--help'])\nexcept SystemExit: pass\n"
        "print('numpy' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
