"""A headless Chromium, pages that must not complain on the console, and places for their pictures.

The Debian browser (`chromium`) is used through Playwright's API; `make test` installs it where it may.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab_process import running_lab
from server_process import ServerProcess, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
)
WIDE, NARROW = (1280, 900), (390, 844)
BLOCKS = 600

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module, not for the session: Playwright keeps an event loop in this thread; others want their own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium here: `make browser` installs it as root, or `apt-get install chromium`")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """``open_page(url, size=WIDE, theme="light")``; unless ``quiet`` is False it must log no error."""
    complaints: list[str] = []
    contexts = []

    def open_(
        url: str,
        size: tuple[int, int] = WIDE,
        theme: str = "light",
        quiet: bool = True,
        before: object = None,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=theme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # a busy machine says nothing about the page

        def on_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                complaints.append(f"{message.text} {message.location}")

        if quiet:
            page.on("console", on_console)
            page.on("pageerror", lambda error: complaints.append(str(error)))
        if callable(before):
            before(page)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots go: to be looked at, never committed."""
    folder = ROOT / "results" / "page"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what keeps people from using a page."""
    path = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
    if not path.is_file():
        pytest.skip(f"no axe-core at {path}: `make page` fetches it where npm is installed")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def check_access(axe: str) -> Callable[[Page], None]:
    """Asserts that axe-core finds no serious or critical violation in a page."""

    def check(page: Page) -> None:
        page.evaluate(axe)
        found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (one["id"], one["help"], [node["html"] for node in one["nodes"][:3]])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []

    return check


@pytest.fixture(scope="session")
def _live(embedded_model: Path) -> Iterator[ServerProcess]:
    with serving(str(embedded_model), "--num-gpu-blocks-override", str(BLOCKS)) as server:
        yield server


@pytest.fixture
def live(_live: ServerProcess) -> Iterator[ServerProcess]:
    """A server with the embedded model and BLOCKS blocks, its cache empty."""
    _live.post("/reset_prefix_cache", {})
    yield _live
    _live.wait_until_idle(30)


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    """The address of a lab without a recording."""
    with running_lab() as url:
        yield url
