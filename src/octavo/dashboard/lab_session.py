"""``Sessions``: simulations and replays that are being watched, each advanced as its page asks, in a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from octavo.core.errors import ConfigError
from octavo.dashboard.frames import FrameSource
from octavo.dashboard.lab_errors import LabError
from octavo.dashboard.lab_settings import LabSettings, settings_of
from octavo.dashboard.lab_slots import cells_of
from octavo.dashboard.lab_totals import Totals
from octavo.simulation import article
from octavo.simulation.article import Allocation
from octavo.simulation.driver import Stop
from octavo.simulation.replay import Replay
from octavo.telemetry.recording_reader import Recording
from octavo.telemetry.sinks import FanOut

SESSIONS_MAX = 8
IDLE_S = 300.0
"""After this long without a question a session is closed; its page opens it again where it was."""
YIELDS_S = 3.0
"""A session that was asked something within this time is not closed to make room for another."""
STEPS_MAX = 500
"""Steps of one question, so that none waits long behind another; a page that jumps asks again."""
SMALLEST_CELL = 16
RECORDED_BLOCKS_MAX = 4_000_000
RECORDED_TOKENS_MAX = 1 << 28
"""Rows times their longest sequence: the scheduler keeps a number for each."""


class Side(Protocol):
    """One map."""

    def advance(self, steps: int) -> int:
        """Run at most so many steps more; returns how many there were to run."""

    def view(self, whole: bool) -> dict[str, Any]: ...


class SimulatedSide:
    """One policy on the article's workload."""

    def __init__(self, settings: LabSettings, policy: Allocation) -> None:
        # ``run`` lowers a max_tokens that a policy does not look at; the requests shown declare what they declare.
        run = replace(settings.run(policy), max_tokens=settings.max_tokens)
        self._policy = policy
        self._totals = Totals()
        self._simulation = article.build(run, [self._totals])
        scheduler = self._simulation.scheduler
        self._cell = 1 if policy == "paged" else max(settings.block_size, SMALLEST_CELL)
        self._source = FrameSource(scheduler if self._cell == 1 else cells_of(scheduler, self._cell))
        engine = self._simulation.engine
        engine.sink = FanOut([engine.sink, self._source])
        self._log = _Log()

    def advance(self, steps: int) -> int:
        simulation = self._simulation
        before = simulation.steps
        simulation.run(Stop(steps=min(before + steps, article.STEPS)))
        return simulation.steps - before

    def view(self, whole: bool) -> dict[str, Any]:
        now = self._simulation.clock.now()
        frame = self._source.snapshot(now) if whole else self._source.delta(now)
        frame["log"] = self._log.news(frame["log"])
        return {
            "policy": self._policy,
            "slots_per_cell": self._cell,
            "frame": frame,
            "now": self._totals.latest(),
            "so_far": self._totals.figures(),
        }


class RecordedSide:
    """A recorded run, through the scheduler again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with sent_recording(path):
            check_recording(path)
            self._replay = Replay(path)
        header = self._replay.recording.header
        self._policy = header.cache.allocator
        self._totals = Totals()
        self._source = FrameSource(self._replay.scheduler)
        self._now = 0.0
        self._log = _Log()

    def advance(self, steps: int) -> int:
        done = 0
        with sent_recording(self._path):
            while done < steps and (found := self._replay.step()) is not None:
                record, self._now = found
                self._totals.emit(record, self._now)
                self._source.emit(record, self._now)
                done += bool(len(record.plan.rows))
        return done

    def view(self, whole: bool) -> dict[str, Any]:
        frame = self._source.snapshot(self._now) if whole else self._source.delta(self._now)
        frame["log"] = self._log.news(frame["log"])
        return {
            "policy": self._policy,
            "slots_per_cell": 1,
            "frame": frame,
            "now": self._totals.latest(),
            "so_far": self._totals.figures(),
            "about": self._replay.recording.header.about,
            "differences": [str(difference) for difference in self._replay.differences],
        }


@contextmanager
def sent_recording(path: Path) -> Iterator[None]:
    """What is wrong with a recording, told to whoever sent it: where it lies here is nobody's business."""
    try:
        yield
    except ConfigError as error:
        message = error.message.replace(str(path), "the recording")
        raise ConfigError(message, param="recording") from None


def check_recording(path: Path, param: str = "recording") -> None:
    """Raise ConfigError, about ``param``, for a file that is no recording, or one of a run that the lab cannot hold."""
    try:
        header = Recording(path).header
    except ConfigError as error:
        raise ConfigError(error.message, param=param) from None
    blocks, tokens = header.cache.num_blocks, header.scheduler.max_num_seqs * header.scheduler.max_model_len
    if blocks > RECORDED_BLOCKS_MAX:
        raise ConfigError(
            f"the recording's pool has {blocks:,} blocks; the lab draws at most {RECORDED_BLOCKS_MAX:,}",
            param=param,
        )
    if tokens > RECORDED_TOKENS_MAX:
        raise ConfigError(
            f"the recording's settings allow {tokens:,} tokens at once; the lab holds at most {RECORDED_TOKENS_MAX:,}",
            param=param,
        )


class _Log:
    """Leaves out that the same request is still blocked: once is news, 2,900 times is not."""

    def __init__(self) -> None:
        self._blocked: str | None = None

    def news(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for entry in entries:
            if entry["kind"] == "Blocked":
                if entry["request"] == self._blocked:
                    continue
                self._blocked = entry["request"]
            found.append(entry)
        return found


class Session:
    """One or two sides that go step by step together."""

    def __init__(self, sides: list[Side]) -> None:
        self.used_at = time.monotonic()
        self._sides = sides
        self._step = 0
        self._ended = False

    def advance(self, steps: int, whole: bool) -> dict[str, Any]:
        """Steps more, and what is to be seen then. ``whole``: not only what changed."""
        done = max(side.advance(steps) for side in self._sides) if steps else 0
        self._step += done
        self._ended = self._ended or done < steps
        return {
            "step": self._step,
            "ended": self._ended,
            "sides": [side.view(whole) for side in self._sides],
        }


class Sessions:
    """At most ``SESSIONS_MAX``, by name."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def do(self, message: dict[str, Any]) -> dict[str, Any]:
        """``open``, ``advance`` or ``close``. Raises ConfigError and LabError."""
        name = message["session"]
        self._expire()
        if message["do"] == "close":
            self._sessions.pop(name, None)
            return {}
        if message["do"] == "open":
            self._make_room()
            session = Session(_sides(message))
            self._sessions[name] = session
            return session.advance(0, whole=True)
        found = self._sessions.get(name)
        if found is None:
            raise LabError(
                404, "this run has been closed because nobody looked at it; open it again", param="session"
            )
        found.used_at = time.monotonic()
        return found.advance(message["steps"], message["whole"])

    def _expire(self) -> None:
        now = time.monotonic()
        for name in [name for name, one in self._sessions.items() if now - one.used_at > IDLE_S]:
            del self._sessions[name]

    def _make_room(self) -> None:
        if len(self._sessions) < SESSIONS_MAX:
            return
        name, oldest = min(self._sessions.items(), key=lambda item: item[1].used_at)
        if time.monotonic() - oldest.used_at < YIELDS_S:
            raise LabError(
                429, f"{SESSIONS_MAX} runs are being watched, the most at once; try again in a while"
            )
        del self._sessions[name]


def _sides(message: dict[str, Any]) -> list[Side]:
    if message.get("recording") is not None:
        return [RecordedSide(Path(message["recording"]))]
    settings = settings_of(message["settings"])
    return [SimulatedSide(settings, policy) for policy in dict.fromkeys(settings.shown)]
