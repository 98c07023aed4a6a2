"""The load generators that people use, unmodified, against a running server; versions and results are printed.

    octavo serve MODEL --served-model-name m &
    python benchmarks/load_generators.py --model m --tokenizer FOLDER [--url http://127.0.0.1:8000]
        [--vllm vllm] [--guidellm guidellm] [--aiperf aiperf]

A tool that is not installed (here, or where --vllm and the others say) is left out and said so. Exit code 1 if one of
the others failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

PROMPT, OUTPUT, REQUESTS, CONCURRENCY = 64, 32, 40, 8


def commands(options: argparse.Namespace) -> dict[str, list[list[str]]]:
    """Tool -> its runs, each a command line without the program."""
    url, model, tokenizer = options.url, options.model, options.tokenizer
    vllm = [
        "bench", "serve", "--base-url", url, "--model", model, "--tokenizer", tokenizer, "--dataset-name", "random",
        "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT), "--num-prompts", str(REQUESTS),
        "--max-concurrency", str(CONCURRENCY), "--ignore-eos",
    ]  # fmt: skip
    return {
        "vllm": [
            [*vllm, "--backend", "openai", "--endpoint", "/v1/completions"],
            [*vllm, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
        ],
        "guidellm": [[
            "benchmark", "--target", url, "--model", model, "--processor", tokenizer, "--profile", "concurrent",
            "--rate", str(CONCURRENCY), "--max-requests", str(REQUESTS),
            "--data", f"prompt_tokens={PROMPT},output_tokens={OUTPUT}",
        ]],
        "aiperf": [[
            "profile", "--url", url, "--model", model, "--tokenizer", tokenizer, "--endpoint-type", "chat",
            "--streaming", "--concurrency", str(CONCURRENCY), "--request-count", str(REQUESTS),
            "--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(OUTPUT),
            "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
        ]],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="name under which the server has it")
    parser.add_argument("--tokenizer", required=True, help="folder or hub name")
    for tool in ("vllm", "guidellm", "aiperf"):
        parser.add_argument(
            f"--{tool}", default=tool, help="the program, or a command line that starts with it"
        )
    options = parser.parse_args()
    failed = []
    for tool, runs in commands(options).items():
        program = getattr(options, tool).split()
        if shutil.which(program[0]) is None:
            print(f"{tool}: not installed, left out")
            continue
        version = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False)
        print(f"{tool}: version {(version.stdout or version.stderr).strip().splitlines()[-1:]}")
        for arguments in runs:
            print(f"$ {tool} {' '.join(arguments)}", flush=True)
            if subprocess.run([*program, *arguments], check=False).returncode:
                failed.append(tool)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
