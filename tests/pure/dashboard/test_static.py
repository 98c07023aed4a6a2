"""Rules for the page's files: they load nothing from elsewhere, and text is never turned into markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.dashboard.routes import OPEN_PREFIX, POLICY, STATIC

FILES = sorted(path for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".html", ".svg"))
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
LINES_MAX = 420
TEXT_AS_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML"
    r"|\beval\(|new Function|\bsrcdoc\b|javascript:"
)


def name(path: Path) -> str:
    return path.name


def test_there_is_a_page() -> None:
    assert {"index.html", "main.js", "style.css"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_text_is_never_markup(path: Path) -> None:
    assert TEXT_AS_MARKUP.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
    assert re.findall(r"https?://[^\s\"']+|[\"'(]//\w", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_what_a_module_imports_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for wanted in re.findall(r"(?:from|import\()\s*\"(\./[^\"]+)\"", text):
        target = path.parent / wanted
        # Plots' library is installed at build time; the page asks the server before it loads it.
        assert target.is_file() or "vendor" in target.parts, f"{path.name} imports {wanted}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_is_two_things(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX


def test_the_policy_lets_nothing_else_in() -> None:
    assert "default-src 'none'" in POLICY and "unsafe" not in POLICY and "http" not in POLICY
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page) == []
    sources = re.findall(r"(?:src|href)=\"([^\"#]+)\"", page)
    assert sources and all(f"/{source}".startswith(OPEN_PREFIX) for source in sources)
    assert all((STATIC.parent / source).is_file() for source in sources)
