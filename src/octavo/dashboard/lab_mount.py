"""``LabMount``: the lab and the walk in a server with better things to do, loaded when somebody first asks for them.

The simulator's modules would cost a server a tenth of a second before its first token; its processes start later still,
with the first question that needs one.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from octavo.dashboard.lab_routes import Lab


class LabMount:
    """An ASGI application for everything below /lab/ and /walk/."""

    def __init__(self) -> None:
        self._lab: Lab | None = None
        self._router: Router | None = None
        self._loading = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        return [Route("/lab/{rest:path}", self), Route("/walk/{rest:path}", self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._loading:
            if self._router is None:
                module = await asyncio.to_thread(import_module, "octavo.dashboard.lab_routes")
                self._lab = module.Lab()
                self._router = Router(routes=self._lab.routes())
        await self._router(scope, receive, send)

    async def close(self) -> None:
        """End the lab's processes."""
        if self._lab is not None:
            await self._lab.close()
