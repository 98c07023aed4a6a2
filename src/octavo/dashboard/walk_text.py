"""``python -m octavo.dashboard.walk_text``: the walk as ``docs/walkthrough.md``, from the stops that the page shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from octavo.dashboard.walk import stops

HEAD = """# One request, from admission to eviction

This page is written by `python -m octavo.dashboard.walk_text` from the same events as the tour on the page (`octavo
lab`, the tab *Walk*): the product's scheduler and paged allocator run on a pool of {total} blocks of {size} tokens, and
every number below is read from what they did. A test fails when the page and the code disagree.

**How to read the maps.** A field is a block. A letter is the request that holds it, `A+B` two that share it, and the
number behind it how many of its {size} slots hold a token; `*` is a cached block (nobody holds it, its content can be
found) and `.` a free one. Fields in brackets are what the stop is about.

## Words

{words}
"""
PER_LINE = 6


def content(cell: dict[str, Any], marked: bool) -> str:
    """What stands in a block's field."""
    if cell["state"] == "live":
        what = f"{'+'.join(cell['holders'])} {cell['filled']}"
    else:
        what = "*" if cell["state"] == "cached" else "."
    return f"[{what}]" if marked else f" {what} "


def drawn(stop: dict[str, Any]) -> str:
    """The pool, a few blocks a line."""
    marked = set(stop["blocks"])
    contents = [content(cell, number in marked) for number, cell in enumerate(stop["cells"])]
    width = max(map(len, contents)) + 1
    fields = [f"{number:>2}:{what:<{width}}" for number, what in enumerate(contents)]
    lines = ["".join(fields[first : first + PER_LINE]).rstrip() for first in range(0, len(fields), PER_LINE)]
    return "\n".join(f"    {line}" for line in lines)


def section(number: int, stop: dict[str, Any]) -> str:
    pool, formula = stop["pool"], stop["formula"]
    parts = [f"## {number}. {stop['title']}", *stop["text"], drawn(stop)]
    parts.append(f"Step {stop['step']}: {pool['live']} live, {pool['cached']} cached, {pool['free']} free.")
    if stop["requests"] or stop["waiting"]:
        rows = [
            f"| {row['id']} | {row['tokens']} | {' '.join(map(str, row['blocks']))} |"
            for row in stop["requests"]
        ]
        rows += [f"| {name} | waits | |" for name in stop["waiting"]]
        parts.append("\n".join(["| request | tokens held | block table |", "|---|---|---|", *rows]))
    if stop["events"]:
        parts.append("The scheduler said:\n\n" + "\n".join(f"    {line}" for line in stop["events"]))
    parts.append(f"> {formula['name']}  \n> {formula['expression']} = **{formula['result']}**")
    return "\n\n".join(parts)


def text() -> str:
    """The whole page, Markdown."""
    walk = stops()
    words = "\n".join(f"- **{word}**: {meaning}." for word, meaning in walk["words"].items())
    head = HEAD.format(total=walk["stops"][0]["pool"]["total"], size=walk["block_size"], words=words)
    sections = [section(number, stop) for number, stop in enumerate(walk["stops"], start=1)]
    return head + "\n" + "\n\n".join(sections) + "\n"


def main() -> None:
    """Write it to the file named, or to standard output."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())


if __name__ == "__main__":
    main()
