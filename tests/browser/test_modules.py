"""The page's modules, run in a browser against what Python makes of the same frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from frame_helpers import Page as Reading
from frame_helpers import Run
from server_process import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]

READ = """async (frames) => {
  const { PoolState } = await import('/static/frames.js');
  const state = new PoolState();
  for (const text of frames) if (!state.apply(JSON.parse(text))) throw new Error('a frame is missing');
  const columns = {};
  for (const key of ['flags', 'owner', 'position', 'fill', 'refs']) columns[key] = [...state[key]];
  const hashes = [...state.flags.keys()].map((block) => state.hash(block));
  const tables = Object.fromEntries(state.running.map(({ number }) => [number, state.table(number)]));
  const gap = state.apply({ ...JSON.parse(frames.at(-1)), kind: 'delta', sequence: state.sequence + 2 });
  return { columns, hashes, tables, gap, released: [...state.released], requests: [...state.requests.keys()] };
}"""

REMEMBER = """async ([frames, secondsMax, bytesMax]) => {
  const { PoolState } = await import('/static/frames.js');
  const { History } = await import('/static/history.js');
  const state = new PoolState(), history = new History({ secondsMax, bytesMax }), seen = [];
  const print = ({ sequence, time, flags, fill, running, requests }) =>
    JSON.stringify([sequence, time, [...flags], [...fill], running, [...requests]]);
  let bytes = 0;
  for (const text of frames) {
    state.apply(JSON.parse(text));
    history.add(JSON.parse(text), state, text.length);
    seen.push(print(state));
    bytes = Math.max(bytes, history.bytes);
  }
  const wrong = [];
  for (let moment = history.first; moment <= history.last; moment++) {
    if (print(history.stateAt(moment)) !== seen[moment]) wrong.push(moment);
    if (history.momentOf(history.pointAt(moment).time) > moment) wrong.push(-moment);
  }
  return { first: history.first, last: history.last, wrong, bytes,
           span: state.time - history.pointAt(history.first).time, points: history.figures.points.length };
}"""

PAINTED = """async () => {
  const { mapColours, themeColour } = await import('/static/palette.js');
  return [mapColours().back, themeColour('--line')];
}"""
"""The map's back as a pixel, 0xAABBGGRR, and the plots' lines."""


def made(steps: int, **settings: Any) -> tuple[list[str], Run]:
    """Frames of a busy run with sharing, preemptions and evictions."""
    run = Run(60, max_num_seqs=6, max_model_len=400, **settings)
    random = np.random.default_rng(5)
    frames = [json.dumps(run.snapshot())]
    for number in range(steps):
        if number % 4 == 0:
            begin = np.arange(48 if number % 3 else 0)
            prompt = np.concatenate((begin, random.integers(0, 50, int(random.integers(5, 90)))))
            run.add(f"r{number}", prompt.astype(np.int32), int(random.integers(5, 60)))
        run.steps(2)
        frames.append(json.dumps(run.delta()))
    return frames, run


@pytest.fixture
def page(live: ServerProcess, open_page: OpenPage) -> Page:
    return open_page(live.url)


@pytest.mark.parametrize("allocator", ["paged", "reserved"])
def test_the_browser_reads_frames_as_python_does(page: Page, allocator: str) -> None:
    frames, run = made(60, allocator=allocator)
    reading = Reading(json.loads(frames[0]))
    for frame in frames[1:]:
        reading.apply(json.loads(frame))
    told = page.evaluate(READ, frames)
    live = (reading.columns["flags"] & 1) > 0
    for name, column in reading.columns.items():
        # Of blocks that nobody holds, Python's reading leaves the fill open; a cached one is full.
        which = live if name == "fill" else np.ones_like(live)
        assert np.array(told["columns"][name])[which].tolist() == column[which].tolist(), name
    findable = (reading.columns["flags"] & 2) > 0
    assert told["hashes"] == [
        reading.names[block].hex() if findable[block] else None for block in range(len(findable))
    ]
    numbers = [sequence.arrival + 1 for sequence in run.scheduler.running.sequences]
    assert numbers, "some run at the end"
    assert told["tables"] == {str(number): reading.table(number) for number in numbers}
    assert set(numbers) <= set(told["requests"])
    assert told["gap"] is False, "a frame that does not follow is refused"


def test_every_moment_is_remembered_as_it_was(page: Page) -> None:
    frames, _ = made(80)
    told = page.evaluate(REMEMBER, [frames, 10_000, 1 << 30])
    assert (told["first"], told["last"], told["wrong"]) == (0, 80, [])


def test_what_is_remembered_is_bounded_in_time(page: Page) -> None:
    frames, _ = made(80)
    told = page.evaluate(REMEMBER, [frames, 40, 1 << 30])
    assert told["wrong"] == [] and told["first"] > 0
    assert 40 <= told["span"] <= 40 + 12, "the clock's units; a keyframe every 10"
    assert told["points"] == told["last"] - told["first"] + 1


def test_what_is_remembered_is_bounded_in_bytes(page: Page) -> None:
    frames, _ = made(80)
    told = page.evaluate(REMEMBER, [frames, 10_000, 60_000])
    assert told["wrong"] == [] and told["first"] > 0
    assert told["bytes"] < 90_000, "the latest stretch stays, whatever its size"


def test_the_theme_is_chosen_and_remembered(page: Page) -> None:
    back = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light" and page.evaluate(back) == light
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark" and page.evaluate(back) != light
    page.reload()
    assert page.inner_text("#theme") == "Theme: dark" and page.evaluate(back) != light


@pytest.mark.parametrize("system", ["light", "dark"])
def test_what_scripts_paint_follows_the_theme(live: ServerProcess, open_page: OpenPage, system: str) -> None:
    page = open_page(live.url, theme=system)

    def painted() -> list[object]:
        found: list[object] = page.evaluate(PAINTED)
        return found

    light, dark = [0xFF_FFFFFF, "rgb(214, 221, 228)"], [0xFF_2A2118, "rgb(52, 66, 79)"]
    shown = {"light": light, "dark": dark}
    assert painted() == shown[system]
    for chosen in ("light", "dark"):
        page.click("#theme")
        assert page.inner_text("#theme") == f"Theme: {chosen}" and painted() == shown[chosen]
    page.click("#theme")
    other = "light" if system == "dark" else "dark"
    page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    assert page.inner_text("#theme") == "Theme: as the system" and painted() == shown[other]


def test_tabs_are_walked_with_arrow_keys(page: Page) -> None:
    page.wait_for_selector("#tab-live[aria-selected=true]")
    page.focus("#tab-live")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#tab-walk[aria-selected=true]")
    page.wait_for_selector("#panel-live", state="hidden")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tab-live[aria-selected=true]")
    page.wait_for_selector("#panel-live")
    assert page.url.endswith("#live")


def test_terms_say_what_they_mean(page: Page) -> None:
    page.wait_for_selector(".tiles")
    page.locator("button.term", has_text="shared").first.click()
    note = page.locator(".term-note:popover-open")
    assert "More than one request holds it" in note.inner_text()
    page.keyboard.press("Escape")
    assert note.count() == 0
