"""The command line as a user runs it: a process, its two outputs, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_models

OCTAVO = Path(sys.executable).with_name("octavo")


def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(OCTAVO), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=256))


@pytest.mark.model
def test_the_capital_of_france(embedded_model: Path) -> None:
    done = run("generate", "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"
    closing = done.stderr.splitlines()[-1]
    assert "tokens/s" in closing
    assert "blocks" in closing
    assert "first token after" in closing
    assert "CPU KV cache size: " in done.stderr
    assert "Maximum concurrency for " in done.stderr


def test_several_answers_are_one_object_and_share_the_prompts_blocks(tiny: str) -> None:
    prompt = "a b c d e f g h " * 12
    flags = ("--model", tiny, "--raw", "--json", "--max-tokens", "20", "--ignore-eos", "--seed", "5")
    sampled = run("generate", *flags, "--n", "8", "--temperature", "1", prompt)
    assert sampled.returncode == 0, sampled.stderr
    (line,) = sampled.stdout.splitlines()
    found = json.loads(line)
    assert [choice["index"] for choice in found["choices"]] == list(range(8))
    assert len({tuple(choice["token_ids"]) for choice in found["choices"]}) == 8
    assert found["completion_tokens"] == 160
    full, written = found["prompt_tokens"] // 16, found["prompt_tokens"] + 19
    assert found["prompt_tokens"] > 60
    assert found["blocks_used"] == full + 8 * (-(-written // 16) - full), "the ideal, partial blocks included"
    single = json.loads(run("generate", *flags, "--temperature", "1", "--seed", "7", prompt).stdout)
    assert single["token_ids"] == found["choices"][2]["token_ids"], "answer i has seed + i"
    beams = json.loads(run("generate", *flags, "--beam-width", "4", "--n", "2", prompt).stdout)
    assert beams["choices"][0]["score"] > beams["choices"][1]["score"]
    diverse = (
        "--beam-width",
        "4",
        "--beam-groups",
        "2",
        "--diversity-penalty",
        "2",
        "--early-stopping",
        "never",
    )
    assert run("generate", *flags, *diverse, "--length-penalty", "0.5", prompt).returncode == 0
    refused = run("generate", *flags, "--length-penalty", "2", prompt)
    assert refused.returncode == 2 and "--length-penalty needs --beam-width" in refused.stderr


@pytest.mark.model
def test_a_chats_second_turn_prefills_only_what_is_new(embedded_model: Path) -> None:
    done = run("chat", "--max-tokens", "40", stdin="Name three colours.\nAnd which of them is the sky?\n")
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stderr.splitlines() if "prefilled" in line]
    assert " 0 of them cached" in first
    numbers = [int(word) for word in second.replace("[", "").split() if word.isdigit()]
    prompt, cached, prefilled = numbers[:3]
    assert cached >= 32
    assert prefilled == prompt - cached
    assert prefilled <= 40, "the first turn, its answer included, must come from the pool"


def test_json_has_every_field(tiny: str) -> None:
    done = run(
        "generate", "--model", tiny, "--raw", "--json", "--max-tokens", "5", "--ignore-eos", "a b", "c"
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == 2
    assert set(records[0]) == {
        "text", "token_ids", "prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason", "ttft_s",
        "tokens_per_s", "blocks_used", "blocks_total", "preemptions",
    }  # fmt: skip
    assert records[0]["completion_tokens"] == len(records[0]["token_ids"]) == 5
    assert records[0]["finish_reason"] == "length"


def test_prompts_from_files_and_standard_input(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a b\n\nc\n")
    (tmp_path / "p.jsonl").write_text('"a b"\n{"prompt": "c"}\n')
    flags = (
        "generate",
        "--model",
        tiny,
        "--raw",
        "--json",
        "--max-tokens",
        "3",
        "--ignore-eos",
        "--prompt-file",
    )
    answers = [
        [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]
        for done in (
            run(*flags, str(tmp_path / "p.txt")),
            run(*flags, str(tmp_path / "p.jsonl")),
            run(*flags, "-", stdin="a b\nc\n"),
        )
    ]
    assert len(answers[0]) == 2
    assert answers[0] == answers[1] == answers[2]


def test_a_tiny_pool_preempts_says_so_and_changes_nothing(tiny: str) -> None:
    flags = (
        "generate",
        "--model",
        tiny,
        "--raw",
        "--json",
        "--max-tokens",
        "60",
        "--ignore-eos",
        "--max-model-len",
        "96",
    )
    prompts = [f"{letter} " * 12 for letter in "abcd"]
    free = run(*flags, "--num-gpu-blocks-override", "100", *prompts)
    tight = run(*flags, "--num-gpu-blocks-override", "8", *prompts)
    assert free.returncode == tight.returncode == 0, tight.stderr
    texts = [[json.loads(line)["token_ids"] for line in done.stdout.splitlines()] for done in (free, tight)]
    assert texts[0] == texts[1]
    assert sum(json.loads(line)["preemptions"] for line in tight.stdout.splitlines()) >= 1
    assert "Preempted request-" in tight.stderr
    assert "Preempted" not in free.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("generate",), "no prompt"),
        (("generate", "--model", "TINY", ""), "empty"),
        (("generate", "--model", "/no/such/model", "x"), "/no/such/model"),
        (("generate", "--model", "TINY", "--temperature", "-1", "x"), "temperature"),
        (("generate", "--model", "TINY", "--top-p", "0", "x"), "top_p"),
        (("generate", "--model", "TINY", "--block-size", "48", "x"), "48"),
        (("generate", "--model", "TINY", "--prompt-file", "/no/such/file"), "/no/such/file"),
        (("generate", "--model", "TINY", "--kv-cache-memory-bytes", "7 parsecs", "x"), "7 parsecs"),
        (("generate", "--model", "TINY", "--raw", "--max-tokens", "1000", "x"), "maximum context length"),
        (
            ("generate", "--model", "TINY", "--raw", "--num-gpu-blocks-override", "1", "a " * 60),
            "maximum context length",
        ),
        (("generate", "--wrong-flag", "x"), "--wrong-flag"),
        (("no-such-command",), "no-such-command"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_readable_line_and_exit_code_2(
    tiny: str, arguments: tuple[str, ...], expected: str
) -> None:
    done = run(*(tiny if word == "TINY" else word for word in arguments))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_wrong_environment_variable_is_named(tiny: str) -> None:
    done = run("generate", "--model", tiny, "x", VLLM_CPU_KVCACHE_SPACE="lots")
    assert done.returncode == 2
    assert "VLLM_CPU_KVCACHE_SPACE" in done.stderr


def test_a_reader_that_leaves_is_no_error(tiny: str) -> None:
    command = f"'{OCTAVO}' generate --model '{tiny}' --raw --json --max-tokens 3 --ignore-eos a b c d e f g | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr


def test_inspect(tiny: str) -> None:
    done = run("inspect", "--json", "--num-gpu-blocks-override", "10", tiny)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    per_token = 2 * sizes["num_layers"] * sizes["num_kv_heads"] * sizes["head_dim"] * 2
    assert sizes["kv_bytes_per_token"] == per_token
    assert sizes["block_bytes"] == 16 * per_token
    assert sizes["tokens_per_gib"] == 2**30 // per_token
    text = run("inspect", tiny).stdout
    assert "CPU KV cache size: " in text


def test_keys_and_values_of_bytes(tiny: str) -> None:
    sizes = json.loads(run("inspect", "--json", "--kv-cache-dtype", "fp8_e4m3", tiny).stdout)
    heads = 2 * sizes["num_layers"] * sizes["num_kv_heads"]
    assert sizes["kv_dtype"] == "fp8"
    assert sizes["kv_bytes_per_token"] == heads * (sizes["head_dim"] + 4)
    text = run("inspect", "--kv-cache-dtype", "int8", tiny).stdout
    assert f"({sizes['head_dim']} x 1 byte + 4 of its scale) = {sizes['kv_bytes_per_token']:,} bytes" in text
    flags = ("--raw", "--json", "--max-tokens", "5", "--ignore-eos")
    answer = run("generate", "--model", tiny, "--kv-cache-dtype", "int8", *flags, "a b")
    assert len(json.loads(answer.stdout)["token_ids"]) == 5
    refused = run("generate", "--model", tiny, "--kv-cache-dtype", "fp4", "a")
    assert refused.returncode == 2 and "'fp4'" in refused.stderr and "--kv-cache-dtype" in refused.stderr


def test_help_is_quick_and_loads_no_model_code() -> None:
    probe = (
        "import sys; from octavo.cli.main import octavo\n"
        "try: octavo(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name in ('numpy', 'gguf', 'tokenizers', 'octavo._native')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
