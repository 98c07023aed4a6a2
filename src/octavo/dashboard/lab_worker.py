"""A process of the lab: runs simulations for the server that started it, and nothing else.

Run as ``python -m octavo.dashboard.lab_worker NICENESS``. Messages in both directions are JSON behind a length of four
bytes (big endian), on standard input and output. In: ``{"id", "do", ...}`` or ``{"cancel": id}``; out: ``{"id",
"part"}`` any number of times, then ``{"id", "done"}`` or ``{"id", "error": {"message", "param", "status"}}``. One job
at a time; it ends when its input does, so that no worker outlives its server.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from typing import Any, BinaryIO

from octavo.core.errors import OctavoError
from octavo.dashboard.lab_errors import LabError
from octavo.dashboard.lab_session import Sessions
from octavo.dashboard.lab_settings import settings_of
from octavo.dashboard.lab_totals import Totals, measured_figures
from octavo.simulation import article
from octavo.simulation.driver import Simulation, Stop
from octavo.telemetry.lines import event_line

DATA_BYTES_MAX = 3 << 30
"""Memory that a worker may take: a recording from somewhere else must not take the machine's."""
EARLY_S = 0.1
"""When the first answer from fewer steps is told, if the run is not done by then."""
REPEAT_S = 0.25
STOLEN = 1.25
"""Wall time over CPU time at which others want the core."""
REST_S_MAX = 0.05
LOOK_EVERY = 16
"""Steps between two looks at the clock and the input."""


class CancelledError(Exception):
    """Nobody waits for this job any more."""


class Inbox:
    """Messages from the server. Reads what is there without waiting, so that a job can hear that it is cancelled."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = bytearray()
        self._jobs: deque[dict[str, Any]] = deque()
        self._cancelled: set[int] = set()
        self._closed = False

    def next_job(self) -> dict[str, Any] | None:
        """The next job, once there is one; None when the server has gone."""
        while not self._jobs:
            if self._closed:
                return None
            self._read()
        # A cancellation that came after its job had ended means nothing.
        self._cancelled &= {message["id"] for message in self._jobs}
        return self._jobs.popleft()

    def check(self, job: int) -> None:
        """Raise CancelledError if nobody waits for ``job`` any more."""
        while not self._closed and select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        if self._closed or job in self._cancelled:
            raise CancelledError

    def _read(self) -> None:
        found = os.read(self._descriptor, 1 << 16)
        self._closed = not found
        self._bytes += found
        while len(self._bytes) >= 4 and len(self._bytes) >= 4 + (size := int.from_bytes(self._bytes[:4])):
            message = json.loads(self._bytes[4 : 4 + size])
            del self._bytes[: 4 + size]
            if "cancel" in message:
                self._cancelled.add(message["cancel"])  # answered all the same: the server counts on it
            else:
                self._jobs.append(message)


class Courtesy:
    """Leaves a core that somebody else wants: whoever shares its caches is slowed even by an idle class."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def give_way(self) -> None:
        """Rest as long as the work since the latest call took, if much of that time went to others."""
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        if wall > STOLEN * cpu:
            time.sleep(min(wall, REST_S_MAX))
        self._wall, self._cpu = time.monotonic(), time.process_time()


class Worker:
    def __init__(self, inbox: Inbox, out: BinaryIO, courteous: bool) -> None:
        """``courteous``: rest while others want the cores."""
        self._inbox = inbox
        self._courteous = courteous
        self._out = out
        self._sessions = Sessions()

    def run(self) -> None:
        """Serve until the input ends."""
        while (message := self._inbox.next_job()) is not None:
            self._serve(message)

    def _serve(self, message: dict[str, Any]) -> None:
        job = message["id"]
        try:
            self._inbox.check(job)
            answer: dict[str, Any] = {"done": self._do(job, message)}
        except CancelledError:
            answer = {"done": None}
        except LabError as mistake:
            answer = {"error": {"message": mistake.message, "param": mistake.param, "status": mistake.status}}
        except OctavoError as error:
            answer = {"error": {"message": error.message, "param": error.param, "status": 400}}
        except MemoryError:
            what = f"this takes more than the {DATA_BYTES_MAX >> 30} GiB of memory that the lab allows"
            answer = {"error": {"message": what, "param": None, "status": 400}}
        except Exception:
            traceback.print_exc()
            what = "internal error in the lab; the server's log says more"
            answer = {"error": {"message": what, "param": None, "status": 500}}
        self._send({"id": job, **answer})

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode()
        self._out.write(len(data).to_bytes(4) + data)
        self._out.flush()

    def _do(self, job: int, message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "answer":
            return self._answer(job, message)
        return self._sessions.do(message)

    def _answer(self, job: int, message: dict[str, Any]) -> dict[str, Any]:
        """A whole run of one policy; figures of the steps so far while it takes long."""
        settings = settings_of(message["settings"]).run(message["policy"])
        totals = Totals()
        told_at = time.monotonic() + EARLY_S
        courtesy = Courtesy() if self._courteous else None

        def progress(simulation: Simulation) -> None:
            nonlocal told_at
            if simulation.steps % LOOK_EVERY:
                return
            self._inbox.check(job)
            if courtesy is not None:
                courtesy.give_way()
            if (now := time.monotonic()) >= told_at:
                told_at = now + REPEAT_S
                self._send({"id": job, "part": totals.figures()})

        report = article.build(settings, [totals]).run(Stop(steps=settings.steps), progress)
        first = report.first_blocked
        return {**measured_figures(report), "first_blocked": None if first is None else event_line(first)}


def step_back(niceness: int) -> None:
    """Run at this niceness; behind others (above 0) only in what they leave, where the system knows of such a class."""
    os.nice(niceness)
    if niceness > 0 and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    niceness = int(sys.argv[1])
    step_back(niceness)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints by mistake must not break the messages
    Worker(Inbox(sys.stdin.fileno()), out, courteous=niceness > 0).run()


if __name__ == "__main__":
    main()
