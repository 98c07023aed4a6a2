"""``octavo top``: a running server in the terminal, redrawn every second."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import click

from octavo.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

COLOURS = {"F": "grey30", "C": "yellow", "L": "green", "S": "cyan"}
NAMES = {"L": "live", "S": "shared", "C": "cached", "F": "free"}
ROWS_MAX = 12
"""Running requests that are listed."""


@click.command("top")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--api-key", help="Where the server asks for one. Default: OCTAVO_API_KEY.")
@click.option("--interval", type=float, default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once, print and leave.")
def command(url: str, api_key: str | None, interval: float, once: bool) -> None:
    """Watch a running server: its pool, its requests, its rates."""
    from rich.console import Console
    from rich.live import Live

    key = api_key or os.environ.get("OCTAVO_API_KEY")
    console = Console()
    state = fetch(url, key)
    if once:
        console.print(view(state, None))
        return
    with Live(view(state, None), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            time.sleep(interval)
            before, state = state, fetch(url, key)
            live.update(view(state, before), refresh=True)


def fetch(url: str, key: str | None) -> dict[str, Any]:
    """The server's state. Raises ConfigError where there is none."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/state", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        wanted = "the key is not one of the server's" if key else "give it a key with --api-key"
        hint = f"; {wanted}" if error.code == 401 else ""
        raise ConfigError(f"{url} answers {error.code} {error.reason}{hint}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Octavo server at {url}: {error}") from error
    return state


def view(state: dict[str, Any], before: dict[str, Any] | None) -> RenderableType:
    """All of it. ``before``: an earlier state of the same server, from which rates are taken."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    pool, cells = state["pool"], state["map"]
    title = (
        f"{state['model']}  {pool['total']:,} blocks of {state['block_size']} tokens, {state['allocator']}"
    )
    legend = Text()
    for letter, name in NAMES.items():
        legend.append("■ ", COLOURS[letter])
        legend.append(f"{name} {pool[name]:,}   " if name in pool else f"{name}   ")
    legend.append(f"a square is {cells['blocks_per_cell']} block(s)", "dim")
    return Group(
        Panel(Group(pool_text(cells["cells"]), legend), title=title, title_align="left"),
        rates(state, before),
        requests(state["running"]),
    )


def pool_text(cells: str) -> Text:
    """A square a cell, in the colour of its state."""
    from rich.text import Text

    text = Text()
    for letter in cells:
        text.append("■", COLOURS[letter])
    return text


def rates(state: dict[str, Any], before: dict[str, Any] | None) -> RenderableType:
    """What runs and waits, and what happened between two looks."""
    totals = state["totals"]
    hit_rate = f"{100 * totals['hits'] / totals['queries']:.1f} %" if totals["queries"] else "-"
    line = (
        f"running {len(state['running'])} of {state['max_num_seqs']}   waiting {state['waiting']}   "
        f"prefix hits {hit_rate}   preemptions {totals['preemptions']}"
    )
    if before is not None:
        seconds = max(state["now"] - before["now"], 1e-9)
        for name, label in (("computed_prompt_tokens", "prompt"), ("generation_tokens", "generated")):
            line += f"   {label} {(totals[name] - before['totals'][name]) / seconds:.1f} tokens/s"
    return line


def requests(running: list[dict[str, Any]]) -> RenderableType:
    """The oldest running requests."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    columns = ("id", "prompt_tokens", "cached_tokens", "output_tokens", "blocks", "preemptions")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="left" if column == "id" else "right")
    for request in running[:ROWS_MAX]:
        table.add_row(*(str(request[column]) for column in columns))
    if len(running) > ROWS_MAX:
        table.add_row(f"and {len(running) - ROWS_MAX} more")
    return table
