"""``octavo simulate`` without a preset: what it prints, what it writes, how it starts."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from simulate_helpers import SMALL, WORK, Simulate

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


def test_headroom_is_on_where_nobody_says_otherwise(simulate: Simulate) -> None:
    at = SMALL.index("--headroom-tokens")
    default = simulate(*SMALL[:at], *SMALL[at + 2 :], *WORK, "--json").json
    none = simulate(*SMALL, *WORK, "--json").json
    assert default["preemptions"] < none["preemptions"]
    assert default["requests_finished"] == none["requests_finished"] == 20


def test_swapped_requests_compute_nothing_again(simulate: Simulate) -> None:
    plain = simulate(*SMALL, *WORK, "--no-enable-prefix-caching", "--json").json
    swap = simulate(*SMALL, *WORK, "--no-enable-prefix-caching", "--preemption", "swap", "--json").json
    assert plain["tokens_recomputed"] > 0 == plain["tokens_swapped"]
    assert swap["tokens_swapped"] > 0 == swap["tokens_recomputed"]
    assert swap["requests_finished"] == plain["requests_finished"] == 20
    assert " swapped, " in simulate(*SMALL, *WORK, "--preemption", "swap").out


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


def test_a_measured_profile(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    profile = {"name": "mine", "source": "a test", "coefficients": {"constant": 0.5}}
    path.write_text(json.dumps({"format": "octavo-profile", "version": 1, "kind": "fitted", **profile}))
    flags = ("--profile", str(path), "--num-requests", "3", "--max-model-len", "2000")
    found = simulate(*flags, "--num-gpu-blocks-override", "200", "--json").json
    assert found["duration"] == 0.5 * found["steps"]
    refused = simulate(*flags)
    assert refused.code == 2 and "knows no memory" in refused.err


def test_goodput(simulate: Simulate) -> None:
    found = simulate(*SMALL, *WORK, "--slo-ttft", "30", "--json").json
    assert found["slo_attainment"] == found["requests_within_slo"] / 20
    assert 0 < found["requests_within_slo"] < 20


def test_shared_prefixes_hit(simulate: Simulate) -> None:
    plain = simulate(*SMALL, *WORK, "--json").json
    shared = simulate(*SMALL, *WORK, "--shared-prefix", "64:2", "--json").json
    assert (plain["hit_rate"] == 0.0) and shared["hit_rate"] > 0.2
    lookups = shared["lookups"]
    assert lookups["hits"] + sum(lookups["misses"].values()) == lookups["blocks"]
    rates = lookups["hit_rates"]
    assert rates["achieved"] == shared["hit_rate"] <= rates["without_evictions"] <= rates["by_token"]
    assert "A pool without limit would have found" in simulate(*SMALL, *WORK, "--shared-prefix", "64:2").out


def test_how_many_tokens_lie_in_a_row(simulate: Simulate) -> None:
    flags = ("--clock", "steps", "--num-gpu-blocks-override", "400", "--max-model-len", "1000", *WORK)
    apart = simulate(*flags, "--superblock-tokens", "0", "--json").json["kv_run_tokens"]
    together = simulate(*flags, "--superblock-tokens", "128", "--json").json["kv_run_tokens"]
    assert 16 <= apart < together
    assert (
        f"in a row in memory: {together:.1f} on average" in simulate(*flags, "--superblock-tokens", "128").out
    )


def test_conversations_find_their_history(simulate: Simulate) -> None:
    flags = ("--turns", "3", "--concurrency", "2", "--think-time", "1", "--prompt-tokens", "32")
    found = simulate(*SMALL, *flags, "--output-tokens", "32", "--num-requests", "5", "--json").json
    assert found["requests_finished"] == 15
    assert found["hit_rate"] > 0.4


def test_turns_behind_a_refused_one_are_counted(simulate: Simulate) -> None:
    """A history that outgrows the model ends its conversation, and the report says what was not asked."""
    flags = ("--turns", "8", "--concurrency", "1", "--prompt-tokens", "100", "--output-tokens", "20")
    found = simulate(*SMALL, *flags, "--num-requests", "2", "--json").json
    assert found["requests_refused"] == 2
    assert found["turns_unasked"] > 0
    assert found["requests_finished"] + found["requests_refused"] + found["turns_unasked"] == 16
    text = simulate(*SMALL, *flags, "--num-requests", "2").out
    assert f"{found['turns_unasked']} later turns were not asked" in text


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
    narrow = simulate(*flags, "--model-spec", "qwen3-8b", "--kv-cache-dtype", "fp8_e4m3").json
    assert narrow["pool"]["bytes"] == 100 * 16 * 76_032
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


@pytest.mark.parametrize(
    ("flags", "budget"),
    [
        ((), "2,048 tokens a step"),
        (("--enable-chunked-prefill",), "2,048 tokens a step"),
        (("--max-num-batched-tokens", "100"), "100 tokens a step"),
        (("--max-num-batched-tokens", "unlimited"), "unlimited tokens a step"),
        (("--no-enable-chunked-prefill",), "unlimited tokens a step"),
    ],
)
def test_the_token_budget_of_a_step(simulate: Simulate, flags: tuple[str, ...], budget: str) -> None:
    assert budget in simulate(*SMALL, *WORK, *flags).out


def test_prompts_are_cut_only_where_the_budget_asks_for_it(simulate: Simulate, tmp_path: Path) -> None:
    """One prompt of 300 tokens: three steps of up to 128, or one."""
    firsts = []
    for flags in (("--max-num-batched-tokens", "128"), ("--no-enable-chunked-prefill",)):
        path = tmp_path / "run.jsonl"
        alone = ("--num-requests", "1", "--prompt-tokens", "300", "--output-tokens", "4")
        assert simulate(*SMALL, *alone, *flags, "--record", str(path)).code == 0
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        firsts.append([line["scheduled"] for line in lines if "scheduled" in line])
    assert firsts == [[[128], [128], [44]], [[300]]]


def test_budgets_can_be_swept(simulate: Simulate) -> None:
    done = simulate(*SMALL, *WORK, "--sweep", "max-num-batched-tokens=64,unlimited", "--json", "--jobs", "1")
    assert [run["settings"]["max-num-batched-tokens"] for run in done.json["sweep"]] == [64, "unlimited"]
