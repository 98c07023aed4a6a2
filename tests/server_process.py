"""A real ``octavo serve`` in a process of its own, as tests see it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

import tiny_models

TOOL_TEMPLATE = """{% if tools %}<|im_start|>system
Call a function inside <tool_call></tool_call>: {% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Speaks of tools as Qwen's and Hermes' templates do."""


def write_model(folder: Path, max_model_len: int = 2048) -> str:
    """A tiny random model whose chat template knows tools."""
    tiny_models.write_llama(folder, max_model_len=max_model_len)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TOOL_TEMPLATE}))
    return str(folder)


class ServerProcess:
    """A running server; ``lines`` is its standard error so far."""

    def __init__(self, *arguments: str, script: Path | None = None) -> None:
        program = [sys.executable, str(script)] if script else [str(Path(sys.executable).with_name("octavo"))]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*program, "serve", "--port", "0", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url = self.wait_for(r"Ready in [\d.]+ s: \S+ on (http://[\w.:]+)", 60)[1]
        except BaseException:
            self.process.kill()
            self.process.wait(10)
            raise
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = 20) -> re.Match[str]:
        """The first match in the output, as soon as it is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.output):
                return match
            if self.process.poll() is not None:
                self._reader.join(5)
                if match := re.search(pattern, self.output):
                    return match
                break
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in the server's output:\n{self.output}")

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series (0.0 where there is none), whatever its prefix."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            found = re.fullmatch(r"\w+:(\w+)\{([^}]*)\} (\S+)", line)
            if (
                found
                and found[1] == name
                and all(f'{key}="{value}"' in found[2] for key, value in labels.items())
            ):
                total += float(found[3])
        return total

    def wait_until_idle(self, seconds: float = 10) -> None:
        """Until nothing runs, nothing waits and no block is live."""
        names = ("num_requests_running", "num_requests_waiting")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not any(map(self.metric, names)) and not self.metric("kv_blocks", state="live"):
                return
            time.sleep(0.02)
        raise AssertionError(f"still running after {seconds} s:\n{self.http.get('/metrics').text}")

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 20) -> int:
        """Send a signal and wait; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(10)


@contextlib.contextmanager
def serving(*arguments: str, script: Path | None = None) -> Iterator[ServerProcess]:
    server = ServerProcess(*arguments, script=script)
    try:
        yield server
    finally:
        server.close()


def events(text: str) -> list[Any]:
    """The JSON values of a stream of server-sent events; its end mark is checked and left out."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]
