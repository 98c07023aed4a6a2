"""Walk: the tour on the page is the one that the server plays, stop by stop, by keys and by address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo.dashboard.walk import stops

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., Any]
STOPS = stops()["stops"]


def at_stop(page: Page, number: int) -> None:
    page.wait_for_selector(f"#panel-walk[data-stop='{number}']")


def test_every_stop_shows_its_blocks_event_and_formula(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#walk")
    for number, stop in enumerate(STOPS, start=1):
        at_stop(page, number)
        assert page.inner_text("#walk-title") == f"{number}. {stop['title']}"
        text = page.inner_text(".walk-stop")
        for paragraph in (*stop["text"], *stop["events"]):
            assert paragraph in text
        assert f"{stop['formula']['expression']} = {stop['formula']['result']}" in text
        shown = page.eval_on_selector_all(
            ".walk-block",
            "all => all.map(e => [e.dataset.state, e.classList.contains('marked'),"
            " e.querySelectorAll('[data-hue]').length])",
        )
        filled = [cell["filled"] if cell["state"] == "live" else 0 for cell in stop["cells"]]
        marked = [number in stop["blocks"] for number in range(len(stop["cells"]))]
        states = [cell["state"] for cell in stop["cells"]]
        assert shown == [list(one) for one in zip(states, marked, filled, strict=True)]
        if number < len(STOPS):
            page.click("text='Next'")
    assert page.is_disabled("text='Next'")
    assert page.url.endswith(f"#walk?stop={len(STOPS)}")


def test_keys_address_and_list_go_to_a_stop(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#walk?stop=4")
    at_stop(page, 4)
    page.locator("#walk-title").focus()
    page.keyboard.press("ArrowRight")
    at_stop(page, 5)
    page.keyboard.press("ArrowLeft")
    at_stop(page, 4)
    page.click(f"text='9. {STOPS[8]['title']}'")
    at_stop(page, 9)
    assert page.locator("[aria-current='step']").inner_text().startswith("9.")
    page.goto(f"{lab}/#walk?stop=99")
    at_stop(page, 1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_people_out(lab: str, open_page: OpenPage, check_access: Any, theme: str) -> None:
    page = open_page(f"{lab}/#walk?stop=5", theme=theme)
    at_stop(page, 5)
    check_access(page)


@pytest.mark.parametrize(("width", "size"), [("wide", (1280, 900)), ("narrow", (390, 844))])
def test_it_fits_and_is_pictured(
    lab: str, open_page: OpenPage, pictures: Path, width: str, size: tuple[int, int]
) -> None:
    page = open_page(f"{lab}/#walk?stop=7", size)
    at_stop(page, 7)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"walk-{width}.png", full_page=True)
