"""Two hundred clients against a pool that holds a fifth of them, for OCTAVO_SOAK_SECONDS (default 120).

Clients stream, leave at random, and send what is impossible or malformed. Every request must end in tokens or a typed
error, nothing may stay behind, and an answer under pressure, a preempted one too, must be the one of an engine that
has room.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from octavo import LLM, BeamParams, SamplingParams
from server_process import ServerProcess, serving

SECONDS = float(os.environ.get("OCTAVO_SOAK_SECONDS", "120"))
CLIENTS = 200
PROMPTS = [[97 + (3 * number + place) % 26 for place in range(20 + number)] for number in range(12)]
TOKENS = 60
AUDITED = Path(__file__).with_name("audited_server.py")
GROWTH_MAX = 8 << 20
"""Bytes that a server may still grow by after its first third: what its allocators keep for themselves."""


def body(number: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[number], "max_tokens": TOKENS, "ignore_eos": True, "seed": number, "return_token_ids": True,
        **more,
    }  # fmt: skip


IMPOSSIBLE = (
    json.dumps(body(0, max_tokens=10**6)).encode(),
    json.dumps(body(1, top_p=7)).encode(),
    json.dumps(body(2, prompt=[10**9])).encode(),
    json.dumps({"prompt": 3}).encode(),
    json.dumps(
        body(3, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "x"}}})
    ).encode(),
    b"{",
    b"\xff\x00",
)


BEAMS: dict[str, Any] = {"use_beam_search": True, "best_of": 3}
Expected = list[list[list[int]]]
"""Tokens of each prompt's sampled answer, and of its best beam."""


class Client:
    """Asks over and over, on a new connection each time, over a plain socket: 200 of a real library cost too much."""

    def __init__(self, port: int, seed: int, expected: Expected, seen: Counter[str], right: set[str]) -> None:
        """``right`` gets the ids of the answers that were compared."""
        self.port = port
        self.random = random.Random(seed)
        self.expected = expected
        self.seen = seen
        self.right = right

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.wait_for(self.ask(), 60)

    async def ask(self) -> None:
        kinds = ("stream", "whole", "leave", "choices", "beams", "impossible")
        kind = self.random.choices(kinds, (8, 6, 6, 2, 1, 2))[0]
        number = self.random.randrange(len(PROMPTS))
        several = {"choices": {"n": 3}, "beams": BEAMS}.get(kind, {})
        if kind == "leave":
            several = self.random.choice(({}, {"n": 2}))
        sent = json.dumps(body(number, stream=kind in ("stream", "leave"), **several)).encode()
        if kind == "impossible":
            sent = self.random.choice(IMPOSSIBLE)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            length = f"content-length: {len(sent)}"
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{length}\r\n\r\n"
            writer.write(head.encode() + sent)
            if kind == "leave":
                await reader.read(self.random.randrange(1, 4000))
                if self.random.random() < 0.5:
                    writer.transport.abort()
                self.seen["left"] += 1
                return
            self.judge(kind, number, (await reader.read()).decode())
        finally:
            writer.close()

    def judge(self, kind: str, number: int, text: str) -> None:
        status = int(text.split(" ", 2)[1])
        if status != 200:
            assert status in ((400,) if kind == "impossible" else (503,)), text
            assert '"error":{"message":' in text
            self.seen[str(status)] += 1
            return
        assert kind != "impossible", text
        if kind == "stream":
            chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: {"')]
            tokens = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
            assert "data: [DONE]" in text
            answer = chunks[0]["id"]
        else:
            whole = json.loads(text.partition("\r\n\r\n")[2])
            answer, tokens = whole["id"], whole["choices"][0]["token_ids"]
            if kind == "choices":
                assert len({tuple(choice["token_ids"]) for choice in whole["choices"]}) == 3
        answers, beams = self.expected
        assert tokens == (beams if kind == "beams" else answers)[number], "pressure has changed an answer"
        self.right.add(answer)
        self.seen[kind] += 1


async def crowd(server: ServerProcess, expected: Expected) -> tuple[Counter[str], set[str], list[int]]:
    """(what the clients saw, ids of the answers that were compared, resident bytes after each third)."""
    seen: Counter[str] = Counter()
    right: set[str] = set()
    port, process = int(server.url.rpartition(":")[2]), psutil.Process(server.process.pid)
    clients = [Client(port, seed, expected, seen, right) for seed in range(CLIENTS)]
    resident = []
    for _ in range(3):
        until = time.monotonic() + SECONDS / 3
        await asyncio.gather(*(client.run(until) for client in clients))
        resident.append(process.memory_info().rss)
    return seen, right, resident


def test_a_crowd(model: str) -> None:
    sampling = [
        SamplingParams(max_tokens=TOKENS, ignore_eos=True, seed=number) for number in range(len(PROMPTS))
    ]
    search = SamplingParams(max_tokens=TOKENS, ignore_eos=True, beam=BeamParams(width=BEAMS["best_of"]))
    llm = LLM(model, num_blocks=2000)
    expected = [
        [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
        for params in (sampling, search)
    ]
    # A request needs 5 or 6 blocks of 16; 200 blocks hold a fifth of the clients. The queue holds 100.
    with serving(
        model, "--num-gpu-blocks-override", "200", "--max-num-queued-reqs", "100", "--thrash-preemptions", "8",
        script=AUDITED,
    ) as server:  # fmt: skip
        seen, right, resident = asyncio.run(crowd(server, expected))
        server.wait_until_idle(30)
        preemptions = server.metric("num_preemptions_total")
        assert server.metric("kv_blocks", state="live") == 0
        assert sum(server.metric("kv_blocks", state=state) for state in ("cached", "free")) == 200
        assert server.stop() == 0
        assert "audit clean" in server.output
        assert "Traceback" not in server.output
    preempted = set(re.findall(r"Preempted (cmpl-\w+)-0", server.output))
    growth = resident[-1] - resident[0]
    print(
        f"\n{dict(seen)}, {preemptions:.0f} preemptions ({len(preempted & right)} of them compared), ", end=""
    )
    print(f"{len(server.lines)} lines, {[size >> 20 for size in resident]} MiB resident")
    assert min(seen[kind] for kind in ("stream", "whole", "left", "choices", "beams", "400")) > 0
    assert preemptions > 0
    assert preempted & right, "no preempted answer was compared"
    assert growth < GROWTH_MAX, "memory grows"
