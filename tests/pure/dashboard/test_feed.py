"""The feed, with pages that are fast, slow or gone, over an engine of the simulator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from frame_helpers import Page, Run
from octavo.dashboard import feed as feed_module
from octavo.dashboard.feed import PENDING_MAX, Feed, Subscriber


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "INTERVAL_S", 0.001)
    monkeypatch.setattr(feed_module, "BEAT_S", 0.005)


class Watched:
    """A feed whose engine takes a step before each look, and counts the looks."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.looks = 0
        self.feed = Feed(run.engine, self.ask)

    async def ask(self, question: Callable[[], Any]) -> Any:
        self.looks += 1
        self.run.steps(1)
        return question()

    async def ended(self) -> None:
        while self.feed._task is not None:
            await asyncio.sleep(0.001)


def frames_of(data: bytes) -> list[dict[str, Any]]:
    events = data.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def read(subscriber: Subscriber, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    async for data in subscriber.events():
        frames += frames_of(data)
        if until(frames[-1]):
            break
    return frames


def within(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(limited())


def busy(run: Run) -> None:
    for number in range(12):
        run.add(f"r{number}", np.arange(number, number + 30, dtype=np.int32), 60)


def finished(run: Run) -> Callable[[dict[str, Any]], bool]:
    return lambda frame: frame["figures"]["running"] == 0 and frame["figures"]["waiting"] == 0


def test_a_page_gets_a_snapshot_and_then_deltas_that_lead_to_the_end() -> None:
    run = Run(200)
    busy(run)
    watched = Watched(run)

    async def main() -> list[dict[str, Any]]:
        subscriber = watched.feed.join()
        frames = await read(subscriber, finished(run))
        watched.feed.leave(subscriber)
        await watched.ended()
        return frames

    first, *rest = within(main())
    assert first["kind"] == "snapshot" and first["boot"] == watched.feed.boot
    page = Page(first)
    for frame in rest:
        assert frame["kind"] == "delta"
        page.apply(frame)
    end = Page(run.source.whole() if run.source.moved else run.snapshot())
    assert {name: column.tolist() for name, column in page.columns.items()} == {
        name: column.tolist() for name, column in end.columns.items()
    }


def test_nothing_is_done_while_nobody_listens() -> None:
    run = Run(100)
    watched = Watched(run)
    sink = run.engine.sink

    async def main() -> None:
        assert watched.looks == 0
        subscriber = watched.feed.join()
        await read(subscriber, lambda frame: True)
        assert run.engine.sink is not sink
        watched.feed.leave(subscriber)
        await watched.ended()
        looks = watched.looks
        await asyncio.sleep(0.02)
        assert watched.looks == looks
        assert run.engine.sink is sink, "no record passes through the feed any more"
        # The next page finds everything as the first did.
        again = watched.feed.join()
        (frame,) = await read(again, lambda frame: True)
        assert frame["kind"] == "snapshot"
        watched.feed.close()
        await watched.ended()
        assert watched.feed.num_subscribers == 0

    within(main())


def test_an_idle_engine_gives_a_sign_of_life_and_no_more() -> None:
    watched = Watched(Run(100))

    async def main() -> tuple[list[dict[str, Any]], int]:
        subscriber = watched.feed.join()
        frames: list[dict[str, Any]] = []
        async for data in subscriber.events():
            frames += frames_of(data)
            if len(frames) == 4:
                break
        watched.feed.close()
        return frames, watched.looks

    frames, looks = within(main())
    assert [frame["sequence"] for frame in frames] == list(
        range(frames[0]["sequence"], frames[0]["sequence"] + 4)
    )
    assert looks > 6, "it looked more often than it told"


def test_a_slow_page_is_bounded_and_then_gets_the_newest_state() -> None:
    run = Run(200)
    busy(run)
    watched = Watched(run)

    async def main() -> None:
        slow, fast = watched.feed.join(), watched.feed.join()
        events = slow.events()
        (first,) = frames_of(await anext(events))
        assert first["kind"] == "snapshot"
        frames = await read(fast, finished(run))
        assert len(frames) > 2 * PENDING_MAX, "the fast one was not held up"
        assert len(slow._pending) <= PENDING_MAX
        assert slow.stale
        (snapshot,) = frames_of(await anext(events))
        assert snapshot["kind"] == "snapshot" and finished(run)(snapshot), "the newest state wins"
        (delta, *_) = frames_of(await anext(events))
        assert delta["sequence"] == snapshot["sequence"] + 1
        watched.feed.close()
        await watched.ended()

    within(main())


def test_a_page_that_reads_nothing_is_given_no_snapshot_again_and_again() -> None:
    run = Run(200)
    busy(run)
    watched = Watched(run)

    async def main() -> None:
        slow, fast = watched.feed.join(), watched.feed.join()
        await read(fast, finished(run))
        assert not slow.wants_snapshot and not slow._pending
        watched.feed.close()

    within(main())


def test_a_dead_engine_ends_the_streams() -> None:
    async def ask(question: Callable[[], Any]) -> Any:
        raise RuntimeError("the engine has died")

    async def main() -> None:
        feed = Feed(Run(10).engine, ask)
        subscriber = feed.join()
        assert [data async for data in subscriber.events()] == []
        assert feed.num_subscribers == 0

    within(main())


def test_a_frame_that_cannot_be_made_ends_the_streams_and_leaves_the_engine_alone() -> None:
    watched = Watched(Run(20))
    sink = watched.run.engine.sink

    async def main() -> None:
        subscriber = watched.feed.join()
        await read(subscriber, lambda frame: True)
        assert watched.feed._source is not None
        watched.feed._source.advance = None  # type: ignore[assignment, method-assign]
        async for _ in subscriber.events():
            pass
        await watched.ended()
        assert watched.run.engine.sink is sink and watched.feed.num_subscribers == 0
        again = watched.feed.join()
        (frame,) = await read(again, lambda frame: True)
        assert frame["kind"] == "snapshot"
        watched.feed.close()
        await watched.ended()

    within(main())


def test_snapshots_are_shared_by_pages_that_come_together() -> None:
    watched = Watched(Run(100))

    async def main() -> None:
        pages = [watched.feed.join() for _ in range(3)]
        got = await asyncio.gather(*(read(page, lambda frame: True) for page in pages))
        assert len({frames[0]["sequence"] for frames in got}) == 1
        watched.feed.close()

    within(main())
