"""Live: what the page shows of a running server is what the server says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server_process import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

BLOCKS = 600
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def ask(page: Page, text: str, tokens: int = 60) -> None:
    page.fill("#chat-length", str(tokens))
    page.fill("#chat-text", text)
    page.press("#chat-text", "Enter")


def let_answers_be_long(page: Page) -> None:
    """No answer ends before its longest length: a sampled one may, whenever it likes."""

    def more(route: Route) -> None:
        body = json.loads(route.request.post_data or "") | {"ignore_eos": True}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", more)


def wait_answered(page: Page, answers: int = 1) -> None:
    """Until that many answers have ended: each then says what its tokens were."""
    page.wait_for_function(
        "count => [...document.querySelectorAll('.chat .assistant .foot')]"
        ".filter(foot => /token/.test(foot.textContent)).length >= count",
        arg=answers,
        timeout=60_000,
    )


def blocks(page: Page) -> tuple[int, int, int]:
    """(live, cached, free) as the page says."""
    text = page.locator(".tiles dd").first.inner_text()
    live, cached, free = (int(part.replace(",", "")) for part in text.split(", "))
    return live, cached, free


def metrics(server: ServerProcess) -> tuple[int, int, int]:
    return tuple(int(server.metric("kv_blocks", state=state)) for state in ("live", "cached", "free"))  # type: ignore[return-value]


def until_blocks(page: Page, wanted: tuple[int, int, int]) -> None:
    text = ", ".join(f"{count:,}" for count in wanted)
    page.wait_for_function(
        "text => document.querySelector('.tiles dd')?.textContent === text", arg=text, timeout=10_000
    )


def table(page: Page) -> dict[str, list[str]]:
    """The map's table: who -> its cells."""
    details = page.locator("details", has_text="The map as a table")
    if not details.evaluate("one => one.open"):
        details.locator("summary").click()
    page.wait_for_selector(".map-table tbody tr")
    page.wait_for_timeout(700)  # it follows the map at its leisure
    rows = page.eval_on_selector_all(
        ".map-table tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return {who: cells for who, *cells in rows}


def test_a_chat_turn_makes_blocks_appear_and_their_count_is_the_metrics(
    live: ServerProcess, open_page: Callable[..., Page]
) -> None:
    page = open_page(live.url)
    until_blocks(page, (0, 0, BLOCKS))
    ask(page, "Name three rivers and say a little about each.")
    page.wait_for_function("() => !/^0,/.test(document.querySelector('.tiles dd')?.textContent)")
    assert re.search(r"blocks of your question", page.inner_text(".focus-note"))
    wait_answered(page)
    live.wait_until_idle()
    counts = metrics(live)
    assert counts[1] > 3, "the answer's full blocks stay cached"
    until_blocks(page, counts)
    rows = table(page)
    assert (int(rows["cached"][0]), int(rows["free"][0])) == counts[1:]
    assert re.search(r"of your last answer", page.inner_text(".focus-note"))


def test_the_next_question_finds_the_conversation_in_the_pool(
    live: ServerProcess, open_page: Callable[..., Page]
) -> None:
    page = open_page(live.url)
    ask(page, "Tell me about the sea.", 48)
    wait_answered(page)
    ask(page, "And about the sky?", 24)
    wait_answered(page, 2)
    foots = page.locator(".chat .assistant .foot").all_inner_texts()
    assert "none of them found in the pool" in foots[0]
    asked = re.match(r"(\d+) tokens of prompt", foots[0])
    found = re.search(r"(\d+) of them found in the pool", foots[1])
    assert asked and found and int(found[1]) >= int(asked[1]) // 16 * 16 > 0
    # Why the rest was not found, in the words of the page and the counts of the metrics.
    hits = int(live.metric("prefix_cache_block_hits_total"))
    page.wait_for_selector(
        f"text=/whole blocks of prompts since the start, {hits} found in the pool; not found: /"
    )


def test_two_questions_at_once_share_blocks(live: ServerProcess, open_page: Callable[..., Page]) -> None:
    page = open_page(live.url)
    let_answers_be_long(page)
    ask(page, "Tell me a very long story about a lighthouse.", 800)
    page.wait_for_selector(".chat .assistant .words:not(:empty)")
    ask(page, "Tell me a very long story about a ship.", 800)
    page.wait_for_function(
        "() => /[1-9]\\d* of them shared/.test(document.querySelector('.focus-note')?.textContent)"
    )
    page.wait_for_selector("section[aria-labelledby=requests-title] tbody tr:nth-child(2)")
    # The older request is chosen: its blocks light up, and the shared ones are marked in its table.
    page.locator("section[aria-labelledby=requests-title] tbody button").first.click()
    page.wait_for_selector(".entries li.shared")
    assert re.match(r"Lit up: the \d+ blocks of request \d+\.", page.inner_text(".focus-note"))
    rows = table(page)
    assert sum(int(cells[1]) for cells in rows.values()) >= 1
    page.click("text=Stop")


def test_scrub_back_shows_an_earlier_state(live: ServerProcess, open_page: Callable[..., Page]) -> None:
    page = open_page(live.url)
    until_blocks(page, (0, 0, BLOCKS))
    ask(page, "Tell me a long story about a whale and a lighthouse.")
    wait_answered(page)
    live.wait_until_idle()
    after = metrics(live)
    until_blocks(page, after)
    page.locator("#moment").evaluate(
        "slider => { slider.value = slider.min; slider.dispatchEvent(new Event('input')); }"
    )
    until_blocks(page, (0, 0, BLOCKS))
    assert "ago" in page.inner_text("#moment-words")
    assert table(page)["free"][0] == str(BLOCKS)
    # A decision leads to its moment: just admitted, the request holds the blocks of its prompt.
    page.click("text=Back to now")
    until_blocks(page, after)
    page.select_option("#log-kind", "Admitted")
    page.locator(".log-line").first.click()
    held = re.search(r"(\d+) blocks", page.locator(".log-line").first.inner_text())
    page.wait_for_function("() => /of request/.test(document.querySelector('.focus-note')?.textContent)")
    assert held and blocks(page)[0] >= int(held[1]) > 0
    assert page.inner_text(".time-bar button[aria-pressed=true]") == "Back to now"
    # An end leads to the blocks that the request had, which are cached now.
    page.click("text=Back to now")
    page.select_option("#log-kind", "Finished")
    page.locator(".log-line").first.click()
    page.wait_for_function(
        "() => /blocks of “Finished/.test(document.querySelector('.focus-note').textContent)"
    )
    until_blocks(page, after)


def test_pause_holds_the_picture_while_the_server_goes_on(
    live: ServerProcess, open_page: Callable[..., Page]
) -> None:
    page = open_page(live.url)
    until_blocks(page, (0, 0, BLOCKS))
    page.click("text=Pause")
    ask(page, "Say something.", 40)
    wait_answered(page)
    assert blocks(page) == (0, 0, BLOCKS)
    page.click("text=Back to now")
    live.wait_until_idle()
    until_blocks(page, metrics(live))


def test_the_decision_log_is_filtered(live: ServerProcess, open_page: Callable[..., Page]) -> None:
    page = open_page(live.url)
    ask(page, "Hello.", 20)
    wait_answered(page)
    page.wait_for_selector(".log-line[data-kind=Finished]")
    kinds = "lines => [...new Set(lines.map(line => line.dataset.kind))].sort()"
    assert page.eval_on_selector_all(".log-line", kinds) == ["Admitted", "Finished"]
    page.select_option("#log-kind", "Finished")
    assert page.eval_on_selector_all(".log-line", kinds) == ["Finished"]
    page.fill("#log-text", "no such text")
    assert page.locator(".log-line").count() == 0
    page.fill("#log-text", "chatcmpl")
    assert page.locator(".log-line").count() == 1


def test_text_of_users_and_models_is_never_markup(
    live: ServerProcess, open_page: Callable[..., Page]
) -> None:
    page = open_page(live.url)
    ask(page, HOSTILE, 8)
    wait_answered(page)
    # A model that answers with markup, too.
    chunk = '{"id":"chatcmpl-x","choices":[{"index":0,"delta":{"content":%s},"finish_reason":"stop"}]}'
    body = f"data: {chunk % json.dumps(HOSTILE)}\n\ndata: [DONE]\n\n"
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    ask(page, "Once more.", 8)
    page.wait_for_function("() => document.querySelectorAll('.chat li').length === 4")
    page.wait_for_timeout(300)
    words = page.locator(".chat .words").all_inner_texts()
    assert words[0] == HOSTILE and words[3] == HOSTILE
    assert page.locator(".chat img, .chat script").count() == 0
    assert page.title() == "Octavo: Live"


def test_the_map_answers_to_keys_and_says_what_is_there(
    live: ServerProcess, open_page: Callable[..., Page]
) -> None:
    page = open_page(live.url)
    ask(page, "Tell me about mountains.", 60)
    wait_answered(page)
    live.wait_until_idle()
    until_blocks(page, metrics(live))
    first = int(re.match(r"\d+", table(page)["cached"][4])[0])  # type: ignore[index]
    page.focus("canvas.map")
    page.keyboard.press("Home")
    assert page.inner_text(".map-note").startswith("Block 0: ")
    for _ in range(first):
        page.keyboard.press("ArrowRight")
    said = "document.querySelector('.live-map .unseen[aria-live]').textContent"
    page.wait_for_function(f"text => {said}.startsWith(text)", arg=f"Block {first}: cached")
    spoken = page.inner_text(".map-note")
    assert "0 references" in spoken and re.search(r"hash [0-9a-f]{6}", spoken) and "released" in spoken
    page.keyboard.press("End")
    assert f"Block {BLOCKS - 1}: free" in page.inner_text(".map-note")
    before = page.inner_text(".live-map .map-bar .map-shown")
    page.keyboard.press("-")
    page.wait_for_function(
        "before => document.querySelector('.live-map .map-bar .map-shown')?.textContent !== before",
        arg=before,
    )


def test_without_the_plot_library_there_are_tables(
    live: ServerProcess, open_page: Callable[..., Page]
) -> None:
    def without(page: Page) -> None:
        def answer(route: object) -> None:
            told = route.fetch().json() | {"plots": False}  # type: ignore[attr-defined]
            route.fulfill(json=told)  # type: ignore[attr-defined]

        page.route("**/page/config.json", answer)

    page = open_page(live.url, before=without)
    page.wait_for_selector("text=The plot library is not installed here")
    page.wait_for_function("() => document.querySelector('.plot table tbody td')?.textContent === '0'")
    assert page.locator(".plot canvas").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)], ids=["wide", "narrow"])
def test_everyone_can_use_it_and_it_fits(
    live: ServerProcess,
    open_page: Callable[..., Page],
    check_access: Callable[[Page], None],
    pictures: Path,
    theme: str,
    size: tuple[int, int],
) -> None:
    page = open_page(live.url, size=size, theme=theme)
    let_answers_be_long(page)
    ask(page, "Tell me a long story about a lighthouse keeper.", 600)
    page.wait_for_selector(".chat .assistant .words:not(:empty)")
    ask(page, "Tell me a long story about a whale.", 600)
    page.wait_for_selector("section[aria-labelledby=requests-title] tbody tr:nth-child(2)")
    page.wait_for_timeout(1500)
    page.screenshot(path=pictures / f"live-{size[0]}-{theme}.png", full_page=True)
    check_access(page)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size[0], "nothing sticks out at the side"
    page.click("text=Stop")
