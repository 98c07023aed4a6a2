"""Mistakes in the flags of ``octavo simulate``: one line that names them, exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from simulate_helpers import Simulate

from octavo.cli.main import octavo

MISTAKES: list[tuple[str, str]] = [
    ("--preset arcticle", "'arcticle' is not known"),
    ("--preset article --max-num-seqs 5", "--max-num-seqs does not go with --preset article"),
    ("--preset article --allocator reserved --share", "cannot share"),
    ("--preset article --round-up --steps 10", "--round-up"),
    ("--preset article --kernel-penalty 100", "--kernel-penalty"),
    ("--preset orca --sweep block-size=8", "--block-size does not go with --preset orca"),
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
    ("--max-num-batched-tokens some", "'some' is neither a number of tokens nor unlimited"),
    ("--max-num-batched-tokens 0", "--max-num-batched-tokens is 0"),
    (
        "--no-enable-chunked-prefill --max-num-batched-tokens 512",
        "--no-enable-chunked-prefill prefills every prompt whole, and --max-num-batched-tokens 512",
    ),
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


def test_the_guide_speaks_of_flags_that_exist() -> None:
    found = octavo.get_command(click.Context(octavo), "simulate")
    assert found is not None
    known = {opt for param in found.params for opt in (*param.opts, *param.secondary_opts)}
    guide = Path(__file__).parents[3] / "docs" / "simulator.md"
    used = set(re.findall(r"--[a-z][a-z0-9-]*", guide.read_text(encoding="utf-8")))
    assert used - known == set()
