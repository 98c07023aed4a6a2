"""The load generators that people use, unmodified, against a running server; versions and results are printed.

    octavo serve MODEL --served-model-name m &
    python benchmarks/load_generators.py --model m --tokenizer FOLDER [--url http://127.0.0.1:8000]
        [--vllm vllm] [--guidellm guidellm] [--aiperf aiperf]

A tool that is not installed (here, or where --vllm and the others, or OCTAVO_VLLM and the others, say) is left out and
said so. Exit code 1 if one of the others failed, or got fewer tokens from the server than it asked for.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

PROMPT, OUTPUT, REQUESTS, CONCURRENCY = 64, 32, 40, 8
TOOLS = ("vllm", "guidellm", "aiperf")


def program(tool: str) -> str:
    """The program, or a command line that starts with it."""
    return os.environ.get(f"OCTAVO_{tool.upper()}", tool)


def commands(options: argparse.Namespace) -> dict[str, list[list[str]]]:
    """Tool -> its runs, each a command line without the program."""
    url, model, tokenizer = options.url, options.model, options.tokenizer
    vllm = [
        "bench", "serve", "--base-url", url, "--model", model, "--tokenizer", tokenizer, "--dataset-name", "random",
        "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT), "--num-prompts", str(REQUESTS),
        "--max-concurrency", str(CONCURRENCY), "--ignore-eos",
    ]  # fmt: skip
    guidellm = [
        "run", "--profile", f"kind=concurrent,streams={CONCURRENCY}",
        "--constraint", f"kind=max_requests,count={REQUESTS}", "--tokenizer", f"kind=hf_auto,model={tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
        "--output", "kind=console", "--disable-console-interactive",
    ]  # fmt: skip
    backend = f"kind=openai_http,target={url},model={model}"
    return {
        "vllm": [
            [*vllm, "--backend", "openai", "--endpoint", "/v1/completions"],
            [*vllm, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
        ],
        "guidellm": [  # 0.8 or newer: before it, "run" was "benchmark" and had other flags
            [*guidellm, "--backend", backend],
            [*guidellm, "--backend", f"{backend},request_format=/v1/completions"],
        ],
        "aiperf": [[
            "profile", "--url", url, "--model", model, "--tokenizer", tokenizer, "--endpoint-type", "chat",
            "--streaming", "--concurrency", str(CONCURRENCY), "--request-count", str(REQUESTS),
            "--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(OUTPUT),
            "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
        ]],
    }  # fmt: skip


def generated(url: str) -> float:
    """Tokens that the server has generated."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(map(float, re.findall(r"^\w+:generation_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE)))


def run(line: list[str], arguments: list[str], url: str) -> bool:
    """Whether the tool ended well and got what it asked for. What it writes goes to a folder that is thrown away."""
    before = generated(url)
    with tempfile.TemporaryDirectory() as folder:
        code = subprocess.run([*line, *arguments], cwd=folder, check=False).returncode
    tokens = generated(url) - before
    print(f"exit code {code}, {tokens:.0f} tokens generated, {REQUESTS * OUTPUT} asked for", flush=True)
    return code == 0 and tokens >= REQUESTS * OUTPUT


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="name under which the server has it")
    parser.add_argument("--tokenizer", required=True, help="folder or hub name")
    for tool in TOOLS:
        parser.add_argument(
            f"--{tool}", default=program(tool), help="the program, or a command line that starts with it"
        )
    options = parser.parse_args()
    failed = []
    for tool, runs in commands(options).items():
        line = getattr(options, tool).split()
        if shutil.which(line[0]) is None:
            print(f"{tool}: not installed, left out")
            continue
        version = subprocess.run([*line, "--version"], capture_output=True, text=True, check=False)
        print(f"{tool}: version {(version.stdout or version.stderr).strip().splitlines()[-1:]}")
        for arguments in runs:
            print(f"$ {tool} {' '.join(arguments)}", flush=True)
            if not run(line, arguments, options.url):
                failed.append(tool)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
