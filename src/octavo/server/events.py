"""Server-sent events, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


LINE_ENDS = (("\u0085", rb"\u0085"), ("\u2028", rb"\u2028"), ("\u2029", rb"\u2029"))
"""Characters that end a line for Python's splitlines, and so for clients that read streams with httpx's iter_lines, but
neither in JSON nor in server-sent events. msgspec escapes the others."""
_ESCAPES = tuple((character.encode(), escape) for character, escape in LINE_ENDS)


def event(value: Any) -> bytes:
    """One event on one line, whoever splits the lines."""
    text = _encode(value)
    for raw, escape in _ESCAPES:
        text = text.replace(raw, escape)
    return b"data: " + text + b"\n\n"


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed the connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come; stops at once when the client goes. ``on_close`` is called in every case."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        on_close: Callable[[], None],
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._on_close()
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for body in self._events:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
