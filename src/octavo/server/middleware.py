"""ASGI middleware: API keys and body size. Neither buffers a response."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.dashboard import routes as page
from octavo.server.errors import TOO_LARGE, UNAUTHORIZED, ApiError

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/version", *page.OPEN_PATHS})
"""What probes, scrapers and browsers ask for; answered without a key."""


def bearer(scope: Scope) -> bytes:
    """The key that came with a request; empty if none did."""
    given: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, token = given.partition(b" ")
    return token.strip() if kind.lower() == b"bearer" else b""


class ApiKeys:
    """401 for requests without one of the keys. Every key is compared, in constant time, whichever matches."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._guarded(scope) and not self._allowed(scope):
            error = ApiError(UNAUTHORIZED, "the API key is missing or wrong; send Authorization: Bearer KEY")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _guarded(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            return False
        path: str = scope["path"]
        return path not in OPEN_PATHS and not path.startswith(page.OPEN_PREFIX)

    def _allowed(self, scope: Scope) -> bool:
        token = bearer(scope)
        matches = [hmac.compare_digest(token, key) for key in self._keys]
        return any(matches)


class BodyLimit:
    """413 for a body over the limit, as soon as its length is known."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await self._error(int(declared)).response()(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise self._error(seen)
            return message

        await self._app(scope, counted, send)

    def _error(self, size: int) -> ApiError:
        return ApiError(
            TOO_LARGE,
            f"the body has {size:,} bytes or more; this server takes {self._limit:,} (--max-body-bytes)",
        )
