"""``Answers``: what each policy makes of a state of the controls, and the latest such answers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from octavo.dashboard.lab_processes import Processes
from octavo.dashboard.lab_settings import POLICIES, LabSettings
from octavo.memory import sizing
from octavo.simulation import article
from octavo.simulation.article import Allocation, ArticleSettings

KEPT_MAX = 1_024
"""Runs that are kept; each is a dozen numbers."""
PAGES_MAX = 256
"""Pages whose latest question is known."""

Line = dict[str, Any]


class Answers:
    """Lives in the event loop."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._kept: OrderedDict[ArticleSettings, dict[str, Any]] = OrderedDict()
        self._latest: OrderedDict[str, asyncio.Event] = OrderedDict()
        """Page -> set when that page has asked something newer."""

    async def ask(self, settings: LabSettings, page: str) -> AsyncGenerator[Line, None]:
        """A line for each policy, and lines from fewer steps before it where a run takes long, as they come.

        The latest question of a page wins: an older one that is not answered ends without the rest of its lines.
        """
        overtaken = self._overtake(page)
        lines: asyncio.Queue[Line | BaseException] = asyncio.Queue()
        # Those whose maps are drawn are looked at first.
        order = dict.fromkeys((*settings.shown, *POLICIES))
        tasks = [asyncio.create_task(self._one(settings, policy, lines)) for policy in order]
        waiting = asyncio.create_task(overtaken.wait())
        missing = len(tasks)
        coming: asyncio.Task[Line | BaseException] | None = None
        try:
            while missing:
                coming = asyncio.create_task(lines.get())
                await asyncio.wait((coming, waiting), return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    return
                line = coming.result()
                if isinstance(line, BaseException):
                    raise line
                missing -= line["complete"]
                yield line
        finally:
            started = [*tasks, waiting, *([] if coming is None else [coming])]
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)

    def _overtake(self, page: str) -> asyncio.Event:
        before = self._latest.pop(page, None)
        if before is not None:
            before.set()
        self._latest[page] = event = asyncio.Event()
        while len(self._latest) > PAGES_MAX:
            self._latest.popitem(last=False)
        return event

    async def _one(
        self, settings: LabSettings, policy: Allocation, lines: asyncio.Queue[Line | BaseException]
    ) -> None:
        try:
            run = settings.run(policy)
            kept = self._kept.get(run)
            if kept is not None:
                self._kept.move_to_end(run)
                lines.put_nowait(line_of(settings, policy, kept, complete=True))
                return
            message = {"do": "answer", "settings": settings.as_dict(), "policy": policy}
            async with self._processes.answering() as worker, aclosing(worker.ask(message)) as answers:
                async for answer in answers:
                    if "part" in answer:
                        lines.put_nowait(line_of(settings, policy, answer["part"], complete=False))
                        continue
                    self._kept[run] = found = answer["done"]
                    while len(self._kept) > KEPT_MAX:
                        self._kept.popitem(last=False)
                    lines.put_nowait(line_of(settings, policy, found, complete=True))
        except Exception as error:
            lines.put_nowait(error)


def line_of(settings: LabSettings, policy: Allocation, figures: dict[str, Any], *, complete: bool) -> Line:
    """A run's figures with what follows from them and from the controls that change no run."""
    per_step = figures["tokens_per_step"]
    paged = policy == "paged"
    slowed = per_step * (1 - settings.kernel_penalty / 100) if paged else per_step
    block_size = settings.block_size if paged else 1
    return {
        "policy": policy,
        "complete": complete,
        **figures,
        "slots": settings.pool_slots,
        "slowed_tokens_per_step": slowed,
        "empty_mib": (figures["reserved"] + figures["internal"])
        * settings.spec.kv_bytes_per_token
        / sizing.MIB,
        "table_mib": article.block_table_mib(block_size) if paged else 0.0,
        "shared_tokens": article.shared_tokens(block_size) if paged and settings.share else 0,
    }
