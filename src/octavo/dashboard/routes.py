"""The page's routes: its files, what it may load, and the one thing that it asks first."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
PLOTS = STATIC / "vendor" / "uPlot.esm.js"
"""Installed by ``make page``; without it the page shows tables."""
OPEN_PATHS = ("/", "/page/config.json")
OPEN_PREFIX = "/static/"
"""What a browser gets without a key: it cannot send one before the page has asked for it."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Files have no version in their names, so a browser asks each time; a 304 answers.
    "cache-control": "no-cache",
}
# Not every system's table knows these.
for kind, suffix in (("text/javascript", ".js"), ("text/css", ".css"), ("image/svg+xml", ".svg")):
    mimetypes.add_type(kind, suffix)


class _Files(StaticFiles):
    """The static folder, with the headers of the page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def page_routes(parts: Sequence[str], about: Mapping[str, Any]) -> list[BaseRoute]:
    """Routes of the page itself. ``parts``: its tabs, in order (live, lab, walk); ``about``: more for its config.json.

    What the parts ask for while they are shown are routes of their own.
    """

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    async def config(request: Request) -> Response:
        told = {"parts": list(parts), "plots": PLOTS.is_file(), **about}
        return Response(msgspec.json.encode(told), headers=HEADERS, media_type="application/json")

    return [
        Route("/", index, methods=["GET"]),
        Route("/page/config.json", config, methods=["GET"]),
        Mount("/static", _Files(directory=STATIC), name="static"),
    ]
