"""The page's routes on a real server: files, policy, key, and a feed that outlives slow readers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from server_process import ServerProcess, serving


def frames(data: bytes) -> list[dict[str, Any]]:
    """Whole events of a feed, without the marks of its chunks."""
    found = []
    for part in data.split(b"data: ")[1:]:
        line = part.split(b"\n\n", 1)
        if len(line) == 2:
            found.append(json.loads(b"".join(_unchunked(line[0]))))
    return found


def _unchunked(text: bytes) -> Iterator[bytes]:
    """An event may lie in several chunks of the response; their sizes stand on lines of their own."""
    lines = text.split(b"\r\n")
    yield lines[0]
    yield from (line for line in lines[1:] if len(line) > 6)


class Reader:
    """A client of the feed that reads when it is told to."""

    def __init__(self, server: ServerProcess) -> None:
        address = urlsplit(server.url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((address.hostname, address.port))
        self.socket.sendall(b"GET /page/feed HTTP/1.1\r\nhost: x\r\n\r\n")
        self.socket.settimeout(20)
        self.data = b""

    def read(self, wanted: int = 1 << 62, seconds: float = 1.0) -> None:
        """Until that many bytes or seconds have passed."""
        deadline = time.monotonic() + seconds
        while len(self.data) < wanted and time.monotonic() < deadline:
            self.data += self.socket.recv(1 << 16)

    def close(self) -> None:
        self.socket.close()


def test_the_page_is_served_with_its_policy(server: ServerProcess) -> None:
    page = server.http.get("/")
    assert page.status_code == 200 and "<title>Octavo</title>" in page.text
    script = server.http.get("/static/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for answer in (page, script, server.http.get("/page/config.json")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
    again = server.http.get("/static/main.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert server.http.get("/static/../routes.py").status_code == 404
    assert server.http.get("/static/%2e%2e/routes.py").status_code == 404


def test_the_feed_tells_what_the_metrics_tell(server: ServerProcess) -> None:
    server.post("/v1/completions", {"prompt": "The sea is", "max_tokens": 40, "ignore_eos": True})
    server.wait_until_idle()
    with server.http.stream("GET", "/page/feed") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        first = json.loads(next(answer.iter_lines()).removeprefix("data: "))
    pool = {state: first["pool"][state] for state in ("live", "cached", "free")}
    assert pool == {state: int(server.metric("kv_blocks", state=state)) for state in pool}
    assert pool["cached"] >= 2
    assert first["boot"] == server.http.get("/page/config.json").json()["boot"]


def test_the_page_needs_no_key_and_the_feed_does(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "40", "--api-key", "secret") as server:
        for path in ("/", "/page/config.json", "/static/main.js"):
            assert server.http.get(path).status_code == 200
        for path in ("/page/feed", "/state", "/static", "/v1/models"):
            assert server.http.get(path).status_code == 401
        headers = {"authorization": "Bearer secret"}
        with server.http.stream("GET", "/page/feed", headers=headers) as answer:
            assert answer.status_code == 200


def test_a_slow_page_holds_up_nobody_and_gets_the_newest_state(model: str) -> None:
    """Its snapshot is larger than all buffers on the way, so the server really has to wait for it."""
    script = Path(__file__).with_name("narrow_server.py")
    flags = ("--num-gpu-blocks-override", "100000", "--max-num-seqs", "8")
    with serving(model, *flags, script=script) as server:
        slow = Reader(server)
        slow.read(wanted=1, seconds=5)
        began, asked = time.monotonic(), 0
        while time.monotonic() - began < 4:  # longer than what a page may be behind
            body = {"prompt": [asked % 99] * 200, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
            server.post("/v1/completions", body)
            asked += 1
        assert asked > 3, "the others were served"
        server.wait_until_idle()
        slow.read(seconds=3)
        slow.close()
        told = frames(slow.data)
        kinds = [frame["kind"] for frame in told]
        assert kinds[0] == "snapshot" and "snapshot" in kinds[1:], "what it missed was not kept for it"
        last = told[-1]
        assert last["pool"]["cached"] == server.metric("kv_blocks", state="cached")
        assert last["figures"]["totals"]["generation_tokens"] == asked * 400


def test_an_open_page_does_not_hold_up_the_servers_end(model: str) -> None:
    with serving(model, "--num-gpu-blocks-override", "40") as server:
        reader = Reader(server)
        reader.read(wanted=100, seconds=5)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 3
        reader.close()


def test_a_look_at_the_feeds_headers_ends(server: ServerProcess) -> None:
    answer = server.http.head("/page/feed")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_the_page_is_read_only(server: ServerProcess, method: str) -> None:
    for path in ("/", "/page/config.json", "/page/feed", "/static/main.js"):
        assert server.http.request(method, path).status_code == 405
