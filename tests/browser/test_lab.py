"""Lab: the article's figures on the page, moves of its controls, the address, runs that play, recordings."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab_process import running_lab
from lab_recordings import HOSTILE, write_recording

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

OpenPage = Callable[..., Any]
WIDE, NARROW = (1280, 900), (390, 844)
ARTICLE = {"reserved": (43.7, 48.0), "paged": (95.4, 99.8)}
"""Policy -> (tokens a step, percent effective) of the article at its defaults; see its bounds below."""


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    with running_lab() as url:
        yield url


def answered(page: Page, times: int = 1) -> None:
    """Until the three answers of the latest controls are whole."""
    page.wait_for_function(
        "times => { const e = document.querySelector('.lab-answers');"
        " return Number(e?.dataset.answered) >= times && e.getAttribute('aria-busy') === 'false'; }",
        arg=times,
    )


def answers(page: Page) -> dict[str, tuple[float, float]]:
    """Policy -> (tokens a step, percent effective), as shown."""
    found = page.eval_on_selector_all(
        ".lab-card",
        "cards => cards.map(c => [c.dataset.policy, c.dataset.tokens, c.dataset.effective, c.innerText])",
    )
    for _, tokens, effective, text in found:
        assert f"{float(tokens):.1f}" in text and f"{float(effective):.1f} % effective" in text
    return {policy: (float(tokens), float(effective)) for policy, tokens, effective, _ in found}


def at_step(page: Page, step: int) -> None:
    page.wait_for_selector(f".lab-player[data-step='{step}']")


def figure(page: Page, name: str, policy: str) -> str:
    return page.inner_text(f"tr[data-figure='{name}'] td[data-policy='{policy}']")


def requests_shown(page: Page) -> list[list[int]]:
    """Of each map, the numbers of the requests that run."""
    found = page.eval_on_selector_all(".lab-side", "sides => sides.map(side => side.dataset.requests)")
    return [[int(number) for number in text.split()] for text in found]


def query(page: Page) -> str:
    return page.url.partition("#")[2]


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


# ---------------------------------------------------------------------- runs


def test_two_maps_show_the_same_requests(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    at_step(page, 100)
    assert page.locator(".lab-side canvas").count() == 2
    contiguous, paged = requests_shown(page)
    assert 40 <= len(contiguous) <= 48 and 88 <= len(paged) <= 104
    # Both take them from the same queue, in order: what runs on the left also runs, or has ended, on the right.
    assert set(contiguous) <= set(range(1, max(contiguous) + 1))
    assert min(contiguous) <= min(paged) <= 10
    both = set(contiguous) & set(paged)
    lengths = page.eval_on_selector_all(".lab-side", "s => s.length")
    assert lengths == 2 and len(both) > 10
    page.select_option("#lab-compare", "none")
    page.wait_for_function("() => document.querySelectorAll('.lab-side').length === 1")
    assert page.locator("table.lab-figures").first.locator("thead th").count() == 2


def test_what_was_on_its_way_when_a_run_was_paused_is_in_the_address(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab?step=0")
    page.wait_for_selector(".lab-player[data-step='0'] .lab-side")
    page.select_option("#lab-speed", "500")
    held: list[Route] = []
    page.route("**/frames?*", lambda route: held.append(route))
    with page.expect_request("**/frames?*"):
        page.click("text='Play'")
    page.click("text='Pause'")
    page.wait_for_selector(".lab-player[data-playing='false']")
    for route in held:
        route.continue_()
    page.wait_for_function("() => Number(document.querySelector('.lab-player').dataset.step) > 0")
    step = page.get_attribute(".lab-player", "data-step")
    page.wait_for_function(f"() => location.hash.includes('step={step}&')", timeout=5_000)


def test_a_run_plays_steps_and_changes_its_speed(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab?step=0")
    page.wait_for_selector(".lab-player[data-step='0'] .lab-side")
    page.click("text='Step'")
    at_step(page, 1)
    page.click("text='Step'")
    at_step(page, 2)
    page.select_option("#lab-speed", "500")
    page.click("text='Play'")
    page.wait_for_function("() => Number(document.querySelector('.lab-player').dataset.step) > 300")
    page.click("text='Pause'")
    page.wait_for_selector(".lab-player[data-playing='false']")
    page.wait_for_timeout(300)
    fast = int(page.get_attribute(".lab-player", "data-step") or 0)
    page.wait_for_timeout(300)
    assert int(page.get_attribute(".lab-player", "data-step") or 0) == fast, "a paused run stands still"
    assert f"step={fast}" in query(page)
    page.select_option("#lab-speed", "1")
    page.click("text='Play'")
    at_step(page, fast + 1)
    page.click("text='Pause'")
    page.click("text='Restart'")
    at_step(page, 0)
    page.locator("#lab-seek").press("End")
    at_step(page, 3_000)
    page.wait_for_function("() => document.querySelector('.lab-step').textContent.includes('3,000')")
    found = page.inner_text(".lab-player table.lab-figures")
    paged = float(re.search(r"Tokens a step, so far\s+[\d.]+\s+([\d.]+)", found)[1])  # type: ignore[index]
    assert paged == pytest.approx(95.4, rel=0.03)


def test_a_run_goes_on_after_the_server_was_away(open_page: OpenPage) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with running_lab("--port", port) as url:
        page = open_page(f"{url}/#lab?speed=20", quiet=False)  # the browser logs what it cannot reach
        at_step(page, 100)
        shown = requests_shown(page)
        page.click("text='Play'")
        page.wait_for_function("() => Number(document.querySelector('.lab-player').dataset.step) > 110")
    page.wait_for_selector(".lab-player[data-playing='false']")
    page.wait_for_selector(".lab-form .lab-complaint:not([hidden])")
    assert "does not answer" in page.inner_text(".lab-form .lab-complaint")
    step = int(page.get_attribute(".lab-player", "data-step") or 0)
    with running_lab("--port", port) as url:
        page.click("text='Step'")
        at_step(page, step + 1)
        page.wait_for_selector(".lab-form .lab-complaint", state="hidden")
        again = open_page(f"{url}/#lab?step={step + 1}")
        at_step(again, step + 1)
        assert requests_shown(again) == requests_shown(page) != shown


def test_a_step_after_a_run_could_not_be_reopened_is_the_next_one(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab", quiet=False)  # the browser logs what it is refused
    at_step(page, 100)
    closed = {"error": {"message": "closed", "param": "session"}}
    page.route("**/frames?*", lambda route: route.fulfill(status=404, json=closed))
    page.route("**/lab/sessions", lambda route: route.abort())
    page.click("text='+ 100'")
    page.wait_for_selector(".lab-form .lab-complaint:not([hidden])")
    page.unroute_all()
    page.click("text='Step'")
    page.wait_for_selector(".lab-form .lab-complaint", state="hidden")
    at_step(page, 101)


def test_decisions_are_told(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab?allocator=oracle&spread=100&round_up=false&step=400")
    at_step(page, 400)
    blocked = page.locator(".lab-log li[data-kind='Blocked']")
    assert re.search(
        r"Blocked \d+ by external fragmentation: needs \d+ contiguous slots, \d+ are free in \d+ runs, the largest \d+",
        blocked.first.inner_text(),
    )
    assert page.locator(".lab-log li[data-kind='Preempted'][data-policy='paged']").count() > 0
    assert page.locator(".lab-log li[data-kind='Admitted']").count() == 0
    page.check("#lab-log-everyday")
    assert page.locator(".lab-log li[data-kind='Admitted']").count() > 0


def test_a_block_that_is_chosen_shows_its_requests_others(lab: str, open_page: OpenPage) -> None:
    page = open_page(f"{lab}/#lab")
    at_step(page, 100)
    canvas = page.locator(".lab-side[data-side='1'] canvas")
    canvas.focus()
    for _ in range(5):
        page.keyboard.press("+")
    page.wait_for_function(
        "() => document.querySelector(\".lab-side[data-side='1'] canvas\").dataset.perCell === '1'"
    )
    before = canvas.screenshot()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert canvas.screenshot() != before


# ---------------------------------------------------------------------- recordings


def test_a_recording_is_sent_and_stepped_through(lab: str, open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    steps = write_recording(path, name=HOSTILE)
    page = open_page(f"{lab}/#lab")
    answered(page)
    page.set_input_files("#lab-file", path)
    page.wait_for_function("() => location.hash.includes('recording=')")
    page.wait_for_selector(".lab-maps[data-sides='1']")
    at_step(page, 0)
    assert page.locator(".lab-form").is_hidden()
    assert HOSTILE in page.inner_text(".lab-about")
    page.click("text=+ 100")
    at_step(page, min(100, steps))
    page.check("#lab-log-everyday")
    assert HOSTILE in page.inner_text(".lab-log")
    assert page.locator("img").count() == 0 and page.title() == "Octavo: Lab"
    page.click("text='Step'")
    at_step(page, 101)
    page.click("text=Back to the experiment")
    at_step(page, 100)
    assert page.locator(".lab-side").count() == 2

    path.write_bytes(b"nothing of the kind")
    loud = open_page(f"{lab}/#lab", quiet=False)
    answered(loud)
    loud.set_input_files("#lab-file", path)
    loud.wait_for_selector(".lab-recording .lab-complaint:not([hidden])")
    assert "the recording:1: the line is not JSON" in loud.inner_text(".lab-recording .lab-complaint")


def test_the_recording_of_the_command_line_opens(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_recording(path)
    with running_lab("--recording", str(path)) as url:
        page = open_page(f"{url}/#lab?recording=given&step=50")
        at_step(page, 50)
        assert "24 blocks" in page.inner_text(".map-shown")
        kinds = set(page.eval_on_selector_all(".lab-log li", "lines => lines.map(line => line.dataset.kind)"))
        assert kinds & {"Preempted", "Evicted"}
        page.goto("about:blank")


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
