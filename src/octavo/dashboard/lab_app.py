"""The application of ``octavo lab``: the page with the lab and the walk, and nothing that needs a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from octavo import __version__
from octavo.dashboard.lab_routes import Lab
from octavo.dashboard.routes import page_routes

PARTS = ("lab", "walk")


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
