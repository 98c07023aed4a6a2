"""Lab: runs that play beside each other, what is told of them, and recordings."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab_page import answered, at_step, query, requests_shown
from lab_process import running_lab
from lab_recordings import HOSTILE, write_recording

if TYPE_CHECKING:
    from playwright.sync_api import Route

OpenPage = Callable[..., Any]


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
