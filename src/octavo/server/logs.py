"""Lines on standard error, as text or as JSON, written by a thread of their own.

The engine's thread must not wait for whoever reads our standard error: where the reader is slower than the lines, lines
are dropped, and a later one says how many.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from logging.handlers import QueueHandler, QueueListener
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]
LINES_HELD_MAX = 10_000
WRITE_OUT_S = 2.0
"""How long the last lines may take at the end."""


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
        self.converter = time.localtime


class _DroppingHandler(QueueHandler):
    """Never blocks."""

    def __init__(self, held: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(held)
        self.held = held
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped and self.held.qsize() < LINES_HELD_MAX // 2:
                note = logging.LogRecord(
                    __name__, logging.WARNING, "", 0, f"{self.dropped} log lines were dropped", None, None
                )
                self.dropped = 0
                self.held.put_nowait(note)
            self.held.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class Logs:
    """The process's logging. Use as a context manager, so that held lines are written at the end."""

    def __init__(self, form: LogFormat) -> None:
        writer = logging.StreamHandler(sys.stderr)
        writer.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
        held: queue.Queue[logging.LogRecord] = queue.Queue(LINES_HELD_MAX)
        self._listener = QueueListener(held, writer)
        self._handler = _DroppingHandler(held)
        self._logger = logging.getLogger("octavo")
        self.stuck = False
        """Whether the last lines could not be written: the interpreter's own end would wait for them for ever."""

    def say(self, line: str) -> None:
        self._logger.info("%s", line)

    def mistake(self, line: str) -> None:
        """The user's, which ends the process."""
        self._logger.error("%s", line)

    def bug(self, error: Exception) -> None:
        """Ours, which ends the process."""
        self._logger.critical("Octavo itself is at fault: %r", error, exc_info=error)

    def __enter__(self) -> Logs:
        logging.raiseExceptions = False  # a closed standard error is no reason to stop serving
        root = logging.getLogger()
        root.handlers[:] = [self._handler]
        root.setLevel(logging.WARNING)
        self._logger.setLevel(logging.INFO)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        # In a thread that may be left behind: a reader that has stopped reading must not keep the process alive.
        stopping = threading.Thread(target=self._listener.stop, daemon=True)
        stopping.start()
        stopping.join(WRITE_OUT_S)
        self.stuck = stopping.is_alive()
