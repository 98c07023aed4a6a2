"""``Feed``: frames of a running engine to every open page, as server-sent events.

While nobody listens it does nothing: no task runs and no record passes through it. Pages share one look at the engine,
so a second one costs little. A slow page never holds up the engine, the server or another page: what it has not read is
bounded, and beyond that is thrown away for a snapshot of the newest state once it reads again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from octavo.core.ports import Sink
from octavo.dashboard.frames import FrameSource
from octavo.engine.engine import Engine
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.sinks import FanOut

log = logging.getLogger(__name__)
INTERVAL_S = 0.1
"""Between two frames."""
BEAT_S = 1.0
"""Between two frames while nothing moves."""
PENDING_MAX = 20
"""Frames that a page may be behind."""
PENDING_BYTES_MAX = 1 << 20
"""The same in bytes; a snapshot, which may be larger, counts as none."""

Ask = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function where the engine is, between two steps, and answers what it returned."""


def event(frame: dict[str, Any]) -> bytes:
    """A frame as a server-sent event."""
    return b"data: " + msgspec.json.encode(frame) + b"\n\n"


class Subscriber:
    """One open page."""

    def __init__(self) -> None:
        self.stale = True
        """Whether it needs a snapshot before any delta is of use."""
        self.reading = False
        """Whether it has taken all that it was given and waits for more."""
        self.closed = False
        self._pending: list[bytes] = []
        self._bytes = 0
        self._signal = asyncio.Event()

    @property
    def wants_snapshot(self) -> bool:
        """One that still reads what it was given gets none: by the time it is done there is a newer state."""
        return self.stale and self.reading

    def give_snapshot(self, data: bytes) -> None:
        self._pending = [data]
        self._bytes = 0
        self.stale = False
        self._signal.set()

    def give_delta(self, data: bytes) -> None:
        if self.stale:
            return
        self._pending.append(data)
        self._bytes += len(data)
        if len(self._pending) > PENDING_MAX or self._bytes > PENDING_BYTES_MAX:
            self._pending, self._bytes, self.stale = [], 0, True
        self._signal.set()

    def close(self) -> None:
        self.closed = True
        self._signal.set()

    async def events(self) -> AsyncIterator[bytes]:
        while not self.closed:
            if not self._pending:
                self._signal.clear()
                self.reading = True
                await self._signal.wait()
                self.reading = False
            pending, self._pending, self._bytes = self._pending, [], 0
            if pending:
                yield b"".join(pending)


class FeedResponse(StreamingResponse):
    """The stream of one page; leaves the feed however the connection ends."""

    def __init__(self, feed: Feed, subscriber: Subscriber) -> None:
        headers = {
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            "x-content-type-options": "nosniff",
        }
        super().__init__(subscriber.events(), headers=headers, media_type="text/event-stream")
        self._feed = feed
        self._subscriber = subscriber

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave(self._subscriber)


class Feed:
    """Lives in the event loop; ``_attach``, ``_look`` and ``_detach`` run where the engine is."""

    def __init__(self, engine: Engine, ask: Ask, metrics: Metrics | None = None) -> None:
        self.boot = uuid.uuid4().hex
        """Another one after every start of the server: a page that sees it change starts afresh."""
        self._engine = engine
        self._ask = ask
        self._metrics = metrics
        self._subscribers: set[Subscriber] = set()
        self._task: asyncio.Task[None] | None = None
        self._sequence = 0
        self._source: FrameSource | None = None
        self._sink: Sink | None = None
        """The engine's sink without the source."""

    async def stream(self, request: Request) -> Response:
        """GET: a snapshot, then deltas. HEAD: what they would be."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return FeedResponse(self, self.join())

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def join(self) -> Subscriber:
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        subscriber.close()
        self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End every stream: the server is about to end."""
        for subscriber in list(self._subscribers):
            self.leave(subscriber)

    # ------------------------------------------------------------------ the loop's side

    async def _run(self) -> None:
        try:
            await self._ask(self._attach)
            try:
                await self._tell()
            finally:
                await self._ask(self._detach)
        except Exception as error:
            # The engine has died, of which the server tells more, or a frame could not be made: no reason to end.
            log.warning("The page's feed ends: %r", error)
            self.close()
        finally:
            self._task = None
        if self._subscribers:  # somebody came while the source was taken off
            self._task = asyncio.ensure_future(self._run())

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        told_at = 0.0
        while self._subscribers:
            began = loop.time()
            beat = began - told_at >= BEAT_S
            wanting = [subscriber for subscriber in self._subscribers if subscriber.wants_snapshot]
            changes, whole = await self._ask(partial(self._look, beat, bool(wanting)))
            if changes is not None:
                told_at = began
                data = event(changes)
                for subscriber in self._subscribers:
                    subscriber.give_delta(data)
            if whole is not None:
                data = event({**whole, "boot": self.boot})
                for subscriber in wanting:
                    subscriber.give_snapshot(data)
            await asyncio.sleep(max(0.0, began + INTERVAL_S - loop.time()))

    # ------------------------------------------------------------------ the engine's side

    def _attach(self) -> None:
        self._source = FrameSource(self._engine.scheduler, self._metrics)
        self._sink = self._engine.sink
        self._engine.sink = FanOut([self._sink, self._source])

    def _detach(self) -> None:
        assert self._sink is not None
        self._engine.sink, self._sink, self._source = self._sink, None, None

    def _look(self, beat: bool, whole: bool) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """(delta, snapshot): the delta if something moved or it is time for a sign of life, the snapshot if asked."""
        source = self._source
        assert source is not None
        source.advance(self._engine.clock.now())
        changes = None
        if beat or source.moved:
            self._sequence += 1
            changes = {**source.changes(), "sequence": self._sequence}
        return changes, {**source.whole(), "sequence": self._sequence} if whole else None
