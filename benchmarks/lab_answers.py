"""How soon the lab redraws its three answers after a slider has moved, measured in the page.

    python benchmarks/lab_answers.py

A headless Chromium opens a real ``octavo lab`` and moves one control after the other to values that nobody has asked
for before, so that no run that this needs is kept already. Of each move: when all three answers to it were drawn (of a
whole run, or of fewer steps and labelled so), and when all three whole runs were. The aim is 300 ms for both; where
whole runs take longer the page says that they are coming.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

AIM_MS = 300
MOVES: dict[str, tuple[str, list[dict[str, str]]]] = {
    "declared max_tokens": ("", [{"max_tokens": str(300 + 1009 * i)} for i in range(15)]),
    "output-length spread": ("", [{"spread": str(3 + 9 * i)} for i in range(15)]),
    "seed": ("", [{"seed": str(1000 + i)} for i in range(15)]),
    "pool": ("", [{"pool_gib": str(20 + 3.3 * i)} for i in range(15)]),
    "spread, system prompt shared": ("&share=true", [{"spread": str(5 + 11 * i)} for i in range(8)]),
    "kernel penalty (no run)": ("", [{"kernel_penalty": str(3 + 5 * i)} for i in range(15)]),
}
"""What is moved -> (more of the address, the values it is moved to)."""


def move(page: Any, name: str, value: str, answered: int) -> tuple[int, int]:
    """(three answers, three whole runs) in milliseconds after the move."""
    page.evaluate(
        """([id, value]) => {
          const field = document.getElementById(id);
          field.value = value;
          field.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        [f"lab-{name}", value],
    )
    page.wait_for_function(
        "n => Number(document.querySelector('.lab-answers').dataset.answered) > n",
        arg=answered,
        timeout=60_000,
    )
    first, whole = page.eval_on_selector(".lab-answers", "e => [e.dataset.first, e.dataset.ms]")
    return int(first), int(whole)


def answered(page: Any) -> int:
    return int(page.get_attribute(".lab-answers", "data-answered") or 0)


def measure(browser: Any, url: str) -> bool:
    """Print a line a control; whether after every move the answers came in time."""
    in_time = True
    print(
        f"{'moved':<30} {'moves':>5}   three answers, ms        three whole runs, ms     within {AIM_MS} ms"
    )
    print(f"{'':<30} {'':>5}   median   worst         median   worst")
    for what, (more, moves) in MOVES.items():
        page = browser.new_page()
        page.goto(f"{url}/#lab?compare=none{more}")
        page.wait_for_selector(".lab-answers[data-answered]", timeout=60_000)
        found = [move(page, *next(iter(values.items())), answered(page)) for values in moves]
        page.close()
        firsts, wholes = (sorted(times) for times in zip(*found, strict=True))
        soon = sum(time <= AIM_MS for time in wholes)
        in_time = in_time and firsts[-1] <= AIM_MS
        middle = len(found) // 2
        print(
            f"{what:<30} {len(found):>5}   {firsts[middle]:>6} {firsts[-1]:>7}        {wholes[middle]:>6}"
            f" {wholes[-1]:>7}        {soon} of {len(wholes)} whole"
        )
    return in_time


def main() -> None:
    from playwright.sync_api import sync_playwright

    from lab_process import running_lab

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("no chromium: `make browser` installs it")
    with running_lab() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox"])
        in_time = measure(browser, url)
        browser.close()
    print(
        f"after every move the answers came within {AIM_MS} ms"
        if in_time
        else f"after some move an answer took over {AIM_MS} ms"
    )


if __name__ == "__main__":
    main()
