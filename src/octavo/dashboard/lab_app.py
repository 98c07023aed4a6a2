"""The application of ``octavo lab``: the page with the lab and the walk, and nothing that needs a model."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from octavo import __version__
from octavo.dashboard.lab_routes import Lab
from octavo.dashboard.routes import page_routes

PARTS = ("lab", "walk")


class LabServer(uvicorn.Server):
    """Ends the lab's processes before it waits for open answers: they end with them, in a line that says so, where
    waiting would take as long as their runs, and cancelling them prints a traceback."""

    def __init__(self, config: uvicorn.Config, lab: Lab) -> None:
        super().__init__(config)
        self._lab = lab

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._lab.close()
        await super().shutdown(sockets)


def build_lab_app(lab: Lab, on_ready: Callable[[], None] = lambda: None) -> Starlette:
    """``on_ready``: called when requests are answered. The lab's processes start then and end with the application."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        on_ready()
        starting = asyncio.create_task(lab.processes.warm_up())
        try:
            yield
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await lab.close()

    return Starlette(routes=[*page_routes(PARTS, {"version": __version__}), *lab.routes()], lifespan=lifespan)
