"""Lab: the article's figures on the page, moves of its controls, the address, and who can use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab_page import answered, answers, at_step, figure, query, requests_shown

OpenPage = Callable[..., Any]
WIDE, NARROW = (1280, 900), (390, 844)
ARTICLE = {"reserved": (43.7, 48.0), "paged": (95.4, 99.8)}
"""Policy -> (tokens a step, percent effective) of the article at its defaults; see its bounds below."""


# ---------------------------------------------------------------------- answers


def test_the_defaults_show_the_articles_figures(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    answered(page)
    found = answers(page)
    for policy, (tokens, effective) in ARTICLE.items():
        assert found[policy][0] == pytest.approx(tokens, rel=0.025)
        assert found[policy][1] == pytest.approx(effective, abs=1.5)
    assert 35 <= int(figure(page, "preemptions", "paged")) <= 60
    assert 90 <= int(figure(page, "discarded", "paged")) <= 190
    assert float(figure(page, "empty", "paged").removesuffix(" MiB")) == pytest.approx(101, rel=0.03)
    assert figure(page, "table", "paged") == "1.25 MiB"
    assert float(figure(page, "slowed", "paged")) == pytest.approx(0.77 * 95.4, rel=0.025)
    assert query(page) == "lab", "the address of the defaults is bare"


def test_declaring_more_collapses_contiguous_and_leaves_paged_alone(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    answered(page)
    before = answers(page)
    page.locator("#lab-max_tokens-slider").press("End")  # the keyboard drags it to its end
    answered(page, 2)
    after = answers(page)
    assert page.input_value("#lab-max_tokens") == "16384"
    assert after["reserved"][0] == 12.0
    assert after["reserved"][1] == pytest.approx(13.5, abs=1.5)
    assert after["paged"] == before["paged"]
    assert figure(page, "sequences", "reserved") == "12"


def test_dragging_shows_answers_on_the_way_and_the_last_one_in_the_end(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    answered(page)
    box = page.locator("#lab-spread-slider").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + box["height"] / 2)
    page.mouse.down()
    for place in range(35, 100, 2):
        page.mouse.move(box["x"] + box["width"] * place / 100, box["y"] + box["height"] / 2)
        page.wait_for_timeout(15)
    page.mouse.up()
    page.wait_for_timeout(100)
    answered(page, 2)
    spread = page.input_value("#lab-spread")
    assert int(spread) > 150
    dragged = answers(page)
    fresh = open_page(f"{lab}/#lab?spread={spread}")
    answered(fresh)
    assert answers(fresh) == dragged


def test_the_cases_where_paging_stops_helping_and_sharing_pays(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab?spread=0&round_up=false")
    answered(page)
    found = answers(page)
    assert found["oracle"] == (pytest.approx(96.7, rel=0.025), pytest.approx(96.9, abs=1.5))
    assert found["paged"][0] == pytest.approx(96.3, rel=0.025)
    assert found["paged"][0] < found["oracle"][0]
    page.check("#lab-share")
    answered(page, 2)
    assert "992 tokens" in figure(page, "shared", "paged")
    page = open_page(f"{lab}/#lab?spread=100&round_up=false&allocator=oracle")
    answered(page)
    assert 2_900 <= int(figure(page, "blocked", "oracle").replace(",", "")) <= 3_000


def test_a_wrong_value_in_the_address_is_named(lab: str, open_page: OpenPage) -> None:
    for given, words in (
        ("max_tokens=20000", "max_tokens is 20000; it must be from 1 to 16384"),
        ("block_size=17", "block_size is 17; choose one of 1, 2, 4"),
        ("seed=%3Cb%3E", "seed is '<b>'; it must be a whole number"),
        ("nonsense=1", "'nonsense' is no setting of the lab"),
        ("step=-1", "step is “-1”; it must be a whole number from 0 to"),
        ("speed=3", "speed is “3”; it must be one of 1, 2, 5"),
        ("pool_gib=1", "it must be at least 2.25"),
    ):
        page = open_page(f"{lab}/#lab?{given}", quiet=False)  # the browser logs the 400
        page.wait_for_selector(".lab-form .lab-complaint:not([hidden])")
        assert words in page.inner_text(".lab-form .lab-complaint")


# ---------------------------------------------------------------------- the address


def test_every_state_is_an_address_and_back_goes_back(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    answered(page)
    page.select_option("#lab-model", "llama-3.1-8b")
    page.check("#lab-share")
    page.fill("#lab-seed", "7")
    page.press("#lab-seed", "Enter")
    page.select_option("#lab-compare", "oracle")
    page.locator("#lab-block_size").press("ArrowRight")
    page.select_option("#lab-speed", "50")
    page.click("text=+ 100")
    at_step(page, 200)
    page.wait_for_function("() => location.hash.includes('step=200')")
    state = query(page)
    for part in ("model=llama-3.1-8b", "share=true", "seed=7", "compare=oracle", "block_size=32", "speed=50"):
        assert part in state
    answered(page)
    shown = answers(page), requests_shown(page)

    again = open_page(f"{lab}/#{state}")
    at_step(again, 200)
    answered(again)
    assert again.is_checked("#lab-share")
    assert again.input_value("#lab-seed") == "7"
    assert again.input_value("#lab-model") == "llama-3.1-8b"
    assert (answers(again), requests_shown(again)) == shown
    assert query(again) == state

    page.go_back()  # the block size was the latest entry of the history
    page.wait_for_function("() => document.querySelector('#lab-block_size').value === '4'")
    assert page.input_value("#lab-compare") == "oracle"
    page.go_forward()
    page.wait_for_function("() => document.querySelector('#lab-block_size').value === '5'")


def test_the_lab_is_as_it_was_left(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab?max_tokens=512")
    answered(page)
    page.click("#tab-walk")
    page.wait_for_selector("#panel-walk .walk-block")
    page.click("#tab-lab")
    page.wait_for_function("() => location.hash === '#lab?max_tokens=512'")
    assert page.input_value("#lab-max_tokens") == "512"


# ---------------------------------------------------------------------- people


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_people_out(lab: str, open_page: OpenPage, check_access: Any, theme: str) -> None:
    page = open_page(f"{lab}/#lab", theme=theme)
    answered(page)
    at_step(page, 100)
    check_access(page)


@pytest.mark.parametrize(("width", "size"), [("wide", WIDE), ("narrow", NARROW)])
def test_it_fits_and_is_pictured(
    lab: str, open_page: OpenPage, pictures: Path, width: str, size: Any
) -> None:
    page = open_page(f"{lab}/#lab", size)
    answered(page)
    at_step(page, 100)
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"lab-{width}.png", full_page=True)


def test_every_control_has_a_name_bounds_and_a_sentence(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    answered(page)
    told = page.eval_on_selector_all(
        ".lab-form input, .lab-form select",
        "all => all.map(e => [e.id, (e.labels[0]?.textContent ?? e.ariaLabel ?? '').trim(), e.type, e.min, e.max,"
        " document.getElementById(e.getAttribute('aria-describedby'))?.textContent ?? ''])",
    )
    assert len(told) >= 11
    for name, label, kind, least, most, help_ in told:
        assert label and help_, name
        if kind in ("range", "number"):
            assert least != "" and most != "", name
