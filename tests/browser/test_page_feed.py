"""The page through a restart, with a key, and with a pool of a hundred thousand blocks."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from octavo.core.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.dashboard.frames import FrameSource
from octavo.engine.engine import Engine
from octavo.simulation.driver import build_scheduler
from octavo.simulation.executor import SimulatedExecutor, StepCost, VirtualClock
from octavo.simulation.requests import SimulatedRequest
from server_process import ServerProcess, serving, write_model

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
FRAME_MS_MAX = 33.0
"""Thirty pictures a second, drawn by the processor alone."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("tiny"))


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def connected(page: Page) -> None:
    page.wait_for_function("() => document.querySelector('#connection').textContent === 'Connected'")


def shows(page: Page, text: str) -> None:
    page.wait_for_function("text => document.querySelector('.tiles dd')?.textContent === text", arg=text)


def test_the_page_survives_a_restart(model: str, open_page: OpenPage) -> None:
    port = free_port()
    with serving(model, "--num-gpu-blocks-override", "50", "--port", port) as server:
        page = open_page(server.url, quiet=False)
        shows(page, "0, 0, 50")
        server.post("/v1/completions", {"prompt": [3] * 40, "max_tokens": 1})
        shows(page, "0, 2, 48")
        page.wait_for_selector(".log-line")
    page.wait_for_function("() => /lost/.test(document.querySelector('#connection').textContent)")
    with serving(model, "--num-gpu-blocks-override", "70", "--port", port):
        connected(page)
        shows(page, "0, 0, 70")
        assert page.locator(".log-line").count() == 0, "decisions of the server that is gone"
        assert page.get_attribute("#moment", "min") == "0"


def test_the_key_is_asked_for_and_stays_in_the_tab(model: str, open_page: OpenPage) -> None:
    with serving(model, "--num-gpu-blocks-override", "50", "--api-key", "a secret") as server:
        page = open_page(server.url, quiet=False)
        page.fill("#api-key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=That key was not accepted")
        page.fill("#api-key", "a secret")
        page.keyboard.press("Enter")
        connected(page)
        shows(page, "0, 0, 50")
        assert "secret" not in page.url
        assert page.evaluate("JSON.stringify(localStorage)").find("secret") < 0
        page.fill("#chat-length", "4")
        page.fill("#chat-text", "hello")
        page.keyboard.press("Control+Enter")
        page.click("text=Send")
        page.wait_for_function("() => /token/.test(document.querySelector('.assistant .foot')?.textContent)")


def large_pool() -> Iterator[dict[str, object]]:
    """A snapshot of a busy pool of 100,000 blocks, then deltas."""
    scheduler = build_scheduler(
        CacheConfig(num_blocks=100_000), SchedulerConfig(max_num_seqs=256, max_model_len=16384)
    )
    clock = VirtualClock()
    executor = SimulatedExecutor(clock, StepCost(), max_num_seqs=256)
    source = FrameSource(scheduler)
    engine = Engine(scheduler, executor, clock, source)
    random = np.random.default_rng(0)
    for number in range(120):
        tokens = random.integers(0, 9, int(random.integers(5000, 12000))).astype(np.int32)
        request = Request(f"request-{number}", tokens, SamplingParams(max_tokens=600))
        executor.expect(SimulatedRequest(0.0, request, 600, number))
        engine.add(request)
    for _ in range(500):
        engine.step()
    yield source.snapshot(clock.now())
    while True:
        for _ in range(3):
            engine.step()
        yield source.delta(clock.now())


DRAW = """async (frames) => {
  const { PoolState } = await import('/static/frames.js');
  const { mapView } = await import('/static/map_view.js');
  const view = mapView({ label: 'Large pool' });
  document.body.replaceChildren(view.element);
  const state = new PoolState();
  const frame = () => new Promise(requestAnimationFrame);
  const times = { apply: [], draw: [], all: [] };
  const parsed = frames.map((text) => JSON.parse(text));
  for (const one of parsed) {
    const began = performance.now();
    if (!state.apply(one)) throw new Error('a frame is missing');
    times.apply.push(performance.now() - began);
    if (one.kind === 'snapshot') view.map.draw(state), view.map.showAll();
    view.draw(state);
    await frame();
    await frame();
    times.draw.push(view.map.drawMs);
    times.all.push(performance.now() - began);
  }
  const middle = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
  return { total: state.flags.length, perCell: Number(view.element.querySelector('canvas').dataset.perCell),
           snapshot: times.apply[0], apply: middle(times.apply.slice(1)), draw: middle(times.draw) };
}"""


def test_a_hundred_thousand_blocks_are_drawn_smoothly(
    live: ServerProcess, open_page: OpenPage, pictures: Path
) -> None:
    source = large_pool()
    frames = [json.dumps(next(source)) for _ in range(30)]
    assert len(frames[0]) < 1_300_000
    page = open_page(live.url)
    connected(page)
    measured = page.evaluate(DRAW, frames)
    print(f"\n100,000 blocks: {measured}, snapshot {len(frames[0]):,} bytes")
    assert measured["total"] == 100_000
    assert measured["perCell"] > 1, "blocks are put together where they would be too small"
    assert measured["draw"] < FRAME_MS_MAX and measured["apply"] < FRAME_MS_MAX
    page.screenshot(path=pictures / "large-pool.png")
    # Choosing a cell zooms in, until a cell is a block.
    canvas = page.locator("canvas.map")
    while int(canvas.get_attribute("data-per-cell") or 0) > 1:
        canvas.click(position={"x": 40, "y": 40})
        page.wait_for_timeout(100)
    page.screenshot(path=pictures / "large-pool-zoomed.png")
    note = page.inner_text(".map-note")
    assert note.startswith("Block ")
