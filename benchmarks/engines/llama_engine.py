"""llama.cpp's server for ``benchmarks/peers.py``; needs the path of a built ``llama-server``."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from protocol import Prompt, result, serve

SLOTS = 64


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Llama:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._binary = Path(settings["binary"])
        said = subprocess.run([self._binary, "--version"], capture_output=True, text=True, check=True)
        self.version = " ".join((said.stdout + said.stderr).split("\n")[0].split())
        self._port = free_port()
        threads = str(settings["threads"])
        command = [str(self._binary), "-m", settings["model"], "--port", str(self._port), "-np", str(SLOTS)]
        command += [
            "-c",
            str(settings["pool_tokens"]),
            "-kvu",
            "-t",
            threads,
            "-tb",
            threads,
            "-b",
            "2048",
            "-ub",
            "512",
        ]
        command += ["-fa", "on", "--cache-ram", "0", "--no-webui"]
        if not settings.get("default_kv"):
            command += ["-ctk", "bf16", "-ctv", "bf16"]
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self._healthy():
            time.sleep(0.02)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    async def _one(self, prompt: Prompt, output: int) -> tuple[int, float]:
        """(tokens, seconds to the first) of one streamed request."""
        body = {
            "prompt": prompt,
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body).encode()
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        first, tokens = 0.0, 0
        status = await reader.readline()
        assert b" 200 " in status, status
        async for line in reader:  # (each piece of the chunked body is a whole event)
            if line.startswith(b"data: [DONE]"):
                break
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if not first and event.get("choices"):
                first = time.perf_counter() - begin
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
        writer.close()
        assert tokens, "the server ended the stream without a usage"
        return tokens, first

    async def _all(self, requests: list[tuple[Prompt, int]], concurrency: int) -> dict[str, Any]:
        gate = asyncio.Semaphore(concurrency)

        async def one(prompt: Prompt, output: int) -> tuple[int, float]:
            async with gate:
                return await self._one(prompt, output)

        begin = time.perf_counter()
        found = await asyncio.gather(*(one(prompt, output) for prompt, output in requests))
        seconds = time.perf_counter() - begin
        return result(seconds, sum(tokens for tokens, _ in found), [first for _, first in found])

    def run(self, requests: list[tuple[Prompt, int]], concurrency: int) -> dict[str, Any]:
        return asyncio.run(self._all(requests, concurrency))

    def installed_bytes(self) -> int:
        """The binary and the libraries beside it."""
        folder = self._binary.resolve().parent
        return sum(
            file.stat().st_size for file in folder.iterdir() if ".so" in file.name and not file.is_symlink()
        ) + (self._binary.resolve().stat().st_size)


if __name__ == "__main__":
    serve(Llama)
