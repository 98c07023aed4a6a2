"""The lab's page as its tests read it: what it shows, and until when to wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


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
